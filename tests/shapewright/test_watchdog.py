"""The supervisor and the watchdog of `up`, on small processes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shapewright import watchdog
from shapewright.cli.supervise import Part, Supervisor, wait_until
from shapewright.watchdog import marked

DEADLINE_S = 30.0
SLEEPER = "import time; time.sleep(300)"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(300)\n"
)
RUNAWAY = (
    "import subprocess, sys, time\n"
    f"subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True)\n"
    "time.sleep(300)\n"
)


@pytest.fixture
def up_id() -> Iterator[str]:
    result = secrets.token_hex(16)
    yield result
    for process in marked(result):
        process.kill()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, up_id: str, said: list[str]) -> Iterator[Supervisor]:
    with Supervisor(tmp_path / "logs", said.append, up_id=up_id) as result:
        yield result


def python(name: str, code: str, essential: bool = False) -> Part:
    return Part(name, (sys.executable, "-c", code), essential=essential)


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def of_session_of_its_own(up_id: str) -> list[psutil.Process]:
    return [process for process in marked(up_id) if os.getsid(process.pid) == process.pid]


def test_stopping_leaves_nothing_not_even_what_left_for_another_session(up_id: str, supervisor: Supervisor) -> None:
    supervisor.start(python("runaway", RUNAWAY))
    # The part, the process that it started, and the watchdog: each leads a session.
    until(lambda: len(of_session_of_its_own(up_id)) == 3)
    supervisor.stop()
    assert marked(up_id) == []


def test_one_that_will_not_end_is_killed(up_id: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], env=watchdog.marked_environment(up_id), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert watchdog.terminate_marked(up_id, grace_s=0.3) == []
    assert not psutil.pid_exists(process.pid)
    process.stdout.close()


def test_processes_of_another_up_are_left_alone(up_id: str) -> None:
    other = secrets.token_hex(16)
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], env=watchdog.marked_environment(other))
    try:
        until(lambda: len(marked(other)) == 1)
        watchdog.terminate_marked(up_id)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(DEADLINE_S)


def test_the_guard_ends_everything_when_its_up_is_killed(up_id: str, tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from shapewright.cli.supervise import Part, Supervisor\n"
        f"with Supervisor(Path({str(tmp_path)!r}), print, up_id={up_id!r}) as supervisor:\n"
        f"    supervisor.start(Part('runaway', (sys.executable, '-c', {RUNAWAY!r})))\n"
        "    time.sleep(300)\n"
    )
    up = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: len(of_session_of_its_own(up_id)) == 3)
    up.kill()
    up.wait(DEADLINE_S)
    until(lambda: marked(up_id) == [])


def test_a_part_that_dies_is_started_again_and_later_each_time(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start(python("worker", "raise SystemExit(3)"))
    until(lambda: supervisor.check() is None and len(said) == 3)
    assert said == [f"worker ended with exit code 3; starting it again in {delay} s" for delay in ("0.5", "1", "2")]


def test_a_part_that_was_killed_runs_again(supervisor: Supervisor, said: list[str], up_id: str) -> None:
    supervisor.start(python("worker", SLEEPER))
    until(lambda: len(marked(up_id)) == 2)
    (first,) = (process for process in marked(up_id) if SLEEPER in process.cmdline())
    first.kill()
    until(lambda: supervisor.check() is None and bool(said) and supervisor.alive("worker"))
    assert said == ["worker ended with signal 9; starting it again in 0.5 s"]


def test_the_end_of_an_essential_part_is_told_with_its_last_lines(supervisor: Supervisor) -> None:
    supervisor.start(python("api", "print('port 8321 is in use'); raise SystemExit(2)", essential=True))
    message = wait_until(lambda: False, DEADLINE_S, supervisor.check, threading.Event().wait)
    assert message is not None
    assert "api ended with exit code 2" in message
    assert "port 8321 is in use" in message


def test_waiting_has_a_deadline_hears_of_deaths_and_can_be_stopped() -> None:
    def quiet() -> str | None:
        return None

    assert wait_until(lambda: True, 1.0, quiet, lambda _s: False) is None
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        wait_until(lambda: False, 0.0, quiet, lambda _s: False)
    assert wait_until(lambda: False, 60.0, lambda: "it died", lambda _s: False) == "it died"
    assert wait_until(lambda: False, 60.0, quiet, lambda _s: True) == ""
