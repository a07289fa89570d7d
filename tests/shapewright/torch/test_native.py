"""Loops of libraries of several threads in PyTorch: on the threads of its own operators, for many callers and forks."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shapewright.loading import load
from shapewright.torch import native
from shapewright.torch.arguments import PACE_BYTES
from tests.shapewright.libraries import SMALL, save_for_two_threads
from tests.shares import chosen

BEGIN = """
import os, sys, threading
import torch
import shapewright as sw
from shapewright.loading import load
from shapewright.torch.tuned_module import bound_whole

torch.set_num_threads(2)
sw.torch.provide(sys.argv[1])
library = load(sys.argv[1])
(plan,) = bound_whole(library.digest, library.workload).plans.values()
x, y = torch.rand(24, 24), torch.rand(24, 24)
right = x @ y  # what PyTorch runs on threads waits for ever in a process that was forked
wrong = []

def call():
    found = torch.ops.shapewright.call([x, y], [24, 24], plan)
    if not torch.allclose(found, right, rtol=1e-4):
        wrong.append(found)

def threads():
    return len(os.listdir("/proc/self/task"))

def at_once(count):
    some = [threading.Thread(target=call) for _ in range(count)]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()
    assert not wrong
"""
SHARED = """
torch.rand(1 << 20).exp()  # on two threads
before = threads()
for _ in range(20):
    call()
assert threads() == before, (before, threads())
"""
FEW = """
call()
before, seen = threads(), []
def calls():
    torch.ops.shapewright.call([x, y], [24, 24], plan)
    seen.append(threads())
one = threading.Thread(target=calls)
one.start()
one.join()
assert seen and seen[0] <= before + 2, (before, seen)  # the caller, and another for its loops
"""
MANY = """
for _ in range(3):
    at_once(40)
call()
"""
FORKED = """
call()
child = os.fork()
if not child:
    call()
    at_once(4)
    os._exit(0 if not wrong else 1)
assert os.waitpid(child, 0)[1] == 0
call()
assert not wrong
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_for_two_threads(tmp_path_factory.mktemp("two") / "library")


@pytest.mark.parametrize(
    "script",
    chosen([SHARED + FORKED], [SHARED + FORKED, FEW, MANY]),
    ids=["PyTorch's threads and a fork", "a new thread", "many callers"],
)
def test_loops_run_on_pytorchs_threads_for_any_caller(script: str, folder: Path) -> None:
    command = [sys.executable, "-c", BEGIN + script, str(folder)]
    # Threads that spin after their work would take the cores of those that have some.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "6"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def launchers_anew() -> Iterator[None]:
    """Nothing is known of compilers, before and after."""
    native._compiled.cache_clear()
    yield
    native._compiled.cache_clear()


