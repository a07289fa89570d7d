"""Libraries of several threads, called by many: right, and the process does not fill with their pools' threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapewright import callers
from shapewright.library import Library
from shapewright.loading import load
from tests.shapewright.libraries import SMALL, save_for_two_threads
from tuner.errors import InvalidInput

MAX_TASKS = 60
"""Threads of a process that has called: those of NumPy and of the interpreter, and pools of two for a dozen callers."""

BEGIN = """
import os, sys, threading, time
import numpy as np
from shapewright.loading import load

library = load(sys.argv[1])
wrong = []

def call():
    x, y = (np.random.default_rng(0).random((24, 24), np.float32) for _ in range(2))
    out = np.zeros((24, 24), np.float32)
    library(x, y, out)
    if not np.allclose(out, x @ y, rtol=1e-4):
        wrong.append(out)

def at_once(count):
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
"""
MANY = """
for _ in range(4):
    at_once(100)
until = time.monotonic() + 60
while len(os.listdir("/proc/self/task")) > int(sys.argv[2]):
    assert time.monotonic() < until, len(os.listdir("/proc/self/task"))
    time.sleep(0.01)
"""
FORKED = """
call()
at_once(20)
child = os.fork()
if not child:
    call()
    at_once(20)
    os._exit(0 if not wrong else 1)
assert os.waitpid(child, 0)[1] == 0
call()
assert not wrong
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_for_two_threads(tmp_path_factory.mktemp("two") / "library")


@pytest.fixture(scope="module")
def library(folder: Path) -> Library:
    return load(folder)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], object]:
    """Runs something in a new thread that may not have a pool, and raises what it raises."""
    monkeypatch.setattr(callers, "MAX_CALLERS", 0)

    def run(function: Callable[[], object]) -> object:
        found: list[object] = []

        def catching() -> None:
            try:
                found.append(function())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=catching)
        thread.start()
        thread.join(timeout=60)
        assert not thread.is_alive()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return run


def operands(rows: int = 7) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows)
    x, y = rng.random((rows, SMALL), np.float32), rng.random((SMALL, SMALL), np.float32)
    return x, y, np.zeros((rows, SMALL), np.float32)


@pytest.mark.parametrize("script", [MANY, FORKED], ids=["many threads", "a fork"])
def test_callers_do_not_fill_a_process_with_threads_and_may_fork(script: str, folder: Path) -> None:
    command = [sys.executable, "-c", BEGIN + script, str(folder), str(MAX_TASKS)]
    # Threads that wait actively would take long to end where others want the cores.
    waiting = {**os.environ, "TVM_THREAD_POOL_SPIN_COUNT": "0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=waiting)
    assert done.returncode == 0, done.stderr


def test_a_call_that_is_handed_over_computes(library: Library, elsewhere: Callable[..., object]) -> None:
    for rows in (1, 7, 32, 50):
        x, y, out = operands(rows)
        elsewhere(lambda x=x, y=y, out=out: library(x, y, out))
        np.testing.assert_allclose(out, x @ y, rtol=1e-4)


def test_a_call_that_is_handed_over_is_refused_where_it_was_made(
    library: Library, elsewhere: Callable[..., object]
) -> None:
    x, y, out = operands()
    with pytest.raises(InvalidInput, match="operands"):
        elsewhere(lambda: library(x, y, out[:-1]))
    with pytest.raises(InvalidInput, match="float64"):
        elsewhere(lambda: library(x.astype(np.float64), y, out))
    # The thread that called for it goes on.
    elsewhere(lambda: library(x, y, out))
    np.testing.assert_allclose(out, x @ y, rtol=1e-4)


def test_those_who_call_for_others_are_no_more_than_the_cores(
    library: Library, elsewhere: Callable[..., object]
) -> None:
    def many() -> None:
        threads = [threading.Thread(target=library, args=operands()) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    elsewhere(many)
    helpers = [thread for thread in threading.enumerate() if thread.name == "shapewright-caller"]
    assert 1 <= len(helpers) <= max(1, len(os.sched_getaffinity(0)) // 2)
