"""A private device on this machine: an RPC server in a child process that no tracker knows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from tuner.measure import device
from tuner.measure._base import DeviceLost, Interrupted, never
from tuner.measure.child import Child
from tuner.measure.device.options import parse_options
from tuner.measure.gpu.facts import ask
from tuner.measure.network.connecting import Connected, connect_server
from tuner.measure.processes import device_environment
from tuner.measure.sandbox.confinement import clean_environment

log = logging.getLogger(__name__)

MODULE = f"{device.__name__}.process"
TRIES = 2
WAIT_S = 20.0


def gpu_options(gpu: int | None) -> tuple[str, ...]:
    """The options of a device that measures on a GPU of that number; on this CPU where there is none. Raises GpuFailed
    where that cannot be."""
    if gpu is None:
        return ()
    # Here, rather than in a process that would end without an answer.
    log.info("a device on GPU %d, %s", gpu, ask(gpu).target)
    return "--gpu", str(gpu)


class LocalDevice:
    """Starts the server; ``connect`` opens a session on it, and starts another server if this one has died.

    ``options`` are those of its module.
    """

    def __init__(self, data_dir: Path | None = None, options: Sequence[str] = ()) -> None:
        self._data_dir = data_dir
        self.options = tuple(options)
        self._lock = threading.Lock()
        self._child = self._start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def connect(self, session_timeout_s: float, interrupted: Callable[[], bool] = never) -> Connected:
        """A session that the server ends after ``session_timeout_s``. Raises DeviceLost, Interrupted."""
        for _ in range(TRIES):
            child = self._living()
            address = ("127.0.0.1", child.port)

            def ended(child: Child = child) -> bool:
                return interrupted() or not child.alive()

            try:
                session = connect_server(*address, "", session_timeout_s, WAIT_S, ended)
            except Interrupted:
                if interrupted():
                    raise
                # A process that was killed seems alive until all of its threads are gone.
                continue
            if session is None:
                break
            return Connected(session, address)
        raise DeviceLost(f"the device's process (pid {self.pid}) does not answer on port {self._child.port}")

    def _living(self) -> Child:
        with self._lock:
            if not self._child.alive():
                self._child.stop()
                self._child = self._start()
            return self._child

    def close(self) -> None:
        self._child.stop()

    def _start(self) -> Child:
        environment = clean_environment(device_environment(parse_options([*self.options]).gpu))
        return Child(MODULE, self.options, data_dir=self._data_dir, environment=environment)

    def __enter__(self) -> LocalDevice:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
