"""What every CostModel does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes import TASK, latency_s, measured
from tests.searching import small_models
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import estimate_s, extents_of, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import CostModel, PairCostModel

Make = Callable[[SearchTask, int], CostModel]
MAKERS: dict[str, Make] = {"pair": PairCostModel}
SHAPES = [instance.shape for instance in TASK.instances]
HELD_OUT = [{"T": t} for t in (3, 16, 40, 100)]


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer trees, and rates that are not fitted: what these do is tested where they stand."""
    small_models(monkeypatch)


def kernels(count: int, seed: int = 0, task: SearchTask = TASK) -> list[MicroKernel]:
    space, rng = space_of(task), np.random.default_rng(seed)
    return list(dict.fromkeys(space.sample(rng) for _ in range(count)))


def truth(found: list[MicroKernel], shapes: list[dict[str, int]]) -> NDArray[np.float64]:
    return np.array([[latency_s(TASK, kernel, shape) for shape in shapes] for kernel in found])


def theory(found: list[MicroKernel], shapes: list[dict[str, int]]) -> NDArray[np.float64]:
    extents = extents_of(TASK.workload, shapes)
    return estimate_s(TASK, found, extents)


def rank_correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Spearman's, over the kernels at each shape, in the mean."""
    ranks = [values.argsort(axis=0).argsort(axis=0) for values in (one, other)]
    return float(np.mean([np.corrcoef(ranks[0][:, at], ranks[1][:, at])[0, 1] for at in range(one.shape[1])]))


def trained(make: Make, count: int = 60, seed: int = 0) -> CostModel:
    model = make(TASK, seed)
    results = kernels(count)
    for batch in (results[: count // 2], results[count // 2 :]):
        model.update([result for kernel in batch for result in measured(TASK, kernel, *TASK.instances)])
    return model


def test_before_the_first_result_it_is_theory_alone(make: Make) -> None:
    result = kernels(20)
    prediction = make(TASK, 0).predict(result, SHAPES)
    assert prediction.latency_s.shape == prediction.spread.shape == (len(result), len(SHAPES))
    assert prediction.latency_s == pytest.approx(theory(result, SHAPES))
    assert (prediction.spread > 0).all()


def test_few_results_move_the_level_and_not_the_order(make: Make) -> None:
    model, results = make(TASK, 0), kernels(30)
    model.update([result for kernel in results[:3] for result in measured(TASK, kernel, TASK.instances[2])])
    ratio = model.predict(results, SHAPES).latency_s / theory(results, SHAPES)
    assert ratio == pytest.approx(np.full_like(ratio, ratio[0, 0]))
    assert ratio[0, 0] != pytest.approx(1.0)


def test_it_learns_a_device_that_theory_does_not_know(make: Make) -> None:
    unseen = kernels(60, seed=7)
    real = truth(unseen, HELD_OUT)
    before = rank_correlation(theory(unseen, HELD_OUT), real)
    prediction = trained(make).predict(unseen, HELD_OUT)
    after = rank_correlation(prediction.latency_s, real)
    assert after > 0.8
    assert 1 - after < 0.5 * (1 - before)
    assert np.median(np.abs(np.log(prediction.latency_s / real))) < 0.25
    assert np.isfinite(prediction.spread).all()


@pytest.mark.usefixtures("small")
def test_failed_results_are_passed_over(make: Make) -> None:
    entries = kernels(20)
    with_failures, without = make(TASK, 0), make(TASK, 0)
    results = [result for kernel in entries for result in measured(TASK, kernel, *TASK.instances)]
    failed = [MeasureResult(kernel, TASK.instances[0], error_kind=ErrorKind.CRASH) for kernel in kernels(9, seed=3)]
    with_failures.update([*failed, *results])
    without.update(results)
    assert (with_failures.predict(entries, SHAPES).latency_s == without.predict(entries, SHAPES).latency_s).all()
    only = make(TASK, 0)
    only.update(failed)
    assert only.predict(entries, SHAPES).latency_s == pytest.approx(theory(entries, SHAPES))


@pytest.mark.usefixtures("small")
def test_the_same_seed_and_results_give_the_same_answers(make: Make) -> None:
    result = kernels(25, seed=5)
    one, other = (trained(make, 20, seed=3).predict(result, SHAPES) for _ in range(2))
    assert (one.latency_s == other.latency_s).all()
    assert (one.spread == other.spread).all()


@pytest.mark.usefixtures("small")
def test_a_prediction_does_not_depend_on_what_it_is_asked_with(make: Make) -> None:
    model, result = trained(make, 20), kernels(12, seed=5)
    together = model.predict(result, SHAPES).latency_s
    alone = np.stack([model.predict([kernel], SHAPES).latency_s[0] for kernel in result])
    by_shape = np.stack([model.predict(result, [shape]).latency_s[:, 0] for shape in SHAPES], axis=1)
    assert together == pytest.approx(alone)
    assert together == pytest.approx(by_shape)


@pytest.mark.usefixtures("small")
def test_empty_shapes_can_be_asked_about_and_learned_from(make: Make) -> None:
    rows = ShapeVar("T", range(0, 9))
    task = SearchTask("dense", {"m": rows, "n": 96, "k": 32}, (rows,), instances=[0, 8], target=TASK.target)
    model = make(task, 0)
    model.update([result for kernel in kernels(20, task=task) for result in measured(task, kernel, *task.instances)])
    assert np.isfinite(model.predict(kernels(5, seed=2, task=task), task.shapes()).latency_s).all()
