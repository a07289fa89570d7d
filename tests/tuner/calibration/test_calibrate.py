"""Calibrating a device that is made of theory at other rates: what is measured, when it ends, what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from tests.tuner.calibration.observing import TARGET, few_layers, observed_at, perturbed, remember_kernels
from tuner.calibration import calibrate, cpu, fit
from tuner.calibration.calibrate import MIN_PROBES
from tuner.calibration.cpu import KERNELS, ROWS, issuing, products
from tuner.calibration.fit import errors
from tuner.measure import BuildResult, DeviceFailed, DeviceLost, never
from tuner.measure.runners.simulated import Faults, Fleet, SimulatedBuilder, SimulatedRunner, theory
from tuner.program.job.task import SearchTask
from tuner.program.target.calibration import VERSION, Level, Levels
from tuner.program.target.rates import TYPICAL, Rates
from tuner.schedule.space import MicroKernel

LEVELS = Levels(1e11, (Level("L1", 2**14, 4e11), Level("L2", 2**19, 1e11), Level("memory", 2**27, 2e10)))


def all_measurements() -> int:
    """How many measurements a whole calibration is of."""
    return KERNELS * len(products(TARGET, 1)) * len(ROWS)


class Runner(SimulatedRunner):
    """A simulated device that tells its levels, unless it cannot."""

    def __init__(self, fleet: Fleet, levels: Levels | None = LEVELS) -> None:
        super().__init__(fleet)
        self._levels = levels

    def levels(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> Levels:
        if self._levels is None:
            raise DeviceFailed("it is of an earlier release")
        return self._levels


@dataclass
class Clock:
    """Goes on by ``tick_s`` whenever it is read."""

    tick_s: float
    now_s: float = field(default=0.0)

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@pytest.fixture(autouse=True)
def _kernels_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_kernels(monkeypatch)


@pytest.fixture
def rough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates after one step: for tests of what is around their fit."""
    monkeypatch.setattr(fit, "STEPS", 1)