@pytest.mark.usefixtures("launchers_anew")
@pytest.mark.parametrize("lack", ["no compiler", "one that fails", "no OpenMP"])
def test_where_nothing_can_be_shared_there_is_a_pool(
    lack: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if lack == "no OpenMP":
        monkeypatch.setattr(torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    if lack == "one that fails":
        (tmp_path / "cc").write_text("#!/bin/sh\necho no licence >&2; exit 1\n")
        (tmp_path / "cc").chmod(0o755)
    library = load(folder)
    with caplog.at_level(logging.INFO):
        assert not native.share_threads(library)
    x, y, out = torch.rand(7, SMALL), torch.rand(SMALL, SMALL), torch.zeros(7, SMALL)
    library(x, y, out)
    torch.testing.assert_close(out, x @ y)
    assert ("a pool beside PyTorch's" in caplog.text) is (lack != "no OpenMP")
    assert ("no licence" in caplog.text) is (lack == "one that fails")


def test_a_failing_part_fails_the_call() -> None:
    """And the others are computed: OpenMP cannot end a loop."""
    code = native.native()
    assert code is not None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    launch = ctypes.CFUNCTYPE(ctypes.c_int, kind, ctypes.c_void_p, ctypes.c_int)(native.address_of(code, "launch"))
    seen: list[int] = []

    def part(number: int, group: int, data: int) -> int:
        seen.append(number)
        return int(number == 1)

    assert launch(kind(part), None, 3) == -1
    assert sorted(seen) == [0, 1, 2]
    assert launch(kind(lambda number, *_: 0), None, 0) == 0


def test_a_chain_has_no_more_threads_than_pytorch() -> None:
    code = native.native()
    assert code is not None
    openmp, seen = ctypes.CDLL(None), list[int]()

    def entry(*_: object) -> int:
        seen.append(openmp.omp_get_num_threads())
        return 0

    number, place = ctypes.c_int, ctypes.c_void_p
    kept = ctypes.CFUNCTYPE(number, place, place, number, place)(entry)
    call = (ctypes.c_int64 * 3)(ctypes.cast(kept, place).value or 0, 0, 0)
    run = native.chain_runner(code)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert run(ctypes.addressof(call), 1, 2, *[None] * 3, ctypes.create_string_buffer(PACE_BYTES), None) == 0
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 2]


def test_a_chain_by_itself_opens_no_region_for_its_loops() -> None:
    """Else the threads that it is to do without would be waited for at every loop."""
    code = native.native()
    assert code is not None
    openmp, seen = ctypes.CDLL(None), list[int]()
    number, place = ctypes.c_int, ctypes.c_void_p
    part = ctypes.CFUNCTYPE(number, number, place, place)
    launch = ctypes.CFUNCTYPE(number, part, place, number)(native.address_of(code, "launch"))

    def counted(*_: object) -> int:
        seen.append(openmp.omp_get_num_threads())
        return 0

    kept = part(counted)
    entry = ctypes.CFUNCTYPE(number, place, place, number, place)(lambda *_: launch(kept, None, 2))
    call = (ctypes.c_int64 * 3)(ctypes.cast(entry, place).value or 0, 0, 0)
    run = native.chain_runner(code)
    pace, before = Pace(code), torch.get_num_threads()
    code.expect_threads(2)
    try:
        torch.set_num_threads(2)
        for _ in range(3):
            assert run(ctypes.addressof(call), 1, 2, *[None] * 3, pace.memory, None) == 0
    finally:
        torch.set_num_threads(before)
    # The first two are made together.
    assert seen == [2, 2, 2, 2, 1, 1]


class Pace:
    """What native.c knows of a chain's pace."""

    def __init__(self, code: ctypes.CDLL) -> None:
        self.memory = ctypes.create_string_buffer(PACE_BYTES)
        self._goes_alone, self._learn = code.goes_alone, code.learn
        self._learn.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)

    def calls(self, number: int, together: int, alone: int) -> int:
        """Make so many, which take so long; how many were made alone."""
        times = 0
        for _ in range(number):
            is_alone = self._goes_alone(self.memory)
            times += is_alone
            self._learn(self.memory, is_alone, alone if is_alone else together)
        return times


@pytest.fixture
def pace() -> Pace:
    code = native.native()
    assert code is not None
    return Pace(code)


def test_whichever_takes_less_is_taken(pace: Pace) -> None:
    pace.calls(100, together=1000, alone=1500)
    assert pace.calls(1000, together=1000, alone=1500) <= 20
    # Others want the cores now.
    assert pace.calls(1000, together=20_000, alone=3000) >= 950
    # And now no longer.
    pace.calls(1000, together=1000, alone=1500)
    assert pace.calls(1000, together=1000, alone=1500) <= 20


def test_the_way_that_takes_much_longer_is_tried_the_more_seldom(pace: Pace) -> None:
    assert pace.calls(40, together=1000, alone=1700) == 1
    assert pace.calls(1000, together=1000, alone=1700) <= 40


def test_ways_that_take_about_as_long_are_both_tried_soon(pace: Pace) -> None:
    assert pace.calls(16, together=1000, alone=1020) >= 3


def test_a_first_call_and_one_that_was_interrupted_say_little(pace: Pace) -> None:
    pace.calls(1, together=10**9, alone=10**9)
    pace.calls(100, together=1000, alone=1500)
    pace.calls(1, together=10**9, alone=10**9)
    assert pace.calls(100, together=1000, alone=1500) <= 5


@pytest.mark.usefixtures("launchers_anew")
def test_the_code_is_there_once_whoever_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop finds its team by a variable of the code."""
    compile_it, compiled = subprocess.run, list[object]()
    others = [threading.Thread(target=native.native) for _ in range(3)]

    def compiling(*args: Any, **options: Any) -> Any:
        compiled.append(args)
        if len(compiled) == 1:
            for each in others:
                each.start()
            others[0].join(timeout=0.5)
        return compile_it(*args, **options)

    monkeypatch.setattr(subprocess, "run", compiling)
    assert native.native() is not None
    for each in others:
        each.join(timeout=60)
    assert len(compiled) == 1
