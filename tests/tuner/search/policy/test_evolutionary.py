"""Evolutionary search's own: the set of theory, and suggestions that the set would gain from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from tests.fakes import TASK, measured
from tuner.program.task import SearchTask
from tuner.records import MeasureResult
from tuner.rules import layout_group, safe_kernel, space_of
from tuner.rules.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import EvolutionarySearch, EvolutionSettings, Suggestion, TheorySettings
from tuner.search.policy.evolutionary import most_diverse

QUICK = EvolutionSettings(population=48, generations=2, theory=TheorySettings(300))
SAFE = safe_kernel(TASK)


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


def test_the_second_round_is_of_unlike_kernels_that_theory_finds_good() -> None:
    policy = Search()
    first = measured_round(policy)
    kernels = [suggestion.kernel for suggestion in policy.suggest(1000)]
    assert 4 <= len(kernels) <= QUICK.diverse_kernels - len(first)
    unlike = [sum(a != b for a, b in zip(one.values, other.values, strict=True)) for one, other in pairwise(kernels)]
    assert min(unlike) >= 2
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


def test_rounds_without_gain_are_bounded() -> None:
    settings = EvolutionSettings(16, generations=1, theory=TheorySettings(20), max_idle_rounds=2, least_gain=9.0)
    policy = Search(settings=settings)
    policy.update([result for s in policy.suggest(1000) for result in measured(TASK, s.kernel, *s.instances)])
    rounds = 0
    while policy.suggest(10):
        rounds += 1
        assert rounds < 10
    assert rounds == 2


def test_kernels_of_several_rules_are_compared_over_all_their_axes() -> None:
    one, near, far = (MicroKernel("one", 1, (("a", value), ("b", 1))) for value in (1, 2, 3))
    other = MicroKernel("other", 1, (("a", 1), ("c", 1)))
    assert most_diverse([near, far, other], [one], 2) == [other, near]
    assert most_diverse([near], [one], 5) == [near]
