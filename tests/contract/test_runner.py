"""What every Runner does, whether they measure or pretend to: on a device, on several, on a GPU that a stand-in for its
driver pretends to be, and on simulated ones.

What only a real device can show is in test_device_runner.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests import gpu_measuring as gpus
from tests.measuring import CRASH, HANG, RIGHT, TASK, WRONG, kernel, request
from tests.shares import chosen
from tuner.measure import BuildResult, Interrupted, Runner, RunRequest
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner, unshared
from tuner.measure.runners.simulated import Faults, Fleet
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel
from worker.building.cores import Cores

LIMIT_S = 2.0
PER_BEHAVIOUR = 100
BEHAVIOURS = {RIGHT: None, CRASH: ErrorKind.CRASH, HANG: ErrorKind.RUN_TIMEOUT, WRONG: ErrorKind.WRONG}
KINDS: list[ErrorKind | None] = list(BEHAVIOURS.values())


@dataclass(frozen=True, slots=True)
class Chosen(Faults):
    """A kernel fails as its number says."""

    def of(self, kernel: MicroKernel, seed: int) -> ErrorKind | None:
        return KINDS[kernel["number"] // PER_BEHAVIOUR]


@dataclass(frozen=True, slots=True)
class Bed:
    """A runner, the task that its devices can do, and its candidates: ``of`` makes one that behaves so."""

    runner: Runner
    task: SearchTask = TASK
    of: Callable[..., RunRequest] = request

    def asked(self, behaviour: str, number: int, *shapes: int) -> RunRequest:
        """A kernel that behaves so on any runner."""
        return self.of(behaviour, PER_BEHAVIOUR * list(BEHAVIOURS).index(behaviour) + number, *shapes)


def microseconds(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    return 1e-6 * shape["T"]


ALL = ("device", "devices", "on-cores", "gpu", "simulated", "many-simulated")


@pytest.fixture(scope="module", params=chosen(["devices", "gpu", "many-simulated"], ALL))
def bed(request: pytest.FixtureRequest, fake_cuda: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    if "simulated" in request.param:
        size = 4 if "many" in request.param else 1
        simulated = Fleet(size, limit_s=LIMIT_S, faults=Chosen(), model=microseconds).runner()
        yield Bed(simulated)
        simulated.close()
        return
    if request.param == "gpu":
        with gpus.gpu_device(fake_cuda, tmp_path_factory.mktemp("gpu")) as device:
            runner = RpcRunner(device.connect, timeout_s=LIMIT_S)
            yield Bed(runner, gpus.TASK, gpus.request)
            runner.close()
        return
    with LocalDevice() as first, LocalDevice() as second:
        devices = [first, second][: 2 if request.param == "devices" else 1]
        cores = Cores(1).taken if request.param == "on-cores" else unshared
        members = {each.pid: partial(RpcRunner, each.connect, timeout_s=LIMIT_S, cores=cores) for each in devices}
        pool = RunnerPool(lambda: members)
        yield Bed(pool)
        pool.close()


def soon(after_s: float = 0.5) -> Callable[[], bool]:
    began = time.monotonic()
    return lambda: time.monotonic() - began > after_s


def test_a_right_kernel_has_a_latency_at_each_instance_in_order(bed: Bed) -> None:
    results = bed.runner.run(bed.task, [bed.asked(RIGHT, 1, 5, 64), bed.asked(RIGHT, 2, 7)])
    assert [(each.kernel["number"], each.instance.shape["T"]) for each in results] == [(1, 5), (1, 64), (2, 7)]
    for each in results:
        assert each.ok and each.latency_s and each.device and each.anchor_s
        assert min(each.samples_s) <= each.latency_s <= max(each.samples_s)
        assert each.build_s == 0.01


def test_only_the_culprit_is_blamed(bed: Bed) -> None:
    behaviours = [RIGHT, CRASH, RIGHT, WRONG, RIGHT, HANG, RIGHT]
    results = bed.runner.run(bed.task, [bed.asked(behaviour, number) for number, behaviour in enumerate(behaviours)])
    assert [result.error_kind for result in results] == [BEHAVIOURS[behaviour] for behaviour in behaviours]
    assert all(result.error for result in results if not result.ok)
    assert all(result.device for result in results)


def test_a_hang_takes_its_time_and_no_more(bed: Bed) -> None:
    began = time.monotonic()
    (result,) = bed.runner.run(bed.task, [bed.asked(HANG, 1)])
    assert result.error_kind is ErrorKind.RUN_TIMEOUT
    assert LIMIT_S <= result.run_s <= time.monotonic() - began


def test_trials_say_when_they_ran_one_after_another(bed: Bed) -> None:
    began = time.monotonic()
    first, second = bed.runner.run(bed.task, [bed.asked(RIGHT, 1, 5, 64)])
    (failed,) = bed.runner.run(bed.task, [bed.asked(CRASH, 1)])
    for each in (first, second, failed):
        assert each.device and each.ended_s
        assert began <= each.ended_s - each.run_s + 1e-6 and each.ended_s <= time.monotonic()
    assert first.ended_s and second.ended_s
    assert bed.runner.devices > 1 or second.ended_s - first.ended_s == pytest.approx(second.run_s)


def test_what_was_not_built_needs_no_device_and_keeps_its_reason(bed: Bed) -> None:
    failed = BuildResult(kernel(1), None, 3.0, ErrorKind.BUILD_TIMEOUT, "too slow")
    (result,) = bed.runner.run(bed.task, [RunRequest(failed, (WorkloadInstance.of({"T": 5}),))])
    assert (result.error_kind, result.error, result.device) == (ErrorKind.BUILD_TIMEOUT, "too slow", None)


def test_an_interrupted_call_ends_soon_with_what_was_done_before(bed: Bed) -> None:
    requests = [bed.asked(RIGHT, 1), *(bed.asked(HANG, number) for number in range(2 + 4 * bed.runner.devices))]
    results = bed.runner.run(bed.task, requests, soon())
    assert [result.error_kind for result in results][1:] in ([], *([ErrorKind.RUN_TIMEOUT] * n for n in range(1, 4)))
    assert bed.runner.run(bed.task, [bed.asked(RIGHT, 3)])[0].ok


def test_a_verification_names_the_shapes_and_says_nothing_when_interrupted(bed: Bed) -> None:
    dims = [{"m": 5}, {"m": 9}]
    assert bed.runner.verify(bed.task, bed.asked(RIGHT, 1).build, dims) == []
    assert [values for values, _ in bed.runner.verify(bed.task, bed.asked(WRONG, 1).build, dims)] == dims
    with pytest.raises(Interrupted):
        bed.runner.verify(bed.task, bed.asked(HANG, 1).build, dims, soon())


def test_a_device_is_made_ready(bed: Bed) -> None:
    bed.runner.ready(bed.task)
    assert bed.runner.devices >= 1
    assert bed.runner.run(bed.task, [bed.asked(RIGHT, 1)])[0].ok