@pytest.fixture
def few(rough: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the kernels of fewer products, for what the fit itself does not change."""
    few_layers(monkeypatch)
    monkeypatch.setattr(cpu, "KERNELS", KERNELS // 3)
    monkeypatch.setattr(cpu, "BATCH", KERNELS // 3)


def fleet_at(rates: Rates, **given: object) -> Fleet:
    model = lambda task, kernel, shape: theory(task.at_rates(rates), kernel, shape)  # noqa: E731
    return Fleet(1, model=model, spread=0.0, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["few layers", "whole"])
def test_a_device_is_measured_and_its_rates_are_found(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    true = perturbed(3)
    every = observed_at(true, noise=0.0)
    if few:
        few_layers(monkeypatch)
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=Runner(fleet_at(true)))
    assert found is not None
    assert (found.version, found.threads, found.target) == (VERSION, 1, TARGET.fingerprint)
    assert found.serves(TARGET, 1)
    assert (found.probes, found.levels) == (all_measurements(), LEVELS)
    assert np.median(errors(every, found.rates)) < 0.04
    assert found.error_after < 0.04 < found.error_before
    # What products tell nothing of comes from reading.
    assert found.rates.memory_bytes == pytest.approx(2e10 / found.rates.clock_hz)
    assert found.rates.l1_bytes == pytest.approx(4e11 / found.rates.clock_hz)


def test_what_a_core_issues_is_measured_and_no_guess_of_its_description() -> None:
    hardware = TARGET.hardware
    # One multiply-add a cycle at 2 GHz, of two that the description says; another instruction is four times as slow.
    peak = 2.0 * hardware.lanes() * 2e9
    rates = issuing(Levels(peak, (), 2e9, {"dpbf16ps": 0.5e9, "tdpbf16ps": 0.125e9}), TARGET, 1)
    assert rates.fma_per_cycle(hardware) == pytest.approx(1.0)
    assert (rates.of_instruction("dpbf16ps"), rates.of_instruction("tdpbf16ps")) == pytest.approx((4.0, 16.0))
    assert rates.of_instruction("tdpbssd") is None
    # A device of an earlier release tells neither.
    assert issuing(LEVELS, TARGET, 1) == issuing(None, TARGET, 1) == TYPICAL


@pytest.mark.usefixtures("few")
def test_levels_are_read_by_all_threads_and_rates_are_of_one_core() -> None:
    found = calibrate(TARGET, 4, builder=SimulatedBuilder(), runner=Runner(fleet_at(TYPICAL)))
    assert found is not None
    assert found.rates.memory_bytes == pytest.approx(2e10 / 4 / found.rates.clock_hz)


@pytest.mark.usefixtures("rough")
def test_time_that_ends_leaves_what_was_measured_by_then() -> None:
    given = {"builder": SimulatedBuilder(), "runner": Runner(fleet_at(perturbed(4)))}
    found = calibrate(TARGET, 1, within_s=15.0, clock=Clock(1.0), **given)  # type: ignore[arg-type]
    assert found is not None
    assert MIN_PROBES <= found.probes < all_measurements()


@pytest.mark.usefixtures("rough")
def test_compilers_that_start_slowly_leave_fewer_measurements_and_keep_the_time() -> None:
    clock = Clock(0.0)

    class Slow(SimulatedBuilder):
        def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
            clock.now_s += 2.0 if clock.now_s else 15.0
            return super().build(task, kernels)

    found = calibrate(TARGET, 1, builder=Slow(), runner=Runner(fleet_at(perturbed(4))), within_s=40.0, clock=clock)
    assert found is not None
    assert MIN_PROBES <= found.probes < all_measurements()
    assert found.seconds <= 40


def test_too_little_is_no_calibration_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(fleet_at(TYPICAL))
    with caplog.at_level(logging.WARNING):
        found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner, within_s=4.0, clock=Clock(1.0))
    assert found is None
    assert "no calibration" in caplog.text


@pytest.mark.usefixtures("rough")
def test_kernels_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    few_layers(monkeypatch)
    monkeypatch.setattr(fit, "STEPS", 2)
    runner = Runner(fleet_at(perturbed(5), faults=Faults(crashing=0.2, wrong=0.1)))
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner)
    assert found is not None
    assert MIN_PROBES < found.probes < all_measurements()
    assert found.error_after < found.error_before / 2


def test_a_device_on_which_all_fails_is_not_calibrated() -> None:
    runner = Runner(fleet_at(TYPICAL, faults=Faults(crashing=1.0)))
    assert calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner) is None


@pytest.mark.usefixtures("few")
def test_a_peak_below_the_fastest_kernel_is_read_again() -> None:
    runner, disturbed = Runner(fleet_at(perturbed(6))), replace(LEVELS, flops_per_s=1e6)
    told = iter([disturbed, replace(LEVELS, levels=disturbed.levels[:2])])
    runner.levels = lambda task, interrupted=never: next(told)  # type: ignore[method-assign]
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner)
    assert found is not None and found.levels == LEVELS, "the best of both"
    assert next(told, None) is None, "once"


@pytest.mark.usefixtures("few")
def test_a_device_that_cannot_tell_its_levels_is_calibrated_without() -> None:
    runner = Runner(fleet_at(perturbed(6)), levels=None)
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner)
    assert found is not None
    assert found.levels is None
    assert found.rates.memory_bytes == TYPICAL.memory_bytes


def test_a_device_that_theory_already_fits_keeps_the_typical_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting noise would make theory no better."""
    few_layers(monkeypatch)
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=Runner(fleet_at(TYPICAL)))
    assert found is not None
    assert found.error_after <= found.error_before
    assert found.rates.decode == pytest.approx(TYPICAL.decode, rel=0.2)


def test_who_no_longer_wants_it_gets_none() -> None:
    runner = Runner(fleet_at(TYPICAL))
    assert calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner, interrupted=lambda: True) is None


def test_a_lost_device_is_the_callers_affair() -> None:
    runner = Runner(fleet_at(TYPICAL, faults=Faults(silent=1), limit_s=0.0))
    with pytest.raises(DeviceLost, match="does not answer"):
        calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=runner)
