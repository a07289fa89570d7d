"""What only a real device shows of a Runner: a private one, one that a tracker hands out, one that two compete for, and
one on a GPU.

What every Runner does is in test_runner.py; who is interrupted, silent or gone in test_device_interrupted.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import measuring
from tests.contract.beds import ALL, LIMIT_S, Bed, bed_of
from tests.measuring import (
    BEFORE_THE_START,
    CRASH,
    HANG_WHEN_TIMED,
    PAST_THE_END,
    RIGHT,
    SLOW,
    TASK,
    UNWRITTEN,
    WRONG,
    K,
    N,
    built,
    kernel,
    request,
)
from tests.shares import chosen
from tuner.measure import BuildResult, DeviceFailed, Interrupted, Runner, RunRequest, TurnsRequest
from tuner.measure._base import never
from tuner.measure.rpc_names import TRIAL
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.runners.session import Session, SessionDied
from tuner.measure.timing.turns import LEAST_TURNS
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import NUMPY, ErrorKind


@pytest.fixture(scope="module", params=chosen(["tracker", "gpu"], ALL))
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fake_cuda: Path) -> Iterator[Bed]:
    with bed_of(request.param, tmp_path_factory.mktemp("device"), fake_cuda) as made:
        yield made


@pytest.fixture
def runner(bed: Bed) -> Iterator[Runner]:
    yield bed.runner
    bed.runner.close()


@pytest.fixture
def cpu(bed: Bed) -> Bed:
    if bed.on is not measuring:
        pytest.skip("NumPy runs on CPUs: nothing on a GPU is compared with it")
    return bed


def test_a_latency_is_what_the_kernel_takes(bed: Bed, runner: Runner) -> None:
    on = bed.on
    results = runner.run(on.TASK, [on.request(RIGHT, 1, 5, 64), on.request(SLOW, 2, 7)])
    assert all(result.latency_s in result.samples_s or len(result.samples_s) % 2 == 0 for result in results)
    slow = results[2].latency_s
    assert slow is not None and 0.001 <= slow < 0.1


def test_what_computes_or_writes_wrongly_is_wrong_and_says_how(bed: Bed, runner: Runner) -> None:
    says = {
        WRONG: "at [1, 2]",
        UNWRITTEN: "1 of 888 elements are wrong",
        PAST_THE_END: "1 elements past the end of its output were overwritten, the nearest 2 away",
        BEFORE_THE_START: "1 elements before the start of its output were overwritten, the nearest 3 away",
    }
    requests = [bed.on.request(behaviour, number, 5, 64) for number, behaviour in enumerate(says, 1)]
    results = runner.run(bed.on.TASK, requests)
    assert [result.error_kind for result in results] == [ErrorKind.WRONG] * 8
    for result, text in zip(results[::2], says.values(), strict=True):
        assert text in result.error
        assert result.latency_s is None


def test_a_process_that_was_killed_tells_of_the_machine(bed: Bed, runner: Runner) -> None:
    """As the kernel does it when memory runs out."""
    on = bed.on
    results = runner.run(on.TASK, [on.request("raise(SIGKILL);", 1), on.request(CRASH, 2), on.request(RIGHT, 3)])
    assert [result.error_kind for result in results] == [ErrorKind.MACHINE, ErrorKind.CRASH, None]
    assert "killed" in results[0].error


def test_a_hang_while_it_is_timed_frees_the_device(bed: Bed) -> None:
    on = bed.on
    bed.runner.close()
    started, impatient = time.monotonic(), bed.runner_of(LIMIT_S)
    (hung,) = impatient.run(on.TASK, [on.request(HANG_WHEN_TIMED, 1, 64)])
    assert hung.error_kind is ErrorKind.RUN_TIMEOUT
    assert LIMIT_S <= hung.run_s < time.monotonic() - started
    impatient.close()
    assert bed.runner.run(on.TASK, [on.request(RIGHT, 2)])[0].ok
    bed.runner.close()


def test_results_name_the_device_that_ran_them(bed: Bed, runner: Runner) -> None:
    on = bed.on
    unbuilt = RunRequest(BuildResult(kernel(4), None, 0.0), (WorkloadInstance.of({"T": 5}),))
    results = runner.run(on.TASK, [on.request(RIGHT, 1), on.request(CRASH, 2), on.request(WRONG, 3), unbuilt])
    assert [result.device for result in results] == [bed.device, bed.device, bed.device, None]


def test_what_cannot_be_loaded_is_a_result(bed: Bed, runner: Runner) -> None:
    on = bed.on
    junk = BuildResult(kernel(1), b"no shared object", 0.0)
    results = runner.run(on.TASK, [RunRequest(junk, (WorkloadInstance.of({"T": 5}),)), on.request(RIGHT, 2)])
    assert [result.error_kind for result in results] == [ErrorKind.WRONG, None]


def test_instances_beyond_the_devices_memory_tell_of_the_machine(tmp_path: Path) -> None:
    large = 1_000_000
    rows = ShapeVar("T", range(1, large + 1))
    task = SearchTask("matmul", {"m": rows, "n": 4, "k": 128}, (rows,), instances=[5, large], target=TASK.target)
    core = min(os.sched_getaffinity(0))
    with LocalDevice(tmp_path, ["--memory", "64M", "--cores", str(core)]) as device:
        runner = RpcRunner(device.connect)
        small, beyond = runner.run(task, [RunRequest(built(RIGHT), task.instances)])
        assert small.ok
        assert (beyond.error_kind, beyond.ok) == (ErrorKind.MACHINE, False), beyond.error
        runner.close()


def test_a_request_that_the_device_fails_over_leaves_it_free(bed: Bed) -> None:
    on = bed.on
    session = Session.open(bed.connect, on.TASK, 60.0, never)
    with pytest.raises(SessionDied):
        session.ask(TRIAL, {"limit_s": LIMIT_S}, b"")
    # Nothing here has let go of the session.
    again = Session.open(bed.connect, on.TASK, 60.0, never)
    assert again.server == session.server
    again.close()


def test_verify_says_which_dims_are_wrong(bed: Bed, runner: Runner) -> None:
    on = bed.on
    dims = [{"m": 4}, {"m": 5}, {"m": 8}, {"m": 200}]
    assert runner.verify(on.TASK, on.built(RIGHT), dims) == []
    result = runner.verify(on.TASK, on.built(PAST_THE_END), dims)
    assert [values for values, _ in result] == [{"m": 5}]
    assert "past the end" in result[0][1]


def test_a_crash_under_verification_is_wrong_at_its_dims_alone(bed: Bed, runner: Runner) -> None:
    on = bed.on
    result = runner.verify(on.TASK, on.built("if (m == 5) raise(SIGSEGV);"), [{"m": 4}, {"m": 5}, {"m": 6}])
    assert [values for values, _ in result] == [{"m": 5}]


def test_baselines_are_numpys_product_at_each_instance_and_the_roof(cpu: Bed, runner: Runner) -> None:
    result = runner.baselines(TASK, TASK.instances)
    assert [(point.name, point.instance) for point in result.points] == [(NUMPY, one) for one in TASK.instances]
    assert all(0 < point.latency_s < 0.1 and point.anchor_s for point in result.points)
    roof = result.roof
    assert roof is not None and roof.anchor_s
    assert 1e8 < roof.flops_per_s < 1e13
    assert 1e7 < roof.bytes_per_s < 1e13
    assert runner.run(TASK, [request()])[0].ok


def test_a_task_on_more_threads_than_numpys_one_has_a_roof_alone(cpu: Bed, runner: Runner) -> None:
    on_two = SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=[5], target=TASK.target, threads=2)
    result = runner.baselines(on_two, on_two.instances)
    assert result.points == ()
    assert result.roof is not None


def test_a_device_that_dies_of_the_baselines_says_so_and_goes_on(bed: Bed, runner: Runner) -> None:
    on = bed.on
    runner.run(on.TASK, [on.request()])
    (session,) = psutil.Process(bed.server_pid).children()
    # However soon it would be done with them.
    session.suspend()
    killer = threading.Timer(0.05, lambda: os.kill(session.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(DeviceFailed, match=f"device {bed.device} failed over the baselines"):
        runner.baselines(on.TASK, on.TASK.instances)
    killer.join()
    assert runner.run(on.TASK, [on.request(RIGHT, 1)])[0].ok


def test_builds_and_numpy_are_timed_in_turns(cpu: Bed, runner: Runner) -> None:
    builds = built(RIGHT, 0), built(SLOW, 1)
    turns = runner.turns(TASK, TurnsRequest(TASK.instances, builds, ((0, 0), (None, 1)), True, 2.0))
    assert len(turns.seconds) >= LEAST_TURNS and turns.device == cpu.device
    assert all(turn[0][1] is None and turn[1][1] > 1e-3 for turn in turns.seconds if turn[1][1])
    assert all(0 < block[0] < 0.1 and 0 < block[2] < 0.1 for turn in turns.seconds for block in turn)  # type: ignore[operator]
    assert turns.blas is not None and turns.blas.threads == 1
    assert all(anchor_s > 0 for turn in turns.anchors_s for anchor_s in turn)


def test_a_contender_that_crashes_ends_the_turns_and_the_device_goes_on(bed: Bed, runner: Runner) -> None:
    on = bed.on
    request_of = TurnsRequest(on.TASK.instances, (on.built(RIGHT, 0), on.built(CRASH, 1)), ((0, 0), (1, 1)), False, 2.0)
    with pytest.raises(DeviceFailed, match="failed while libraries took turns"):
        runner.turns(on.TASK, request_of)
    assert runner.run(on.TASK, [on.request(RIGHT, 1)])[0].ok


def test_turns_are_interrupted_at_once(bed: Bed, runner: Runner) -> None:
    on = bed.on
    asked = TurnsRequest(on.TASK.instances, (on.built(SLOW, 0),), ((0, 0),), False, 60.0)
    began_s = time.monotonic()
    with pytest.raises(Interrupted):
        runner.turns(on.TASK, asked, lambda: time.monotonic() - began_s > 0.05)
    assert runner.run(on.TASK, [on.request(RIGHT, 1)])[0].ok


def test_the_device_serves_another_task_next(bed: Bed, runner: Runner) -> None:
    on = bed.on
    size = ShapeVar("S", range(1, 33))
    other = SearchTask("matmul", {"m": size, "n": N, "k": K}, (size,), instances=[8], target=on.TASK.target)
    assert runner.run(on.TASK, [on.request()])[0].ok
    its = RunRequest(on.built(), (WorkloadInstance.of({"S": 8}),))
    assert runner.run(other, [its])[0].ok
    assert runner.run(on.TASK, [on.request()])[0].ok


def test_the_device_is_found_again_when_its_session_was_killed(bed: Bed) -> None:
    on = bed.on
    bed.runner.run(on.TASK, [on.request()])
    for session in psutil.Process(bed.server_pid).children():
        os.kill(session.pid, signal.SIGKILL)
    bed.runner.run(on.TASK, [on.request(RIGHT, 1)])
    assert bed.runner.run(on.TASK, [on.request(RIGHT, 2)])[0].ok
    bed.runner.close()


def test_close_gives_the_device_back_at_once(bed: Bed) -> None:
    on = bed.on
    bed.runner.run(on.TASK, [on.request()])
    assert len(psutil.Process(bed.server_pid).children()) == 1
    bed.runner.close()
    _, alive = psutil.wait_procs(psutil.Process(bed.server_pid).children(), timeout=5)
    assert alive == []
