"""Simulated annealing's own: chains that find what the model expects to be fast, and a batch that is varied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import TASK, measured
from tests.searching import measured_round
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured
from tuner.search.policy import TheorySettings
from tuner.search.policy.annealing import AnnealingSearch, AnnealingSettings, most_covering
from tuner.search.policy.set_so_far import Incumbents

SPACE = space_of(TASK)
QUICK = AnnealingSettings(chains=16, steps=20, random_share=0.0, theory=TheorySettings(samples=200))


def search(task: SearchTask = TASK, settings: AnnealingSettings = QUICK) -> tuple[AnnealingSearch, PairCostModel]:
    """After theory's round."""
    model = PairCostModel(task)
    policy = AnnealingSearch(task, space_of(task), model, 0, settings)
    measured_round(policy, model, task=task)
    return policy, model


def test_what_is_measured_is_what_the_set_is_expected_to_gain_most_by() -> None:
    model = PairCostModel(TASK)
    policy = AnnealingSearch(TASK, SPACE, model, 0, replace(QUICK, diversity=0.0))
    first = measured_round(policy, model)
    results = [result for each in first for result in measured(TASK, each.kernel, *each.instances)]
    weights = np.full(len(TASK.instances), 1 / len(TASK.instances))
    so_far, rng = Incumbents(TASK, model, Measured(results), weights), np.random.default_rng(0)
    found = [suggestion.kernel for suggestion in policy.suggest(1000)]
    gains = so_far.gains([*found, *(SPACE.sample(rng) for _ in range(300))])[0] @ weights
    assert gains[: len(found)].min() > np.quantile(gains[len(found) :], 0.9)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.5, 4), (1.0, 8)])
def test_a_share_of_the_batch_is_random(share: float, count: int) -> None:
    """With one chain that never moves from the fastest kernel, all others are drawn."""
    settings = AnnealingSettings(chains=1, steps=1, random_share=share, theory=TheorySettings(samples=200))
    policy, _ = search(settings=settings)
    suggestions = policy.suggest(1000)
    assert count <= len(suggestions) <= count + 1


def test_instances_without_weight_have_no_chains_and_few_trials() -> None:
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, weights=[0.0, 0.0, 0.0, 0.0, 1.0],
        target=TASK.target,
    )  # fmt: skip
    policy, _ = search(task)
    suggestions = policy.suggest(1000)
    assert suggestions
    assert {instance for each in suggestions for instance in each.instances} == {task.instances[-1]}


def test_it_ends_when_its_patience_does() -> None:
    settings = AnnealingSettings(chains=8, steps=5, patience=10, theory=TheorySettings(samples=200))
    model = PairCostModel(TASK)
    policy = AnnealingSearch(TASK, SPACE, model, 0, settings)
    kernels: list[MicroKernel] = []
    while suggestions := measured_round(policy, model, time=lambda task, kernel, shape: 1e-6):
        kernels += [each.kernel for each in suggestions]
        assert len(kernels) < 60
    assert len(kernels) >= 10


def kernel(**values: int) -> MicroKernel:
    return MicroKernel("toy", 1, tuple(values.items()))


def test_a_batch_covers_values_where_scores_are_alike() -> None:
    kernels = [kernel(a=1, b=1), kernel(a=1, b=1, c=0), kernel(a=2, b=2), kernel(a=1, b=2)]
    alike = np.zeros(4)
    assert most_covering(kernels, alike, 2, diversity=1.0) == [0, 2]
    assert most_covering(kernels, np.array([0.0, 0.5, 0.1, 0.4]), 3, diversity=0.0) == [1, 3, 2]
    # What is worth more than variety comes first all the same.
    assert most_covering(kernels, np.array([0.0, 0.0, 0.0, 9.0]), 2, diversity=1.0)[0] == 3
    assert most_covering(kernels, alike, 9, diversity=1.0) != []
    assert len(most_covering(kernels, alike, 9, diversity=1.0)) == 4
