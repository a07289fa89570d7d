"""The watchdog of one `shapewright up`: terminates all of its processes when `up` itself has ended, however it ended.

``python -m shapewright.watchdog ID`` reads its standard input, a pipe whose other end only `up` holds. When `up` ends
the pipe closes, even if it was killed, and the watchdog terminates the processes that are left. They are identified by
an environment variable that all of them inherit, so daemons with a session of their own are included, and processes
of another `up` are not touched.
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
    """Every running process with the marker, except this one, and every descendant of one."""
    processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == up_id and process.status() != psutil.STATUS_ZOMBIE:
                processes[process.pid] = process
                processes.update({child.pid: child for child in process.children(recursive=True)})
        except psutil.Error:
            continue  # It ended meanwhile, or belongs to another user, and so is not ours.
    processes.pop(os.getpid(), None)
    return list(processes.values())


def terminate(processes: Sequence[psutil.Process], grace_s: float = GRACE_S) -> None:
    """Send SIGTERM; SIGKILL after ``grace_s`` seconds to those still running."""
    _signal(processes, psutil.Process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    _signal(alive, psutil.Process.kill)
    psutil.wait_procs(alive, timeout=grace_s)


def terminate_marked(up_id: str, grace_s: float = GRACE_S, deadline_s: float = DEADLINE_S) -> list[psutil.Process]:
    """Terminate all marked processes, also those started meanwhile. Returns the ones left after ``deadline_s``."""
    until = time.monotonic() + deadline_s
    while (left := marked(up_id)) and time.monotonic() < until:
        terminate(left, grace_s)
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
    return 1 if terminate_marked(up_id) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
