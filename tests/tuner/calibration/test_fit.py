"""Rates are recovered from latencies that theory itself made, with noise, outliers and gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.shares import every
from tests.tuner.calibration.observing import TARGET, all_probes, observed_at, perturbed
from tuner.calibration import fit
from tuner.calibration.cpu import FITTED, SQUARES, square
from tuner.calibration.fit import Observed, clock_alone, errors
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule import estimate_s, extents_of

SEEDS = range(8)


def fitted(observed: list[Observed]) -> Rates:
    """As a calibration fits them where the device told no levels."""
    return fit.fitted(observed, TYPICAL, FITTED)


def held_out(seed: int) -> tuple[list[Observed], list[Observed]]:
    """Some products without noise to judge by, and the others with it."""
    true = perturbed(seed)
    return observed_at(true, noise=0.0)[4:], observed_at(true, noise=0.03, seed=seed)[:4]


@pytest.mark.parametrize("seed", every(8, SEEDS))
def test_other_layers_are_told_by_rates_that_were_fitted_to_some(seed: int) -> None:
    unseen, seen = held_out(seed)
    before, after = (np.median(errors(unseen, rates)) for rates in (clock_alone(seen, TYPICAL), fitted(seen)))
    assert after < 0.04
    assert after < before / 2


@pytest.mark.parametrize("threads", every(2, [4, 1]))
def test_the_clock_and_what_is_asked_of_it_most_come_out_as_they_were(threads: int) -> None:
    true = replace(TYPICAL, clock_hz=2.2e9, l3_bytes=20.0, fork=30_000.0)
    found = fitted(observed_at(true, noise=0.01, threads=threads))
    assert found.clock_hz == pytest.approx(true.clock_hz, rel=0.1)
    assert found.l3_bytes == pytest.approx(true.l3_bytes, rel=0.3)
    assert found.fork == pytest.approx(true.fork if threads > 1 else TYPICAL.fork, rel=0.3)


@pytest.mark.parametrize("seed", every(2, [0, 1]))
def test_packing_at_the_call_is_told_by_products_of_new_operands(seed: int) -> None:
    """Squares of another size than any that was measured, with panels copied, and transposed."""
    true = perturbed(seed)
    found = fitted(observed_at(true, noise=0.03, seed=seed))
    for text in SQUARES:
        task = square(text, TARGET, 1)
        kernels = [kernel for probe in all_probes() if probe.task == task for kernel in probe.kernels]
        extents = extents_of(task.workload, [{"S": 90}, {"S": 600}])
        now, then = (estimate_s(task.at_rates(rates), kernels, extents) for rates in (found, true))
        assert {kernel["pack"] for kernel in kernels} >= {0, 2}
        assert np.median(np.abs(np.log(now / then))) < 0.04


def test_what_theory_of_products_does_not_read_stays_typical(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "STEPS", 3)
    found = fitted(observed_at(perturbed(1)))
    assert (found.function, found.operation, found.memory_bytes, found.dot) == (
        TYPICAL.function, TYPICAL.operation, TYPICAL.memory_bytes, TYPICAL.dot,
    )  # fmt: skip


@pytest.mark.parametrize("seed", every(8, SEEDS, first=2))
def test_outliers_and_failures_do_little_harm(seed: int) -> None:
    """One in ten takes three times as long, one in five was not measured."""
    unseen, seen = held_out(seed)
    rng = np.random.default_rng(seed)
    spoilt = []
    for each in seen:
        latency_s = np.where(rng.random(each.latency_s.shape) < 0.1, 3 * each.latency_s, each.latency_s)
        latency_s[rng.random(latency_s.shape) < 0.2] = np.nan
        spoilt.append(replace(each, latency_s=latency_s))
    assert sum(each.count for each in spoilt) < sum(each.count for each in seen)
    assert np.median(errors(unseen, fitted(spoilt))) < 0.06


def test_a_fit_of_few_measurements_stays_near_what_is_typical() -> None:
    one = observed_at(TYPICAL, noise=0.0)[0]
    few = replace(one, kernels=one.kernels[:1], latency_s=one.latency_s[:1] * np.array([1.0, 1.3, 0.8, 1.2, 1.0]))
    found = fitted([few])
    assert all(0.2 < getattr(found, name) / getattr(TYPICAL, name) < 5 for name in ("loads", "decode", "l3_bytes"))


def test_the_same_measurements_give_the_same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "STEPS", 3)
    seen = observed_at(perturbed(2))[:3]
    assert fitted(seen) == fitted(seen)


def test_nothing_measured_is_no_reason_for_rates() -> None:
    nothing = [replace(each, latency_s=np.full_like(each.latency_s, np.nan)) for each in observed_at(TYPICAL)]
    with pytest.raises(ValueError, match="nothing was measured"):
        fitted(nothing)


def test_a_core_that_issues_half_as_many_multiply_adds_keeps_its_clock() -> None:
    """What it issues was measured by itself, so that the fit has not to take it for a clock of half."""
    true = replace(TYPICAL, clock_hz=2.8e9, multiply_adds=0.5)
    found = fit.fitted(observed_at(true, noise=0.01), replace(TYPICAL, multiply_adds=0.5), FITTED)
    assert found.multiply_adds == 0.5
    assert found.clock_hz == pytest.approx(true.clock_hz, rel=0.1)
    assert found.loads == pytest.approx(true.loads, rel=0.3)
