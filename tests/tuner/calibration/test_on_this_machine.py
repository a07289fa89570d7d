"""A calibration of this machine, of few and small probes: compiled, sent to a device, measured, fitted."""

from __future__ import annotations

import sys

import pytest

from tuner.calibration import calibrate, cpu
from tuner.measure.local import local_tools
from tuner.measure.roof.levels import sweeps
from tuner.program.target import native


@pytest.mark.soak
def test_this_machine_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "LAYERS", ((64, 96),))
    monkeypatch.setattr(cpu, "SIZES", (7, 16, 48))
    monkeypatch.setattr(cpu, "KERNELS", 2)
    monkeypatch.setattr(cpu, "BATCH", 2)
    monkeypatch.setattr(sys.modules[calibrate.__module__], "MIN_PROBES", 12)
    with local_tools() as (builder, runner):
        found = calibrate(native(), 1, builder=builder, runner=runner, within_s=900.0)
    assert found is not None
    assert found.serves(native(), 1)
    # Three products, more where there is a matrix unit: all but a few probes that a busy machine leaves out.
    most = sum(len(probe.kernels) * len(probe.task.instances) for probe in cpu.probes(native(), 1))
    assert 12 <= found.probes <= most
    assert found.error_after <= found.error_before
    assert found.levels is not None
    assert [each.name for each in found.levels.levels] == [each.level for each in sweeps(native(), 1)]
    # Of any machine that this runs on, disturbed or not: layers this small say little of the clock.
    assert 2e8 < found.rates.clock_hz < 5e10
