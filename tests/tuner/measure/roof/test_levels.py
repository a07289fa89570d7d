"""What this machine reads from each level of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.shares import chosen
from tests.tuner.calibration.observing import TARGET
from tuner.calibration.cpu import layer
from tuner.library.machine_code import NoLinker, linker_for
from tuner.measure import DeviceFailed
from tuner.measure.roof.issue import issued
from tuner.measure.roof.kernels import levels_binary, loaded
from tuner.measure.roof.levels import FLUSHED_BYTES, measure_levels, sweeps
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.timing.protocol import Timer
from tuner.program.target import Target, native
from tuner.program.target.calibration import MEMORY, STREAMS, Levels


def sizes(target: Target, threads: int = 1) -> dict[str, int]:
    return {sweep.level: sweep.bytes for sweep in sweeps(target, threads)}


def holding(l3_bytes: int, l2_bytes: int = TARGET.hardware.l2_bytes) -> Target:
    return replace(TARGET, hardware=replace(TARGET.hardware, l2_bytes=l2_bytes, l3_bytes=l3_bytes))


@pytest.mark.parametrize("threads", [1, 4])
def test_each_level_is_read_in_less_than_it_holds_and_more_than_the_one_before(threads: int) -> None:
    target = holding(l3_bytes=2**26)
    hardware, read = target.hardware, sizes(target, threads)
    assert list(read) == ["L1", "L2", "L3", MEMORY, STREAMS]
    assert read["L1"] < threads * hardware.l1d_bytes < read["L2"] < threads * hardware.l2_bytes < read["L3"]
    assert read["L3"] < hardware.l3_bytes
    assert read[MEMORY] == read[STREAMS] == pytest.approx(FLUSHED_BYTES, rel=0.01)


def test_levels_that_cannot_be_told_apart_are_left_out() -> None:
    assert list(sizes(holding(l3_bytes=3 * 2**20))) == ["L1", "L2", MEMORY, STREAMS]
    everything = ["L1", "L2", "L3", MEMORY, STREAMS]
    assert list(sizes(holding(l3_bytes=2**30))) == everything, "flushed, whatever the caches hold"
    assert list(sizes(holding(l2_bytes=2**14, l3_bytes=2**14))) == ["L1", MEMORY, STREAMS]


@pytest.mark.parametrize("threads", chosen([2], [1, 2]))
def test_a_machine_tells_its_levels(threads: int) -> None:
    module = loaded(levels_binary(native(), threads))
    timer = Timer(lambda: 3e-6, least=2, again=0)
    measured = (measure_levels(module, native(), threads, timer) for _ in range(10))
    # On a loaded machine one measurement may not show that anything is faster than memory.
    told = (each for each in measured if max(level.bytes_per_s for level in each.levels) > each.levels[-1].bytes_per_s)
    found = next(told)
    assert [(each.name, each.bytes) for each in found.levels] == list(sizes(native(), threads).items())
    # Of any machine that this runs on, disturbed or not.
    assert 1e8 < found.flops_per_s < 1e13
    assert all(1e7 < each.bytes_per_s < 1e13 for each in found.levels)
    # Disturbed alike, but not at the same moment.
    assert found.clock_hz is not None
    assert 1e8 < found.clock_hz < 1e10
    assert list(found.issued_per_s) == [each.atom.name for each in issued(native())]
    assert all(1e-3 < rate / found.clock_hz < 10 for rate in found.issued_per_s.values())
    assert Levels.from_json(found.to_json()) == found


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "icelake-server", "sapphirerapids", "neoverse-n1", "neoverse-v1"])
def test_every_instruction_of_a_target_is_measured_by_code_that_issues_it(mcpu: str) -> None:
    target = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    try:
        linker_for(target.architecture)
    except NoLinker as error:
        pytest.skip(str(error))
    names = [each.function for each in issued(target)]
    assert len(names) == len(set(names))
    assert all(name.encode() in levels_binary(target, 1) for name in names)


def test_a_device_tells_its_levels_and_one_that_cannot_is_there_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    task = layer(64, 64, native(), 1)
    with LocalDevice() as device:
        runner = RpcRunner(device.connect)
        assert [each.name for each in runner.levels(task).levels] == list(sizes(native()))
        # As on a device of an earlier release.
        monkeypatch.setattr("tuner.measure.runners.rpc.LEVELS", "shapewright.unknown")
        with pytest.raises(DeviceFailed, match="of a release that does not read caches"):
            runner.levels(task)
        runner.ready(task)
        runner.close()


@pytest.mark.parametrize("threads", [1, 16, 64])
def test_what_was_flushed_is_read_once(threads: int) -> None:
    """A second time it would come from a cache."""
    assert {sweep.turns for sweep in sweeps(native(), threads) if sweep.is_of_memory} == {1}
