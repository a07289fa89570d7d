"""Evolutionary search's own: the set of theory, and suggestions that the set would gain from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tests.fakes import TASK, measured
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult
from tuner.schedule import default_kernel, layout_group, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import Suggestion, TheorySettings
from tuner.search.policy.diverse import most_diverse
from tuner.search.policy.evolutionary import EvolutionarySearch, EvolutionSettings

QUICK = EvolutionSettings(population=48, generations=2, theory=TheorySettings(300))
SAFE = default_kernel(TASK)


class Search(EvolutionarySearch):
    """With a cost model that is trained whenever the policy is told of results."""

    def __init__(self, task: SearchTask = TASK, settings: EvolutionSettings = QUICK) -> None:
        self.model = PairCostModel(task)
        super().__init__(task, space_of(task), self.model, 0, settings)

    def update(self, results: Sequence[MeasureResult]) -> None:
        self.model.update(results)
        super().update(results)


@pytest.mark.parametrize("limit", [1, 2, 8])
def test_the_set_of_theory_is_small_of_one_layout_and_better_than_the_safe_kernel(limit: int) -> None:
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, target=TASK.target, max_kernels=limit
    )
    chosen = Search(task).theory
    assert 1 <= len(chosen) == len(set(chosen)) <= limit
    assert len({layout_group(task, kernel) for kernel in chosen}) == 1
    shapes = [instance.shape for instance in task.instances]
    latency = PairCostModel(task).predict([*chosen, SAFE], shapes).latency_s
    assert latency[:-1].min(axis=0).sum() <= latency[-1].sum()


def test_the_first_round_times_the_safe_kernel_too() -> None:
    kernels = [suggestion.kernel for suggestion in Search().suggest(1000)]
    assert SAFE in kernels
    assert len(kernels) <= TASK.max_kernels + 1


def measured_round(policy: Search, task: SearchTask = TASK, trials: int = 1000) -> list[Suggestion]:
    suggestions = policy.suggest(trials)
    policy.update([result for s in suggestions for result in measured(task, s.kernel, *s.instances)])
    return suggestions


def axes_apart(one: MicroKernel, other: MicroKernel) -> int:
    """The axes in which two kernels of one rule differ."""
    names = {name for kernel in (one, other) for name, _ in kernel.values}
    return sum(one.get(name) != other.get(name) for name in names)


def test_the_second_round_is_of_unlike_kernels_that_theory_finds_good() -> None:
    policy = Search()
    first = measured_round(policy)
    kernels = [suggestion.kernel for suggestion in policy.suggest(1000)]
    assert 4 <= len(kernels) <= QUICK.diverse_kernels - len(first)
    assert min(axes_apart(one, other) for one, other in pairwise(kernels)) >= 2
    shapes = [instance.shape for instance in TASK.instances]
    latency = PairCostModel(TASK).predict([*kernels, *policy.theory], shapes).latency_s
    mean = np.log(latency).mean(axis=1)
    assert mean[: len(kernels)].max() <= mean.min() + 2 * QUICK.diverse_loss


def test_few_trials_are_not_spent_on_variety() -> None:
    policy = Search()
    first = measured_round(policy)
    second = measured_round(policy, trials=8 * len(first))
    assert len(second) <= QUICK.kernels_per_round + 1 + QUICK.neighbours_per_round


def test_a_kernel_is_measured_on_few_instances_where_it_is_expected_to_help() -> None:
    policy = Search()
    measured_round(policy)
    measured_round(policy)
    suggestions = policy.suggest(1000)
    assert len(suggestions) <= QUICK.kernels_per_round + 1 + QUICK.neighbours_per_round
    assert all(1 <= len(suggestion.instances) <= QUICK.instances_per_kernel for suggestion in suggestions)


def test_neighbours_of_the_fastest_are_tried_whatever_the_model_says() -> None:
    policy = Search()
    tried: list[MicroKernel] = []
    while len(tried) < QUICK.diverse_kernels:
        tried += [suggestion.kernel for suggestion in measured_round(policy)]
    near = {kernel for other in tried for kernel in space_of(TASK).neighbours(other)}
    wanted = [suggestion.kernel for suggestion in policy.suggest(1000)]
    assert len(near.intersection(wanted)) >= QUICK.neighbours_per_round


def test_instances_without_weight_get_few_trials() -> None:
    weights = [0.0, 0.0, 0.0, 0.0, 1.0]
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, weights=weights, target=TASK.target
    )
    policy = Search(task)
    policy.update([result for s in policy.suggest(1000) for result in measured(task, s.kernel, *s.instances)])
    counts = np.zeros(len(task.instances))
    for _ in range(5):
        for suggestion in policy.suggest(30):
            policy.update(measured(task, suggestion.kernel, *suggestion.instances))
            for instance in suggestion.instances:
                counts[task.instances.index(instance)] += 1
    assert counts[-1] >= counts[:-1].max()


ENDING = EvolutionSettings(16, generations=1, theory=TheorySettings(200), max_idle_rounds=2, least_gain=9.0)
"""No round is expected to gain enough."""
ONE = SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=[24], target=TASK.target, max_kernels=4)


def as_predicted(policy: Search) -> list[MicroKernel]:
    """A round on a device that does what the model expects, but for a grain that tells kernels apart."""
    suggestions = policy.suggest(1000)
    policy.update([
        MeasureResult(each.kernel, at, predicted * (1.02 + int(each.kernel.id, 16) % 1000 * 1e-6))
        for each in suggestions
        for at, predicted in zip(each.instances, each.predicted_s, strict=True)
    ])  # fmt: skip
    return [each.kernel for each in suggestions]


def test_before_it_ends_the_model_is_put_to_the_test_by_unlike_kernels() -> None:
    policy = Search(ONE, ENDING)
    # Theory's set, the diverse round, and the rounds that gain too little.
    tried = {kernel for _ in range(2 + ENDING.max_idle_rounds) for kernel in as_predicted(policy)}
    test = as_predicted(policy)
    assert ENDING.test_kernels // 2 < len(test) <= ENDING.test_kernels
    assert min(axes_apart(kernel, other) for kernel in test for other in tried) >= 3


def test_after_a_test_that_the_model_passes_the_neighbours_of_the_fastest_are_measured_until_none_is_left() -> None:
    policy, tried = Search(ONE, ENDING), list[MicroKernel]()
    for _ in range(80):
        if not (round_ := as_predicted(policy)):
            break
        tried += round_
    else:
        raise AssertionError("80 rounds, and no end")
    times = policy._measured.latencies_at(ONE.instances[0])
    centres = sorted(times, key=times.__getitem__)[:5]
    assert any(set(space_of(ONE).neighbours(centre)) <= set(tried) for centre in centres)


def test_a_model_that_fails_the_test_is_not_believed() -> None:
    policy = Search(ONE, ENDING)
    for _ in range(2 + ENDING.max_idle_rounds):
        as_predicted(policy)
    surprise = policy.suggest(1000)
    policy.update([
        MeasureResult(each.kernel, at, 0.5 * predicted)
        for each in surprise
        for at, predicted in zip(each.instances, each.predicted_s, strict=True)
    ])  # fmt: skip
    # Evolution again, which tries children of what was fastest, and another test after the rounds that gain nothing.
    rounds = [as_predicted(policy) for _ in range(1 + ENDING.max_idle_rounds)]
    assert all(rounds)
    assert len(as_predicted(policy)) <= ENDING.test_kernels


def test_tests_that_fail_do_not_go_on_for_ever() -> None:
    policy = Search(ONE, EvolutionSettings(16, generations=1, theory=TheorySettings(200), max_failed_tests=0,
                                           max_idle_rounds=1, least_gain=9.0))  # fmt: skip
    rounds = 0
    while suggestions := policy.suggest(1000):
        policy.update([result for s in suggestions for result in measured(ONE, s.kernel, *s.instances)])
        rounds += 1
        assert rounds < 80


def test_kernels_of_several_rules_are_compared_over_all_their_axes() -> None:
    one, near, far = (MicroKernel("one", 1, (("a", value), ("b", 1))) for value in (1, 2, 3))
    other = MicroKernel("other", 1, (("a", 1), ("c", 1)))
    assert most_diverse([near, far, other], [one], 2) == [other, near]
    assert most_diverse([near], [one], 5) == [near]
    assert most_diverse([], [one], 5) == []
