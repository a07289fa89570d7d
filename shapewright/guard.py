"""The last one out: ends every process of one `shapewright up`, however `up` itself came to its end.

``python -m shapewright.guard ID`` reads its standard input, a pipe whose other end only `up` holds. When `up` ends
the pipe closes, even if it was killed without a chance to clean up, and the guard ends whatever is left. Processes are
known by an environment variable that all of them inherit, so ones that have left for a session of their own are found
too, and those of any other `up` are not touched.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import psutil

MARKER = "SHAPEWRIGHT_UP_ID"
GRACE_S = 4.0
DEADLINE_S = 15.0


def marked_environment(up_id: str) -> dict[str, str]:
    """The environment of a child of this `up`. ``SPT_NOENV`` keeps programs that rename themselves (Ray's) from
    writing the name over the part of their memory in which the marker is read."""
    return {**os.environ, MARKER: up_id, "SPT_NOENV": "1"}


def marked(up_id: str) -> list[psutil.Process]:
    """Every living process that carries the marker, this one left out, and every descendant of one."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == up_id and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
                found.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.Error:
            continue  # It ended meanwhile, or belongs to another user, and so is none of ours.
    found.pop(os.getpid(), None)
    return list(found.values())


def end(processes: Sequence[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Ask processes to end; kill those that have not after ``grace_s`` seconds."""
    _signal(processes, psutil.Process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    _signal(alive, psutil.Process.kill)
    psutil.wait_procs(alive, timeout=grace_s)


def end_marked(up_id: str, grace_s: float = GRACE_S, deadline_s: float = DEADLINE_S) -> list[psutil.Process]:
    """End every marked process, and those that they start while ending. Returns the ones left after ``deadline_s``."""
    until = time.monotonic() + deadline_s
    while (left := marked(up_id)) and time.monotonic() < until:
        end(left, grace_s)
        grace_s = 0.5
    return left


def _signal(processes: Sequence[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        try:
            send(process)
        except psutil.NoSuchProcess:
            continue


def main(up_id: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    return 1 if end_marked(up_id) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
