"""The service in several processes on one port: Python runs one thread at a time, a machine has several cores.

Each process listens at the port itself (SO_REUSEPORT), and the kernel spreads connections over them. This module is
also what they run: ``python -m service.processes`` reads its settings from standard input, a pipe whose other end only
the supervisor holds. When the pipe closes the process ends, however the supervisor has ended.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from tempfile import TemporaryDirectory
from types import FrameType

from service.app import DEFAULTS, create_app
from service.metrics import SHARED
from service.paths import parse_prefix
from service.run import PortInUse, Server, bind, raise_file_limit, reserve, serve, url_of
from service.settings import Settings
from tuner import logs
from tuner.errors import ShapewrightError
from tuner.storage.sql import open_storage

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 5.0
STEADY_S = 60.0
"""After running this long a process counts as healthy: its next restart has the first delay again."""
START_S = 60.0
GRACE_S = 5.0
"""How much longer than it may take to shut down a process is waited for, before it is killed."""
LOOK_S = 0.1

_log = logging.getLogger(__name__)


class NotStarted(ShapewrightError):
    """A process of the service ended, or did nothing, while it was starting."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every process of a service is given. ``storage_url`` may hold a password: it is on no command line."""

    storage_url: str
    host: str
    port: int
    settings: Settings = DEFAULTS
    root_path: str = ""
    shutdown_s: float = 5.0
    log_format: str = "text"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        data = json.loads(text)
        return Plan(**{**data, "settings": Settings(**data["settings"])})


def serve_together(plan: Plan, count: int, on_ready: Callable[[str], None]) -> None:
    """Run ``count`` processes until SIGINT or SIGTERM, and start another for each that dies. One is this process.

    ``on_ready`` is called with the service's URL once all of them accept connections. Raises InvalidInput, PortInUse,
    and NotStarted.
    """
    if count == 1:
        return serve(
            plan.storage_url,
            plan.host,
            plan.port,
            settings=plan.settings,
            root_path=plan.root_path,
            shutdown_s=plan.shutdown_s,
            on_ready=on_ready,
        )
    parse_prefix(plan.root_path)
    open_storage(plan.storage_url).close()
    raise_file_limit()
    with reserve(plan.host, plan.port) as port, _stopped_by_signals() as stop, _shared_counts() as environment:
        told = replace(plan, port=port)
        children = [_Child(told, environment) for _ in range(count)]
        try:
            for child in children:
                child.await_start(stop)
            if not stop.is_set():
                on_ready(url_of(plan.host, port))
            while not stop.wait(LOOK_S):
                for child in children:
                    child.revive()
        finally:
            _end(children, plan.shutdown_s + GRACE_S)


@contextmanager
def _shared_counts() -> Iterator[dict[str, str]]:
    """The environment of processes that share the counts of /metrics, in a directory that lives as long as they do."""
    with TemporaryDirectory(prefix="shapewright-metrics-") as directory:
        # One that is given may hold counts of others, and stays.
        yield {SHARED: directory} | os.environ


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Child:
    """One process, and when it is to be started again."""

    def __init__(self, plan: Plan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._environment = environment
        self._delay_s = FIRST_DELAY_S
        self._due: float | None = None
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            # A terminal's Ctrl-C reaches the supervisor alone, which then ends them in order.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(self._plan.to_json() + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            _log.warning("process %d of the service ended before it was told what to do", self.process.pid)

    def await_start(self, stop: threading.Event) -> None:
        """Returns once it accepts connections. Raises NotStarted."""
        ready = threading.Thread(target=self._read_ready, daemon=True)
        ready.start()
        while ready.is_alive() and not stop.is_set():
            ready.join(LOOK_S)
            if time.monotonic() - self._started > START_S:
                raise NotStarted(f"a process of the service was not ready after {START_S:g} s; its log says why")
        if not stop.is_set() and self.process.poll() is not None:
            raise NotStarted(f"a process of the service ended with {self._ended()} at its start; its log says why")

    def _read_ready(self) -> None:
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            self.process.wait()

    def revive(self) -> None:
        """Start it again if it has died, after a delay that doubles with every death in a row."""
        now = time.monotonic()
        if self._due is not None:
            if now >= self._due:
                self._due = None
                self.close()
                self._start()
        elif self.process.poll() is not None:
            if now - self._started >= STEADY_S:
                self._delay_s = FIRST_DELAY_S
            _log.warning("a process of the service ended with %s; another in %g s", self._ended(), self._delay_s)
            self._due, self._delay_s = now + self._delay_s, min(LONGEST_DELAY_S, 2 * self._delay_s)

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()

    def _ended(self) -> str:
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(children: list[_Child], within_s: float) -> None:
    until = time.monotonic() + within_s
    for child in children:
        child.process.terminate()
    for child in children:
        try:
            child.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.close()


# -- in each of the processes -----------------------------------------------------------------------------------------
def main() -> int:
    plan = Plan.from_json(sys.stdin.readline())
    logs.set_up(plan.log_format)
    try:
        listener = bind(plan.host, plan.port, shared=True)
    except PortInUse as error:
        _log.error("%s", error)
        return 1
    storage = open_storage(plan.storage_url)
    try:
        app = create_app(storage, settings=plan.settings, root_path=plan.root_path)
        threading.Thread(target=_end_with_supervisor, daemon=True).start()
        Server(app, plan.shutdown_s, lambda url: print(url, flush=True)).run(sockets=[listener])
    finally:
        storage.close()
        listener.close()
    return 0


def _end_with_supervisor() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
