"""The child processes of `shapewright up`: started with a marker, restarted when they die, terminated at the end."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from shapewright.cli.output import ExitCode
from shapewright.cli.rotation import rotate
from shapewright.watchdog import DEADLINE_S, GRACE_S, marked_environment

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0
"""After running this long a child counts as healthy: its next restart has the first delay again."""
STOP_S = 15.0
"""The time after which a part that was told to end is killed; a worker may need most of it to give its job back."""
TAIL_LINES = 5
MAX_DEATHS = 5
"""Deaths in a row, before all parts were ready, after which `up` ends."""
MAX_SAID = 300
"""Characters of the line that a part said last."""


@dataclass(frozen=True, slots=True)
class Part:
    """One child process. If it is ``essential`` and dies before `up` is ready, `up` ends with it: what keeps it from
    starting is better said at once. ``environment`` is added to this process's; secrets go there, because every user
    of the machine can read a command line."""

    name: str
    argv: tuple[str, ...]
    essential: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Child:
    part: Part
    process: subprocess.Popen[bytes]
    started_s: float
    delay_s: float = FIRST_DELAY_S
    due_s: float | None = None
    deaths: int = 0
    """Deaths in a row."""

    def cannot_start(self, code: int) -> bool:
        """Whether it is no use to start it again: its options can never work, or it died each time."""
        return self.part.essential or code == ExitCode.REFUSED or self.deaths >= MAX_DEATHS


@dataclass
class Supervisor:
    """Starts parts and restarts those that die. A context manager: leaving it terminates everything that was started.

    ``logs`` is the directory that takes each part's output, ``say`` gets a line for each restart. Once ``settled`` is
    set, essential parts are restarted as well. Not thread-safe.
    """

    logs: Path
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    settled: bool = False
    up_id: str = field(default_factory=lambda: secrets.token_hex(16))
    _children: list[_Child] = field(default_factory=list)
    _watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        self._watchdog = self._spawn_watchdog()
        return self

    def start(self, part: Part) -> None:
        """Start a part. Its output is appended to ``NAME.log``, which is rotated."""
        self._children.append(_Child(part, self._spawn(part), self.clock()))

    def check(self) -> str | None:
        """Restart dead parts whose delay is over; a message if an essential part died before all were ready.

        Call it often: it also rotates the logs.
        """
        if self._watchdog is not None and self._watchdog.poll() is not None:
            self._watchdog = self._spawn_watchdog()
        for child in self._children:
            rotate(self._log_of(child.part))
            code = child.process.poll()
            if code is None:
                continue
            if not self.settled and child.cannot_start(code):
                return f"{child.part.name} ended with {exit_text(code)}; {self.tail(child.part.name)}"
            self._restart(child, code)
        return None

    def alive(self, name: str) -> bool:
        return any(child.part.name == name and child.process.poll() is None for child in self._children)

    def tail(self, name: str) -> str:
        """The last lines that a part has printed."""
        path = self.logs / f"{name}.log"
        if not path.exists():
            return f"it has not written {path}"
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"the end of {path}:", *(f"  {line}" for line in lines)])

    def stop(self) -> None:
        """Terminate the parts, the last started first so that none misses one it needs;
        then let the watchdog terminate what is left."""
        for child in reversed(self._children):
            _end(child.process)
        self._children.clear()
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=GRACE_S + DEADLINE_S)
            self._watchdog = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _restart(self, child: _Child, code: int) -> None:
        """Restart after a delay that doubles with every death in a row."""
        now = self.clock()
        if child.due_s is None:
            if now - child.started_s >= STEADY_S:
                child.delay_s, child.deaths = FIRST_DELAY_S, 0
            child.due_s, child.deaths = now + child.delay_s, child.deaths + 1
            why = f" ({last})" if (last := self._last_line(child.part)) else ""
            self.say(f"{child.part.name} ended with {exit_text(code)}{why}; starting it again in {child.delay_s:g} s")
            child.delay_s = min(LONGEST_DELAY_S, child.delay_s * 2)
        elif now >= child.due_s:
            child.process, child.started_s, child.due_s = self._spawn(child.part), now, None

    def _last_line(self, part: Part) -> str:
        """What it said last, for a reason is found there most of the time."""
        lines = self._log_of(part).read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:MAX_SAID]

    def _spawn(self, part: Part) -> subprocess.Popen[bytes]:
        # Appending, so that what is written after a rotation begins at the new end of the file.
        with self._log_of(part).open("ab") as log:
            return subprocess.Popen(
                part.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**marked_environment(self.up_id), **part.environment},
                # A terminal's Ctrl-C reaches `up` alone, which then ends its parts in order.
                start_new_session=True,
            )

    def _log_of(self, part: Part) -> Path:
        return self.logs / f"{part.name}.log"

    def _spawn_watchdog(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "shapewright.watchdog", self.up_id],
            stdin=subprocess.PIPE,
            env=marked_environment(self.up_id),
            start_new_session=True,
        )


def exit_text(code: int) -> str:
    """``signal 9`` or ``exit code 1``, from a return code."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def command(*arguments: str) -> tuple[str, ...]:
    """A `shapewright` command line run by this very interpreter."""
    return (sys.executable, "-m", "shapewright", *arguments)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=STOP_S)


def wait_until(
    ready: Callable[[], bool], deadline_s: float, check: Callable[[], str | None], stopped: Callable[[float], bool]
) -> str | None:
    """Wait for ``ready``. None once it is, "" if stopped, a message if ``check`` returns one. Raises TimeoutError."""
    until = time.monotonic() + deadline_s
    while not ready():
        if (message := check()) is not None:
            return message
        if stopped(0.1):
            return ""
        if time.monotonic() > until:
            raise TimeoutError(f"not ready after {deadline_s:g} s")
    return None
