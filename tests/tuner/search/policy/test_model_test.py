"""A test of the cost model: which kernels, and when they say that it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import TASK
from tuner.records import MeasureResult
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured
from tuner.search.policy.model_test import BAD_LOSS, ModelTest

SPACE = space_of(TASK)
COUNT = 8


def kernels(count: int, seed: int) -> list[MicroKernel]:
    rng = np.random.default_rng(seed)
    return list(dict.fromkeys(SPACE.sample(rng) for _ in range(count)))


TRIED = kernels(20, 0)
POOL = [kernel for kernel in kernels(400, 1) if kernel not in TRIED]
MODEL = PairCostModel(TASK)
WEIGHTS = np.array([0.0, 0.25, 0.25, 0.25, 0.25])


def new_test(count: int = COUNT) -> ModelTest:
    return ModelTest(TASK, MODEL, WEIGHTS, POOL, TRIED, count)


def results(test: ModelTest, factors: list[float]) -> Measured:
    """Its kernels, at so many times what the model expects of each; another one is the fastest everywhere."""
    found = [MeasureResult(TRIED[0], instance, 1e-12) for instance in TASK.instances]
    for (kernel, (at,)), factor in zip(test.picks, factors, strict=True):
        expected_s = float(MODEL.predict([kernel], [TASK.instances[at].shape]).latency_s[0, 0])
        found.append(MeasureResult(kernel, TASK.instances[at], factor * expected_s))
    return Measured(found)


def test_kernels_are_untried_not_hopeless_and_measured_where_there_is_a_weight() -> None:
    test = new_test()
    chosen = [kernel for kernel, _ in test.picks]
    assert COUNT - 2 <= len(chosen) == len(set(chosen)) <= COUNT
    assert not set(chosen) & set(TRIED)
    shapes = [instance.shape for instance in TASK.instances]
    mean = np.log(MODEL.predict(POOL, shapes).latency_s) @ WEIGHTS
    behind = dict(zip(POOL, mean - mean.min(), strict=True))
    assert all(behind[kernel] < BAD_LOSS for kernel in chosen)
    assert all(len(indices) == 1 and WEIGHTS[indices[0]] > 0 for _, indices in test.picks)


def test_a_model_that_is_right_passes() -> None:
    test = new_test()
    assert not test.is_failed(results(test, [1.0] * len(test.picks)))


@pytest.mark.parametrize(("surprises", "is_failed"), [(2, False), (3, True), (COUNT, True)])
def test_it_fails_by_several_kernels_that_are_faster_than_its_intervals(surprises: int, is_failed: bool) -> None:
    test = new_test()
    factors = [0.3] * surprises + [1.0] * (len(test.picks) - surprises)
    assert test.is_failed(results(test, factors)) is is_failed


def test_it_fails_by_one_that_is_the_fastest_of_all() -> None:
    test = new_test()
    kernel, (at,) = test.picks[0]
    measured = Measured(
        [MeasureResult(kernel, TASK.instances[at], 1e-6), MeasureResult(TRIED[0], TASK.instances[at], 2e-6)]
    )
    assert test.is_failed(measured)


def test_kernels_that_failed_or_were_not_measured_say_nothing() -> None:
    assert not new_test().is_failed(Measured())


@pytest.mark.parametrize(("pool", "count"), [([], COUNT), (POOL, 0)])
def test_without_kernels_there_is_no_test(pool: list[MicroKernel], count: int) -> None:
    test = ModelTest(TASK, MODEL, WEIGHTS, pool, TRIED, count)
    assert test.picks == []
    assert not test.is_failed(Measured())


def test_the_last_kernels_of_a_small_space_are_tested() -> None:
    # The promising ones are all that there are: none is left to be chosen of those that are expected to be slow.
    test = ModelTest(TASK, MODEL, WEIGHTS, POOL[:1], TRIED, COUNT)
    assert [kernel for kernel, _ in test.picks] == POOL[:1]
