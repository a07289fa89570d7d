"""Child processes that announce themselves with one line of JSON and end with their parent."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tuner.errors import ShapewrightError
from tuner.measure.sandbox.removal import remove

START_S = 60.0
STOP_S = 5.0


class ChildFailed(ShapewrightError):
    """A child process ended, or said nothing in time, before it was ready."""


class Child:
    """A running ``python -m MODULE ARGS --parent PID`` that printed ``{"port": ...}`` when it was ready.

    The module looks whether its parent is still the given process, so it ends even if this one is killed. It keeps
    its temporary files in a directory of its own under ``data_dir``, which ``stop`` removes. ``environment``
    takes the place of this process's own.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str],
        *,
        data_dir: Path | None = None,
        start_s: float = START_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.module = module
        if data_dir is not None:
            data_dir.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix="shapewright-", dir=data_dir)
        # At the latest when this process ends.
        self._remove_scratch = weakref.finalize(self, remove, Path(scratch))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *args, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**(os.environ if environment is None else environment), "TMPDIR": scratch},
            text=True,
        )
        try:
            self.announced = self._first_line(start_s)
        except ChildFailed:
            self.stop()
            raise

    @property
    def port(self) -> int:
        return int(self.announced["port"])

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process: asked first, then killed after STOP_S."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._remove_scratch()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _first_line(self, start_s: float) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read_line, args=(stdout, lines), daemon=True).start()
        try:
            line = lines.get(timeout=start_s)
        except queue.Empty:
            raise ChildFailed(f"{self.module} was not ready within {start_s:g} s") from None
        if not line:
            raise ChildFailed(f"{self.module} ended before it was ready, with exit code {self._process.wait(STOP_S)}")
        data: dict[str, Any] = json.loads(line)
        return data


def announce(port: int) -> None:
    """In the child: print the line that ``Child`` waits for."""
    print(json.dumps({"port": port, "pid": os.getpid()}), flush=True)


def orphaned(parent: int | None) -> bool:
    """In the child: whether the process given with ``--parent`` is gone; never without one."""
    return parent is not None and os.getppid() != parent


def _read_line(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    lines.put(stream.readline())
