"""Roller's own: tiles that are full, few for each instance, settled before anything is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from tests.fakes import TASK, Time, latency_s
from tests.searching import measured_round
from tuner.program.job.task import SearchTask
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import Suggestion, TheorySettings
from tuner.search.policy.roller import RollerSearch, RollerSettings

SPACE = space_of(TASK)
QUICK = RollerSettings(beam=3, tiles_per_instance=4, theory=TheorySettings(samples=200))


def rolled(task: SearchTask = TASK, settings: RollerSettings = QUICK, time: Time = latency_s) -> list[Suggestion]:
    """What it measures after theory's set, to its end."""
    model = PairCostModel(task)
    policy = RollerSearch(task, space_of(task), model, 0, settings)
    measured_round(policy, model, time=time, task=task)
    found: list[Suggestion] = []
    while suggestions := measured_round(policy, model, time=time, task=task):
        assert len(suggestions) <= QUICK.kernels_per_round
        found += suggestions
    return found


@pytest.fixture(scope="module")
def tiles() -> list[Suggestion]:
    return rolled()


def test_nothing_larger_is_both_legal_and_faster_by_theory(tiles: list[Suggestion]) -> None:
    theory, shapes = PairCostModel(TASK).theory, [instance.shape for instance in TASK.instances]
    for suggestion in tiles:
        larger = [near for (_, up), near in SPACE.steps(suggestion.kernel).items() if up > 0]
        latency_s = theory.predict([suggestion.kernel, *larger], shapes).latency_s
        assert any((latency_s[1:, at] >= latency_s[0, at]).all() for at in range(len(shapes)))


def test_each_instance_has_its_first_tiles_and_no_more(tiles: list[Suggestion]) -> None:
    counts = Counter(instance for suggestion in tiles for instance in suggestion.instances)
    # Those of theory's set are measured already.
    assert 0 < max(counts.values()) <= QUICK.tiles_per_instance
    assert len(tiles) > 3


def test_they_are_good_by_theory(tiles: list[Suggestion]) -> None:
    """Better than nearly all that are drawn at random."""
    rng, model = np.random.default_rng(0), PairCostModel(TASK)
    drawn = [SPACE.sample(rng) for _ in range(300)]
    for suggestion in tiles[:3]:
        shapes = [instance.shape for instance in suggestion.instances]
        times = model.predict([suggestion.kernel, *drawn], shapes).latency_s
        assert (times[1:] < times[0]).mean(axis=0).min() < 0.1


def test_what_was_measured_changes_nothing(tiles: list[Suggestion]) -> None:
    def other(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return 1e-6 * (1 + kernel["mr"])

    assert [(each.kernel, each.instances) for each in rolled(time=other)] == [
        (each.kernel, each.instances) for each in tiles
    ]


def test_instances_without_weight_get_no_tiles() -> None:
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, weights=[0.0, 1.0, 0.0, 0.0, 1.0],
        target=TASK.target,
    )  # fmt: skip
    instances = {task.instances.index(instance) for each in rolled(task) for instance in each.instances}
    assert instances == {1, 4}
