"""Q-learning's own: steps from what was measured, mostly from what is fast, in the direction that was learned."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from tests.fakes import RATES, TASK, Time, latency_s
from tests.searching import measured_round
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import TheorySettings
from tuner.search.policy.qlearning import QLearningSearch, QLearningSettings

SPACE = space_of(TASK)
THEORY = TheorySettings(samples=200)
ONE = SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=[24], target=TASK.target, max_kernels=4).at_rates(
    RATES
)


def tried(
    rounds: int, settings: QLearningSettings, task: SearchTask = ONE, time: Time = latency_s, seed: int = 0
) -> tuple[list[MicroKernel], list[list[MicroKernel]]]:
    """The kernels of theory's round and of the following ones."""
    model = PairCostModel(task)
    policy = QLearningSearch(task, space_of(task), model, seed, settings)
    first, *others = (
        [each.kernel for each in measured_round(policy, model, time=time, task=task)] for _ in range(rounds + 1)
    )
    return first, others


def test_every_kernel_is_a_step_from_one_that_was_measured() -> None:
    known, others = tried(5, QLearningSettings(theory=THEORY), TASK)
    for kernels in others:
        near = {after for kernel in known for after in SPACE.neighbours(kernel)}
        assert kernels
        assert near.issuperset(kernels)
        known += kernels


def test_fast_kernels_are_started_from() -> None:
    """With a large gamma from the fastest alone, while it has untried neighbours."""
    first, (second, *_) = tried(1, QLearningSettings(gamma=1e9, theory=THEORY))
    times = {kernel: latency_s(ONE, kernel, ONE.instances[0].shape) for kernel in first}
    fastest = min(times, key=times.__getitem__)
    assert set(second) <= set(SPACE.neighbours(fastest))
    # With none from any.
    first, (second, *_) = tried(1, QLearningSettings(gamma=0.0, theory=THEORY))
    assert not set(second) <= set(SPACE.neighbours(fastest))


def test_it_goes_the_way_that_paid() -> None:
    """Down a slope of one axis: what was learned at some kernels is used at others."""

    def slope(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return 1e-6 * 1.3 ** kernel["nv"] * (1 + 0.01 * kernel["mr"])

    def mean_s(epsilon: float) -> float:
        """Of the last rounds' kernels, over seeds."""
        settings = QLearningSettings(epsilon=epsilon, least_epsilon=epsilon, gamma=1.0, theory=THEORY)
        last = [rounds for seed in range(2) for rounds in tried(7, settings, time=slope, seed=seed)[1][-3:]]
        return fmean(slope(ONE, kernel, {}) for kernels in last for kernel in kernels)

    assert mean_s(0.0) < mean_s(1.0)


def test_where_nothing_could_be_measured_kernels_are_drawn_until_patience_ends() -> None:
    settings = QLearningSettings(patience=20, theory=THEORY)
    policy = QLearningSearch(TASK, SPACE, PairCostModel(TASK), 0, settings)
    seen: set[MicroKernel] = set()
    while suggestions := policy.suggest(1000):
        assert seen.isdisjoint(each.kernel for each in suggestions)
        seen |= {each.kernel for each in suggestions}
        policy.update(
            [MeasureResult(e.kernel, e.instances[0], error_kind=ErrorKind.CRASH, error="") for e in suggestions]
        )
    assert 20 <= len(seen) < 20 + settings.kernels_per_round
