"""What a device on a GPU does beside what the contract of runners asks for, on a stand-in for the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import measuring
from tests.gpu_measuring import (
    H100,
    PRODUCT,
    REFUSED,
    TASK,
    WRITES_INPUT,
    gpu_device,
    gpu_host,
    program,
    request,
    set_gpu,
)
from tests.measuring import CRASH, RIGHT, SLOW, T, kernel
from tests.tuner.measure.gpu.test_facts import add_nvml
from tuner.measure import BuildResult, NotMeasured, RunRequest, TurnsRequest, WrongDevice
from tuner.measure.processes import device_environment
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.timing.turns import LEAST_TURNS
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind

AT_5 = (WorkloadInstance.of({"T": 5}),)


class Bed:
    def __init__(self, device: LocalDevice, driver: Path) -> None:
        self.device, self.driver = device, driver
        self.runner = RpcRunner(device.connect)

    def sessions(self) -> list[int]:
        return [each.pid for each in psutil.Process(self.device.pid).children()]


@pytest.fixture(scope="module")
def served(fake_cuda: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("gpu")
    with gpu_device(fake_cuda, folder) as device:
        yield Bed(device, folder / "driver")


@pytest.fixture
def bed(served: Bed) -> Iterator[Bed]:
    yield served
    served.runner.close()
    set_gpu(served.driver)


def test_references_are_computed_by_all_threads_however_a_device_is_started(bed: Bed) -> None:
    assert "OPENBLAS_NUM_THREADS" not in psutil.Process(bed.device.pid).environ()
    assert device_environment(None)["OPENBLAS_NUM_THREADS"] == "1"
    assert device_environment(0).items() < device_environment(None).items()


@pytest.mark.parametrize(
    ("cache", "constant", "expected_us"),
    [("warm", True, 1.0), ("cold", False, 9.0), ("streamed", False, 1.0), ("streamed", True, 7.0)],
)
def test_calls_find_l2_as_the_task_asks(bed: Bed, cache: str, constant: bool, expected_us: float) -> None:
    """A kernel that takes as long as what was moved before it says: twice L2 at the least, and what is read again."""
    workload = workload_from_json(PRODUCT | {"constant": ["y"] if constant else []})
    task = SearchTask(workload, None, (T,), instances=[5], target=H100, cache=cache)
    behaviour = "*ns = moved < (2 << 20) ? 1000 : moved == (2 << 20) ? 9000 : 7000;"
    build = BuildResult(kernel(), program(behaviour, task), 0.0)
    (result,) = bed.runner.run(task, [RunRequest(build, AT_5)])
    assert result.latency_s == pytest.approx(1e-6 * expected_us), result.error


def test_a_context_that_is_lost_while_timed_costs_its_session_and_no_more(bed: Bed) -> None:
    first, second = bed.runner.run(TASK, [request("if (m == 64) return ILLEGAL_ADDRESS;", 1, 5, 64)])
    lost = bed.sessions()
    assert first.ok
    assert second.error_kind is ErrorKind.CRASH
    assert "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)" in second.error
    assert all(each.ok for each in bed.runner.run(TASK, [request(RIGHT, 2, 5, 64)]))
    assert set(bed.sessions()).isdisjoint(lost)


def test_after_a_verification_that_lost_the_context_the_next_dims_have_another(bed: Bed) -> None:
    build = BuildResult(kernel(), program("if (m == 5) return ILLEGAL_ADDRESS;"), 0.0)
    found = bed.runner.verify(TASK, build, [{"m": 4}, {"m": 5}, {"m": 6}])
    assert [values for values, _ in found] == [{"m": 5}]


def test_a_launch_that_is_refused_is_wrong_and_costs_nothing(bed: Bed) -> None:
    assert bed.runner.run(TASK, [request(RIGHT)])[0].ok
    before = bed.sessions()
    (result,) = bed.runner.run(TASK, [request(REFUSED, 1)])
    assert result.error_kind is ErrorKind.WRONG
    assert "kernel_0 cannot be launched on GPU 0: as was asked for" in result.error
    assert bed.runner.run(TASK, [request(RIGHT, 2)])[0].ok
    assert bed.sessions() == before


def test_an_input_that_is_written_to_is_told(bed: Bed) -> None:
    (result,) = bed.runner.run(TASK, [request(WRITES_INPUT)])
    assert (result.error_kind, result.error) == (ErrorKind.WRONG, "input 1 was written to, at m=37")


def test_what_a_gpu_has_no_memory_for_tells_of_the_machine(bed: Bed) -> None:
    assert bed.runner.run(TASK, [request(RIGHT)])[0].ok
    set_gpu(bed.driver, "FAKE_CUDA_BYTES=4096")
    (result,) = bed.runner.run(TASK, [request(RIGHT, 1)])
    assert result.error_kind is ErrorKind.MACHINE
    assert "out of memory (CUDA_ERROR_OUT_OF_MEMORY)" in result.error


MAPS = "mmap(NULL, 1UL << 36, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);"
HOLDS = "memset(mmap(NULL, 1UL << 28, PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1, 1UL << 28);"


def test_sessions_write_to_no_more_than_they_may_and_what_holds_a_clock_down_is_told(
    fake_cuda: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And sessions may map as drivers do."""
    options = ["--gpu", "0", "--memory", "256M", "--cores", str(min(os.sched_getaffinity(0)))]
    with gpu_host(fake_cuda, tmp_path), LocalDevice(tmp_path, options) as device:
        add_nvml(tmp_path / "driver")
        runner = RpcRunner(device.connect)
        mapping, holding, after = runner.run(TASK, [request(MAPS), request(HOLDS, 1), request(RIGHT, 2)])
        runner.close()
    assert [each.error_kind for each in (mapping, holding, after)] == [None, ErrorKind.CRASH, None]
    said = "the clock fell from 1980 to 1410 MHz within a trial, held by the power limit and the temperature"
    assert said in capfd.readouterr().err


