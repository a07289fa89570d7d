"""A new library against the one that is served, on a synthetic device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.fakes import TASK, FakeRunner
from tuner.library.dispatcher import Dispatcher, Leaf, Node
from tuner.measure import never
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.comparison import FAILED_RATIO, MIN_NOISE, Contender, compare

SPACE = space_of(TASK)
A, B = (SPACE.sample(np.random.default_rng(seed)) for seed in (1, 2))


def library(*kernels: MicroKernel, digest: str = "new", task: SearchTask = TASK, **toolchain: str) -> Contender:
    """The first kernel up to m = 24, the last one beyond."""
    tree = Leaf(0) if len(kernels) == 1 else Node("m", 24, Leaf(0), Leaf(1))
    return Contender(digest, Dispatcher(task, kernels, 0, tree), digest.encode(), toolchain)


def device(a_s: float = 1e-6, b_s: float = 2e-6) -> FakeRunner:
    def time(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return a_s if kernel == A else b_s

    return FakeRunner(time=time)


def test_the_ratio_is_of_the_weighted_times_of_the_served_one_over_the_new_one() -> None:
    result = compare(TASK, device(), library(A), library(B, digest="served"))
    assert result is not None
    assert (result.against, result.verified) == ("served", True)
    assert result.ratio == pytest.approx(2.0)
    assert result.noise == MIN_NOISE
    back = compare(TASK, device(), library(B), library(A, digest="served"))
    assert back is not None and back.ratio == pytest.approx(0.5)


def test_they_are_timed_in_turns_and_each_comes_first_as_often_as_second() -> None:
    runner = device()
    compare(TASK, runner, library(A), library(B, digest="served"))
    pairs = [runner.ran[start : start + 2] for start in range(0, len(runner.ran), 2)]
    assert all({kernel for kernel, _ in pair} == {A, B} for pair in pairs)
    assert all(len({instance for _, instance in pair}) == 1 for pair in pairs)
    firsts = [pair[0][0] == A for pair in pairs]
    assert abs(sum(firsts) - len(firsts) / 2) <= 1


def test_a_clock_that_drifts_is_no_difference() -> None:
    runner = device(1e-6, 1e-6)
    runner.slowdown = lambda trials: 1.0 + trials % 2
    result = compare(TASK, runner, library(A), library(B, digest="served"))
    assert result is not None and result.ratio == pytest.approx(1.0)


def test_readings_that_disagree_are_noise() -> None:
    rng = np.random.default_rng(0)

    def time(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return float(1e-6 * np.exp(0.2 * rng.standard_normal()))

    result = compare(TASK, FakeRunner(time=time), library(A), library(B, digest="served"))
    assert result is not None and result.noise > 2 * MIN_NOISE


def test_where_both_run_the_same_kernel_nothing_is_timed() -> None:
    runner = device()
    same = compare(TASK, runner, library(A), library(A, digest="served"))
    assert same is not None and (same.ratio, same.noise, same.verified) == (1.0, 0.0, True)
    assert runner.ran == []
    partly = compare(TASK, runner, library(A, A), library(A, B, digest="served"))
    assert partly is not None and partly.ratio > 1
    assert {instance.shape["T"] for _, instance in runner.ran} == {61, 128}
    # Another compiler makes another kernel of it.
    compare(TASK, runner, library(A), library(A, digest="served", tvm="0.1"))
    assert {instance.shape["T"] for _, instance in runner.ran} == {1, 7, 24, 61, 128}


def test_the_served_one_may_be_of_a_job_with_other_variables() -> None:
    rows = ShapeVar("S", range(1, 65))
    task = SearchTask("dense", {"m": 2 * rows, "n": 96, "k": 32}, (rows,), target=TASK.target)
    result = compare(TASK, device(), library(A, B), library(B, A, digest="served", task=task))
    assert result is not None and result.ratio != pytest.approx(1.0)


@pytest.mark.parametrize("kind", [ErrorKind.WRONG, ErrorKind.CRASH])
def test_a_library_that_is_wrong_loses(kind: ErrorKind) -> None:
    runner = device()
    run = runner.run

    def failing(task: SearchTask, requests: Any, interrupted: Any = None) -> list[MeasureResult]:
        bad = requests[0].build.binary == b"served"
        return [replace(r, latency_s=None, error_kind=kind) if bad else r for r in run(task, requests)]

    runner.run = failing  # type: ignore[method-assign]
    won = compare(TASK, runner, library(A), library(B, digest="served"))
    assert won is not None and (won.ratio, won.verified) == (FAILED_RATIO, True)
    lost = compare(TASK, runner, library(A, digest="served"), library(B, digest="other"))
    assert lost is not None and not lost.verified


def test_it_is_not_said_where_the_device_fails_or_time_is_short_or_the_rules_have_changed() -> None:
    runner = device()
    runner.crashes = lambda kernel: False
    run = runner.run
    runner.run = lambda task, requests, interrupted=never: [  # type: ignore[method-assign]
        replace(r, latency_s=None, error_kind=ErrorKind.RUN_TIMEOUT) for r in run(task, requests)
    ]
    assert compare(TASK, runner, library(A), library(B, digest="served")) is None
    slow = device()
    slow.run_s = 10.0
    assert compare(TASK, slow, library(A), library(B, digest="served"), limit_s=15.0, clock=slow.clock) is None
    older = replace(B, rule_version=0)
    assert compare(TASK, device(), library(A), library(older, digest="served")) is None


def test_a_comparison_that_is_interrupted_says_nothing() -> None:
    runner = device()
    run = runner.run
    runner.run = lambda task, requests, interrupted=never: (  # type: ignore[method-assign]
        [] if interrupted() else run(task, requests)
    )
    assert compare(TASK, runner, library(A), library(B, digest="served"), interrupted=lambda: True) is None
    assert compare(TASK, runner, library(A), library(B, digest="served")) is not None
