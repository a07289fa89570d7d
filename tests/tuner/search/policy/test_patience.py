"""Patience counts kernels since the set last gained, whatever batches the results come in."""

from __future__ import annotations

import numpy as np

from tests.fakes import TASK
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import space_of
from tuner.search.policy.patience import Patience

RNG = np.random.default_rng(0)
KERNELS = list(dict.fromkeys(space_of(TASK).sample(RNG) for _ in range(40)))
FIRST, SECOND = TASK.instances[:2]


def results(*seconds: float) -> list[MeasureResult]:
    """Of one kernel after another at the first instance."""
    return [MeasureResult(kernel, FIRST, time) for kernel, time in zip(KERNELS, seconds, strict=False)]


def test_it_is_over_after_so_many_kernels_without_a_gain() -> None:
    patience = Patience(TASK, kernels=3)
    patience.add(results(1e-6, 2e-6, 1e-6))
    assert not patience.is_over, "two after the first time of the instance"
    patience.add([MeasureResult(KERNELS[2], FIRST, 2e-6)])
    assert not patience.is_over, "the same kernel again"
    patience.add([MeasureResult(KERNELS[3], FIRST, error_kind=ErrorKind.CRASH, error="signal 11")])
    assert patience.is_over


def test_a_gain_begins_it_anew_and_many_small_ones_add_up() -> None:
    patience = Patience(TASK, kernels=3, least_gain=0.1)
    # A fifth of the weight: each is worth log(1 / 0.75) / 5, 0.058.
    patience.add(results(1e-6, 0.75e-6, 0.9e-6, 0.75**2 * 1e-6))
    assert not patience.is_over
    patience.add([MeasureResult(kernel, FIRST, 1e-6) for kernel in KERNELS[4:7]])
    assert patience.is_over


def test_the_first_time_of_another_instance_is_a_gain_unless_it_has_no_weight() -> None:
    weights = [1.0, 0.0, 1.0, 1.0, 1.0]
    task = SearchTask(
        TASK.workload, shape_vars=TASK.shape_vars, instances=TASK.instances, weights=weights, target=TASK.target
    )
    patience, without = Patience(TASK, kernels=2), Patience(task, kernels=2)
    for each in (patience, without):
        each.add([*results(1e-6, 1e-6), MeasureResult(KERNELS[2], SECOND, 1e-6)])
    assert (patience.is_over, without.is_over) == (False, True)


def test_after_a_restart_it_is_as_patient_as_before() -> None:
    told = results(*np.random.default_rng(1).uniform(1e-6, 2e-6, 40).tolist())
    for end in range(1, len(told)):
        one, other = Patience(TASK, kernels=10), Patience(TASK, kernels=10)
        one.add(told[:end])
        for result in told[:end]:
            other.add([result])
        assert one.is_over == other.is_over
    assert one.is_over
