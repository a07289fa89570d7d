"""The real parts of a service, supervised as `up` does it, of which a test may break each by name."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from shapewright.cli.supervise import Part, Supervisor
from shapewright.cli.up import scratch
from tests import chaos
from tuner.measure.network.addresses import free_port

ROOT = Path(__file__).parents[2]
HERE, BEHIND = "127.0.0.1", "127.0.0.2"
KEY = "chaos"
LINKED, SMALL, SILENT = "linked", "small", "silent"
"""Devices: one that can be cut off, one with a small disk of its own, one that goes silent."""
WORKERS = ("worker-0", "worker-1")
START_S = 120.0

WORKER = """
import os, sys
from functools import partial
from pathlib import Path
from tests.soak.faulty_builds import build
from tuner import logs
from worker import run

tracker, directory, name = sys.argv[1:]
logs.set_up("text")
run.RayBuilder = partial(run.RayBuilder, build)
# Candidates that hang are to cost less of the test's time.
run.RpcRunner = partial(run.RpcRunner, timeout_s=5.0)
run.run_worker(
    os.environ["SHAPEWRIGHT_DATABASE_URL"], ("127.0.0.1", int(tracker)), data_dir=Path(directory), name=name
)
"""


@dataclass
class Service:
    """A tracker, three devices and two workers on a database, in a folder of their own."""

    url: str
    folder: Path
    supervisor: Supervisor = field(init=False)
    tracker: int = field(default_factory=free_port)
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in (LINKED, SMALL, SILENT)})
    link: chaos.Link = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def temporary(self) -> Path:
        """The temporary folder of workers. Devices have one that `up` removes at its end."""
        return self.folder / "tmp"

    @contextmanager
    def running(self) -> Iterator[None]:
        self.disk.mkdir()
        self.temporary.mkdir()
        # A device listens behind the link, and is known by this end of it.
        self.link = chaos.Link((HERE, self.ports[LINKED]), (BEHIND, self.ports[LINKED]))
        thread = threading.Thread(target=self._supervise)
        try:
            with scratch(self.folder) as own, Supervisor(self.folder / "logs", print) as self.supervisor:
                self._start(own)
                thread.start()
                try:
                    yield
                finally:
                    self._ended.set()
                    thread.join()
                    # A process that is stopped would not hear that it should end.
                    self.send(SILENT, signal.SIGCONT)
        finally:
            self.link.close()

    def pid(self, name: str) -> int:
        """Of a part, as it runs now."""
        with self._lock:
            children = self.supervisor._children
            return next(child.process.pid for child in children if child.part.name == name)

    def kill(self, name: str) -> None:
        chaos.kill(self.pid(name))

    def send(self, name: str, number: signal.Signals) -> None:
        chaos.send(self.pid(name), number)

    def daemon(self, name: str) -> int | None:
        """Ray's, of a worker that has one by now."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid(name)).children(recursive=True):
                if child.name() == "raylet":
                    return child.pid
        return None

    def _supervise(self) -> None:
        while not self._ended.wait(chaos.LOOK_S):
            with self._lock:
                self.supervisor.check()

    def _start(self, own: Path) -> None:
        # Ray would have its processes give way to all others, of which a loaded machine has many.
        common = {"TMPDIR": str(own), "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
        start = self.supervisor.start
        start(Part("tracker", (sys.executable, "-m", "worker.tracker", "--port", str(self.tracker))))
        chaos.until(lambda: chaos.listening(self.tracker), START_S)
        start(Part(LINKED, self._device(LINKED, "--host", BEHIND, "--address", HERE), environment=common))
        small = chaos.with_own_disk(self._device(SMALL), self.disk)
        start(Part(SMALL, small, environment={**common, "TMPDIR": str(self.disk)}))
        start(Part(SILENT, self._device(SILENT), environment=common))
        settings = {"TMPDIR": str(self.temporary), "SHAPEWRIGHT_DATABASE_URL": self.url}
        for name in WORKERS:
            argv = (sys.executable, "-c", WORKER, str(self.tracker), str(self.folder), name)
            start(Part(name, argv, environment={**common, **settings}))

    def _device(self, name: str, *more: str) -> tuple[str, ...]:
        where = ("--tracker", f"{HERE}:{self.tracker}", "--port", str(self.ports[name]))
        serve = (sys.executable, "-m", "tests.soak.cpu_time_device", "device", "serve")
        return (*serve, *where, "--key", KEY, "--id", name, *more)
