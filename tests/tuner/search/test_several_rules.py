"""A search where two rules take the workload: both are searched, the device decides between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

from tests.fakes import TASK, latency_s
from tests.rival import Rival, registered
from tests.searching import Bench, make_quick, records
from tests.shares import every
from tuner.library.dispatcher import Dispatcher
from tuner.program.job.task import SearchTask
from tuner.schedule import RULES, layout_group
from tuner.schedule.space import MicroKernel
from tuner.search.policy import POLICIES


@pytest.fixture(autouse=True)
def two_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_quick(monkeypatch)
    with registered(Rival()):
        yield


def rivals_time(factor: float) -> Bench:
    """A device on which the rival's best kernel takes ``factor`` times what the other rule's do."""

    def time(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        if kernel.rule != "rival":
            return latency_s(task, kernel, shape)
        return factor * (1e-7 + 3e-9 * shape["T"]) * (1 + 0.2 * abs(kernel["depth"] - 5) + 1 / kernel["width"])

    bench = Bench()
    bench.runner.time = time
    return bench


@pytest.mark.parametrize("policy", every(3, POLICIES))
def test_both_rules_are_searched(policy: str) -> None:
    bench = rivals_time(1.0)
    bench.tune(80, policy=policy)
    results = Counter(kernel.rule for kernel in {result.kernel for result in bench.results})
    assert results["rival"] > 0
    assert results["x86_contraction"] > 0


@pytest.mark.parametrize("slowness", [0.01, pytest.param(100.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("factor", "winner"), [(0.05, "rival"), (1000.0, "x86_contraction")])
def test_the_device_decides_between_rules_whatever_theory_says(factor: float, winner: str, slowness: float) -> None:
    bench = rivals_time(factor)
    with registered(Rival(slowness)):
        tuned = bench.tune(60)
    kernels = Dispatcher.from_json(tuned.dispatch).kernels
    assert {kernel.rule for kernel in kernels} == {winner}
    assert len({layout_group(TASK, kernel) for kernel in kernels}) == 1


def test_records_of_a_rule_that_is_no_more_are_passed_over() -> None:
    """A job goes on under a later version: what other rules measured for it counts and teaches nothing."""
    before = rivals_time(0.05)
    before.tune(40)
    rival = [result for result in before.results if result.kernel.rule == "rival"]
    assert rival
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.schedule.registry.RULES", RULES)
        after = Bench()
        tuned = after.tune(30, past=records(before.results))
    assert {result.kernel.rule for result in after.results} == {"x86_contraction"}
    assert {kernel.rule for kernel in Dispatcher.from_json(tuned.dispatch).kernels} == {"x86_contraction"}
