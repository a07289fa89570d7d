"""Rates of theory, fitted again to what a search measures, on devices that theory itself makes up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fakes import WIDE, T
from tests.shares import every
from tests.tuner.calibration.observing import perturbed, shapes_of
from tuner.calibration import fit
from tuner.calibration.fit import Observed
from tuner.program.job.task import SearchTask
from tuner.program.target.rates import TYPICAL, Rates
from tuner.records import MeasureResult
from tuner.schedule import estimate_s, extents_of, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel, refit

TASK = SearchTask("dense", {"m": T, "n": 768, "k": 768}, (T,), instances=[4, 24, 61, 128], target=WIDE)
SPACE = space_of(TASK)


def kernels(count: int, seed: int) -> tuple[MicroKernel, ...]:
    rng = np.random.default_rng(seed)
    return tuple(SPACE.sample(rng) for _ in range(count))


def times(rates: Rates, drawn: tuple[MicroKernel, ...], task: SearchTask = TASK) -> np.ndarray:
    """[kernels, instances] seconds on a device of these rates."""
    extents = extents_of(task.workload, shapes_of(task))
    return np.asarray(estimate_s(task.at_rates(rates), drawn, extents))


def results(rates: Rates, drawn: tuple[MicroKernel, ...], noise: float = 0.03, seed: int = 0) -> list[MeasureResult]:
    """Each kernel at two of the instances."""
    rng = np.random.default_rng(seed)
    measured = times(rates, drawn) * np.exp(noise * rng.normal(size=(len(drawn), len(TASK.instances))))
    return [
        MeasureResult(kernel, TASK.instances[at], float(measured[row, at]))
        for row, kernel in enumerate(drawn)
        for at in (row % 2, 2 + row % 2)
    ]


@pytest.mark.parametrize("seed", every(4, range(4)))
def test_a_search_learns_the_rates_of_a_device_that_nobody_knows(seed: int) -> None:
    true, model = perturbed(seed), PairCostModel(TASK)
    unseen = kernels(60, 99)
    exact = np.log(times(true, unseen))

    def error() -> float:
        off = np.log(model.predict(unseen, shapes_of(TASK)).latency_s) - exact
        return float(np.median(np.abs(off - np.median(off))))

    before = error()
    # Two pairs each: of the first FIRST_PAIRS alone, the halves of few draws do not agree.
    model.update(results(true, kernels(refit.FIRST_PAIRS, seed)))
    assert model.rates != TYPICAL
    assert error() < 0.4 * before


def test_rates_that_are_right_stay_as_they_are_but_for_the_noise() -> None:
    model = PairCostModel(TASK)
    model.update(results(TYPICAL, kernels(refit.FIRST_PAIRS // 2, 0)))
    unseen = kernels(60, 99)
    ratio = times(model.rates, unseen) / times(TYPICAL, unseen)
    assert float(np.abs(np.log(ratio) - np.log(np.median(ratio))).max()) < 0.25


def test_rates_are_fitted_around_those_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "STEPS", 3)
    known = replace(TYPICAL, fork=50_000.0)
    model = PairCostModel(TASK.at_rates(known))
    model.update(results(perturbed(2), kernels(refit.FIRST_PAIRS // 2, 2)))
    assert model.rates.fork == pytest.approx(known.fork)  # one thread tells nothing of it


def test_noise_alone_changes_no_rates() -> None:
    drawn, rng = kernels(40, 0), np.random.default_rng(0)
    latency_s = times(TYPICAL, drawn) * np.exp(0.5 * rng.normal(size=(40, 4)))
    observed = Observed(TASK, drawn, tuple(shapes_of(TASK)), latency_s)
    assert refit.refitted([observed], TYPICAL, TYPICAL) == TYPICAL


def test_when_rates_are_fitted() -> None:
    first = refit.FIRST_PAIRS
    assert not refit.is_due(first - 1, 0)
    assert refit.is_due(first, 0)
    assert not refit.is_due(int(first * refit.GROWTH) - 1, first)
    assert refit.is_due(int(first * refit.GROWTH), first)
    assert not refit.is_due(refit.MAX_PAIRS + 1, first)


def test_one_kernel_has_no_halves_to_compare() -> None:
    observed = Observed(TASK, kernels(1, 0), tuple(shapes_of(TASK)), times(perturbed(1), kernels(1, 0)))
    assert refit.refitted([observed], TYPICAL, TYPICAL) == TYPICAL


def test_a_second_reading_says_nothing_of_how_well_a_pair_was_predicted() -> None:
    model, drawn = PairCostModel(TASK), kernels(10, 0)
    for batch in (results(TYPICAL, drawn), results(TYPICAL, drawn, seed=1)):
        model.update(batch)
        model.predict(drawn, shapes_of(TASK))
    assert model.interval_coverage is None
    model.update(results(TYPICAL, kernels(10, 1)))
    assert model.interval_coverage is not None
