"""A device that has tiles is calibrated with kernels in these: their rates are found, and others' stay typical."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.compiled import built_problems
from tests.tuner.calibration.observing import TARGET, few_layers, remember_kernels
from tests.tuner.calibration.test_calibrate import LEVELS, Runner, fleet_at
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.calibration import calibrate, cpu
from tuner.calibration.cpu import KERNELS, in_tiles, probes
from tuner.measure import RunRequest, never
from tuner.measure.roof import kernels
from tuner.measure.roof.issue import issued
from tuner.measure.roof.levels import measure_levels
from tuner.measure.runners.simulated import SimulatedBuilder
from tuner.measure.timing.protocol import Timer
from tuner.program.job.task import SearchTask
from tuner.program.target import Target, native
from tuner.program.target.calibration import Levels
from tuner.program.target.rates import TYPICAL
from tuner.records import MeasureResult
from tuner.schedule import estimate_s, extents_of
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel

ZEN4 = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 4})


@pytest.fixture(autouse=True)
def _kernels_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remember_kernels(monkeypatch)


def drawn(task: SearchTask) -> list[MicroKernel]:
    """The kernels of a product that are measured."""
    return [kernel for probe in probes(TARGET, 1) if probe.task == task for kernel in probe.kernels]


def test_kernels_in_tiles_are_measured_where_there_are_tiles_and_nowhere_else() -> None:
    assert in_tiles(ZEN4, 1) == []
    own = in_tiles(TARGET, 1)
    assert [{tensor.dtype for tensor in task.workload.inputs} for task in own] == [
        {"bfloat16"}, {"bfloat16", "uint8", "float32"}, {"int8"},
    ]  # fmt: skip
    for task in own:
        kernels_of = drawn(task)
        assert len(set(kernels_of)) == KERNELS
        assert {kernel["group"] for kernel in kernels_of} == {64 if task is own[-1] else 32}


def test_the_rates_of_tiles_come_out_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that loads a row in two cycles, multiplies in 24, and whose sums take long to leave."""
    few_layers(monkeypatch)
    true = replace(TYPICAL, tile_rows=0.5, drained=8.0, issue=(("tdpbf16ps", 48.0), ("tdpbssd", 48.0)))
    # As that device tells: both units of a core do two vectors of multiply-adds in a cycle.
    peak = TARGET.hardware.fma_per_cycle * TYPICAL.clock_hz
    told = {name: peak / cycles for name, cycles in true.issue}
    levels = replace(
        LEVELS, flops_per_s=2 * TARGET.hardware.lanes() * peak, clock_hz=TYPICAL.clock_hz, issued_per_s=told
    )
    found = calibrate(TARGET, 1, builder=SimulatedBuilder(), runner=Runner(fleet_at(true), levels))
    assert found is not None
    assert dict(found.rates.issue) == pytest.approx(dict(true.issue))
    assert found.rates.tile_rows == pytest.approx(true.tile_rows, rel=0.1)
    assert found.rates.drained == pytest.approx(true.drained, rel=0.2)
    for task in in_tiles(TARGET, 1):
        extents = extents_of(task.workload, [{"M": 100}])
        now, then = (estimate_s(task.at_rates(rates), drawn(task), extents) for rates in (found.rates, true))
        assert np.median(np.abs(np.log(now / then))) < 0.04


class Here(Runner):
    """Runs kernels in this process, and compares them with the reference; what they take is by theory."""

    def __init__(self, levels: Levels) -> None:
        super().__init__(fleet_at(replace(TYPICAL, tile_rows=0.5)), levels)
        self.ran: list[str] = []

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        for request in requests:
            kernel = request.build.kernel
            shape = dict.fromkeys(task.workload.variables, 5)
            assert built_problems(task, kernel, [task.workload.dims(shape)]) == []
            self.ran.append(kernel.rule)
        return super().run(task, requests, interrupted)


@pytest.mark.soak
def test_a_calibration_runs_kernels_in_tiles_and_measures_their_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated ones, on any machine."""
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    units = emulated(native().hardware.lanes())
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *units])
    monkeypatch.setattr("tuner.measure.roof.issue.ATOMS", [*vectors, *units])
    small = {"LAYERS": ((64, 96),), "SIZES": (7, 16, 48), "KERNELS": 2, "BATCH": 2, "TILES": (48, 256)}
    for name, value in small.items():
        monkeypatch.setattr(cpu, name, value)
    names = {atom.name for atom in units}
    assert names <= {each.atom.name for each in issued(native())}
    # Not the one that is kept for this machine as it is.
    module = kernels.loaded(kernels._levels_built.__wrapped__(native(), 1))
    levels = measure_levels(module, native(), 1, Timer(lambda: 3e-6, least=2, again=0))
    assert names <= set(levels.issued_per_s)
    assert all(levels.issued_per_s[name] > 0 for name in names)
    runner = Here(levels)
    monkeypatch.setattr(sys.modules[calibrate.__module__], "MIN_PROBES", 12)
    found = calibrate(native(), 1, builder=SimulatedBuilder(), runner=runner, within_s=900.0)
    assert found is not None
    assert names <= set(dict(found.rates.issue))
    assert runner.ran.count("x86_quantized") == 2
