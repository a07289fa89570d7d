"""Trials and verifications that are still running when nobody wants their answers any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fakes import FakeRunner
from tests.searching import Bench, known, make_quick
from tuner.library.dispatcher import Leaf
from tuner.measure import BuildResult, Interrupted, RunRequest, never
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult
from tuner.search import finalize
from tuner.search.pipeline import OVERRUN_S
from tuner.search.stopping import Cancelled

STEP_S = 0.25
ENDLESS_S = 1e6


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


@dataclass
class Slow(FakeRunner):
    """Takes ``trial_s`` for each request and ``verify_s`` for each shape, and asks meanwhile whether to go on."""

    trial_s: float = 0.0
    verify_s: float = 0.0
    interruptions: int = 0

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        results: list[MeasureResult] = []
        for request in requests:
            if not self._pass(self.trial_s, interrupted):
                break
            results += super().run(task, [request])
        return results

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        if not self._pass(self.verify_s * len(dims), interrupted):
            raise Interrupted("the answer is no longer wanted")
        return super().verify(task, build, dims)

    def _pass(self, seconds: float, interrupted: Callable[[], bool]) -> bool:
        until = self.clock.now_s + seconds
        while self.clock.now_s < until:
            self.clock.now_s += STEP_S
            if interrupted():
                self.interruptions += 1
                return False
        return True


def slow(trial_s: float = 0.0, verify_s: float = 0.0) -> tuple[Bench, Slow]:
    bench = Bench()
    bench.runner = runner = Slow(bench.clock, trial_s=trial_s, verify_s=verify_s)
    return bench, runner


def test_a_trial_is_killed_at_the_end_of_the_budget_and_the_library_is_theorys() -> None:
    bench, runner = slow(ENDLESS_S)
    began = bench.clock()
    tuned = bench.tune(seconds=10)
    assert bench.clock() - began <= 10 + OVERRUN_S
    assert (runner.interruptions, bench.results) == (1, [])
    assert known(tuned.summary.kernels) >= 1
    assert tuned.summary.ended_by == "seconds"
    assert all(event.data.get("count") != 0 for event in bench.recorder.events if event.kind == "trials")


def test_what_was_done_before_is_recorded() -> None:
    bench, runner = slow(3.0)
    tuned = bench.tune(seconds=10)
    assert 0 < len(bench.results) == tuned.summary.trials
    assert runner.interruptions == 1


@pytest.mark.parametrize("how", ["should_stop", "should_finish"])
def test_a_running_trial_is_not_waited_for_when_the_search_is_told_to_stop(how: str) -> None:
    bench, runner = slow(ENDLESS_S)
    began = bench.clock()
    stops: dict[str, Any] = {how: lambda: bench.clock() - began > 5.0}
    with pytest.raises(Cancelled):
        bench.tune(1000, **stops)
    assert bench.clock() - began <= 5.0 + 2 * STEP_S
    assert (runner.interruptions, bench.results) == (1, [])


def test_a_verification_is_not_waited_for_either() -> None:
    bench, runner = slow(verify_s=ENDLESS_S)
    with pytest.raises(Cancelled):
        bench.tune(30, should_stop=lambda: bench.clock() > 1_500.0)
    assert runner.interruptions == 1
    assert bench.clock() < 1_600.0


def test_fitting_the_dispatcher_is_not_waited_for_either(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, steps = Bench(), 0

    def fit(*given: Any) -> Leaf:
        nonlocal steps
        while steps < 100:
            steps += 1
            given[-1]()
        return Leaf(0)

    monkeypatch.setattr(finalize, "fit", fit)
    with pytest.raises(Cancelled):
        bench.tune(30, should_stop=lambda: steps == 7)
    assert steps == 7


def test_a_cancelled_search_gives_a_verification_up_that_takes_too_long() -> None:
    bench, runner = slow(verify_s=ENDLESS_S)
    with pytest.raises(Cancelled):
        bench.tune(1000, should_finish=lambda: len(runner.ran) >= 60)
    assert runner.interruptions == 1
    assert bench.clock() < 1_100.0
