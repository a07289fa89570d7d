"""Random search's own: instances in turn, and an end where the space has no other kernel."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.fakes import TASK, measured
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of
from tuner.schedule.space import KernelSpace, MicroKernel, SearchSpace
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import TheorySettings
from tuner.search.policy.random import RandomSearch

SPACE = space_of(TASK)
OWN = SPACE.spaces[0]


class FewKernels(SearchSpace):
    """A space with three kernels in it."""

    def sample(self, rng: np.random.Generator) -> MicroKernel:
        return SPACE.sample(np.random.default_rng(int(rng.integers(3))))


def search(task: SearchTask = TASK, space: KernelSpace = SPACE) -> RandomSearch:
    return RandomSearch(task, space, PairCostModel(task), 0, TheorySettings(100, 1))


def rounds(policy: RandomSearch, task: SearchTask, count: int) -> Counter[int]:
    """How often each instance, by its index, was suggested in ``count`` rounds after the first."""
    timed: Counter[int] = Counter()
    policy.update([result for s in policy.suggest(1000) for result in measured(task, s.kernel, *s.instances)])
    for _ in range(count):
        for suggestion in policy.suggest(1000):
            timed.update(task.instances.index(instance) for instance in suggestion.instances)
            policy.update(measured(task, suggestion.kernel, *suggestion.instances))
    return timed


def test_instances_with_a_weight_take_turns() -> None:
    timed = rounds(search(), TASK, 5)
    assert set(timed) == set(range(len(TASK.instances)))
    assert max(timed.values()) - min(timed.values()) <= 1
    weights = [0.0, 1.0, 0.0, 0.0, 1.0]
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, weights=weights, target=TASK.target
    )
    assert set(rounds(search(task), task, 3)) == {1, 4}


def test_it_ends_when_the_space_has_no_other_kernel() -> None:
    policy = search(space=FewKernels(OWN.rule, OWN.rule_version, OWN.axes, OWN.check, OWN.canonicalise))
    assert sum(rounds(policy, TASK, 5).values()) <= 3 * 2
    assert policy.suggest(100) == []
