"""What long-running processes share: ending on signals, directories of their own, threads of NumPy."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tuner import without_torch
from tuner.blas import ONE_THREAD

RUNTIME_ONLY = {"TVM_USE_RUNTIME_LIB": "1"}
"""Environment in which TVM loads its runtime without its compiler. Read when TVM is first imported."""
TERMINATION = (signal.SIGTERM, signal.SIGINT)
_DEVICE = {**RUNTIME_ONLY, **without_torch.ENVIRONMENT}


def device_environment(gpu: int | None) -> dict[str, str]:
    """The environment of the processes of a device. On a GPU all threads of NumPy compute references: they disturb
    nothing that is timed."""
    return _DEVICE if gpu is not None else {**ONE_THREAD, **_DEVICE}


def set_on_signals(stop: threading.Event, signals: Sequence[signal.Signals] = TERMINATION) -> None:
    """Replace the handlers of ``signals`` by one that sets ``stop``. Does nothing outside the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in signals:
            signal.signal(number, lambda *_: stop.set())


@contextmanager
def stop_on_signals(signals: Sequence[signal.Signals] = TERMINATION) -> Iterator[threading.Event]:
    """An event that ``signals`` set; their handlers are restored at the end. Needs the main thread."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in signals}
    set_on_signals(stop, signals)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def process_directory(parent: Path, prefix: str) -> Path:
    """The path ``parent/prefix-PID`` for this process's own files; it is not created. Directories that processes left
    behind when they were killed are removed."""
    remove_left(parent, prefix)
    return parent / f"{prefix}-{os.getpid()}"


def temporary_directory(prefix: str, folder: Path | None = None) -> Path:
    """A new directory for this process's own files in the temporary folder, which others use as well. Directories that
    processes of this user left behind when they were killed are removed."""
    folder = folder or Path(tempfile.gettempdir())
    remove_left(folder, prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}-{os.getpid()}-", dir=folder))


def remove_left(parent: Path, prefix: str) -> None:
    """Remove this user's directories ``parent/prefix-PID`` and ``parent/prefix-PID-...`` of processes that are gone."""
    for path in parent.glob(f"{prefix}-*"):
        pid = path.name.removeprefix(f"{prefix}-").partition("-")[0]
        with suppress(FileNotFoundError):  # another process removes it, too
            if pid.isdecimal() and not psutil.pid_exists(int(pid)) and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)
