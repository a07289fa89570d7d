"""Droplet search's own: descents to a local optimum, the threshold, and the axis that helped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.fakes import TASK, Time, latency_s
from tests.searching import measured_round
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import default_kernel, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.policy import TheorySettings
from tuner.search.policy.droplet import DropletSearch, DropletSettings, axes_between

SPACE = space_of(TASK)
SAFE = default_kernel(TASK)
SETTINGS = DropletSettings(theory=TheorySettings(samples=200))
ONE = SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=[24], target=TASK.target, max_kernels=4)


class Descent:
    """A search, and what it measured at each instance."""

    def __init__(self, time: Time = latency_s, task: SearchTask = TASK) -> None:
        self.task, self.time, self.model = task, time, PairCostModel(task)
        self.policy = DropletSearch(task, space_of(task), self.model, 0, SETTINGS)
        self.times: dict[tuple[MicroKernel, int], float] = {}

    def round(self) -> list[MicroKernel]:
        suggestions = measured_round(self.policy, self.model, time=self.time, task=self.task)
        for each in suggestions:
            for instance in each.instances:
                at = self.task.instances.index(instance)
                self.times[each.kernel, at] = self.time(self.task, each.kernel, instance.shape)
        return [each.kernel for each in suggestions]

    def fastest(self, at: int) -> MicroKernel:
        own = {kernel: time for (kernel, index), time in self.times.items() if index == at}
        return min(own, key=own.__getitem__)

    @property
    def tried(self) -> set[MicroKernel]:
        return {kernel for kernel, _ in self.times}


def test_it_ends_where_no_neighbour_of_the_fastest_is_untried() -> None:
    descent = Descent()
    for _ in range(60):
        if not descent.round():
            break
    else:
        raise AssertionError("60 rounds, and no local optimum")
    # Of the one packed layout that is the best as a whole.
    centres = {descent.fastest(at) for at in range(len(TASK.instances))}
    closed = [centre for centre in centres if set(SPACE.neighbours(centre)) <= descent.tried]
    assert closed


def test_on_a_slope_of_one_axis_it_comes_to_the_bottom() -> None:
    def slope(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return 1e-6 * (1 + 0.1 * kernel["mb"])

    descent = Descent(slope, ONE)
    while descent.round():
        pass
    assert descent.fastest(0)["mb"] == 1


def test_less_than_the_threshold_is_no_gain() -> None:
    def nearly_flat(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return 1e-6 * (1 + int(kernel.id, 16) % 1000 / 1000 * 0.9 * SETTINGS.threshold)

    descent = Descent(nearly_flat, ONE)
    first = set(descent.round())
    centre = descent.fastest(0)
    while descent.round():
        pass
    assert descent.fastest(0) != centre, "or the test says nothing"
    assert descent.tried - first == set(SPACE.neighbours(centre)) - first


def test_the_axis_that_helped_comes_first() -> None:
    def slope(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
        return 1e-6 * (1 + 0.1 * kernel["mb"])

    descent = Descent(slope, ONE)
    descent.round()
    moves = 0
    before = descent.fastest(0)
    while tried := descent.round():
        if moves and descent.times[before, 0] > 1e-6 * 1.1:
            assert axes_between(before, tried[0]) == {"mb"}
        after = descent.fastest(0)
        moves += after != before
        before = after
    assert moves >= 2


def test_axes_between_kernels() -> None:
    (axis, _), near = next(iter(SPACE.steps(SAFE).items()))
    assert axes_between(SAFE, near) == {axis}
    assert axes_between(None, near) == frozenset()
    assert axes_between(MicroKernel("other", 1, near.values), near) == frozenset()
    wider = replace(SAFE, values=(*SAFE.values, ("further", 16)))
    assert axes_between(SAFE, wider) == axes_between(wider, SAFE) == frozenset()


def test_where_everything_fails_it_draws_a_few_kernels_and_ends() -> None:
    policy = DropletSearch(TASK, SPACE, PairCostModel(TASK), 0, SETTINGS)
    tried: set[MicroKernel] = set()
    while suggestions := policy.suggest(100):
        assert tried.isdisjoint(each.kernel for each in suggestions)
        tried |= {each.kernel for each in suggestions}
        policy.update(
            [MeasureResult(e.kernel, e.instances[0], error_kind=ErrorKind.CRASH, error="") for e in suggestions]
        )
    assert SETTINGS.most_starts == len(tried)