def test_a_slower_clock_shows_in_the_anchors(bed: Bed) -> None:
    (before,) = bed.runner.run(TASK, [request(RIGHT)])
    set_gpu(bed.driver, "FAKE_CUDA_LOOP_NS=30")
    (after,) = bed.runner.run(TASK, [request(RIGHT, 1)])
    assert before.anchor_s and after.anchor_s
    assert after.anchor_s / before.anchor_s == pytest.approx(30 / 20, rel=1e-3)


def test_the_roof_is_what_its_memory_copies_and_its_units_do(bed: Bed) -> None:
    found = bed.runner.baselines(TASK, TASK.instances)
    assert (found.points, found.blas) == ((), None)
    assert found.roof is not None and H100.gpu is not None
    # As the stand-in has it: 2000 bytes in a nanosecond.
    assert found.roof.bytes_per_s == pytest.approx(2e12, rel=0.01)
    assert found.roof.flops_per_s == pytest.approx(H100.gpu.tensor_flops_s("tf32") / 3)


def test_builds_take_turns_and_numpy_has_none(bed: Bed) -> None:
    builds = tuple(BuildResult(kernel(number), program(each), 0.0) for number, each in enumerate((RIGHT, SLOW)))
    turns = bed.runner.turns(TASK, TurnsRequest(TASK.instances, builds, ((0, 0), (None, 1)), True, 2.0))
    assert len(turns.seconds) >= LEAST_TURNS
    assert turns.blas is None
    for at_5, at_64 in turns.seconds:
        assert list(at_5) == pytest.approx([1.5e-6, None, None])
        assert list(at_64) == pytest.approx([7.4e-6, 1.5e-3, None])


def test_tasks_for_other_hardware_are_refused_with_both_named(bed: Bed, fake_cuda: Path, tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match=r"^device .*:gpu0 runs code for cuda \(sm_90\), the task is for llvm \("):
        bed.runner.run(measuring.TASK, [measuring.request()])
    with LocalDevice() as cpu:
        runner = RpcRunner(cpu.connect)
        with pytest.raises(NotMeasured, match=r"runs code for llvm \(.*\), the task is for cuda \(sm_90\): tune for"):
            runner.run(TASK, [request(CRASH)])
        runner.close()
    with gpu_device(fake_cuda, tmp_path, "FAKE_CUDA_GPUS=8.0") as other:
        runner = RpcRunner(other.connect)
        both = r"is a100 \(sm_80, 108 SMs, 1555 GB/s\), the target h100 \(sm_90, 132 SMs, 3352 GB/s\): tune for its own"
        with pytest.raises(WrongDevice, match=both):
            runner.run(TASK, [request(CRASH)])
        runner.close()
