"""What only a real device shows of a Runner: a private one, one that a tracker hands out, and one that two compete for.

What every Runner does is in test_runner.py.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.measuring import (
    BEFORE_THE_START,
    CRASH,
    HANG,
    HANG_WHEN_TIMED,
    PAST_THE_END,
    RIGHT,
    SLOW,
    TASK,
    UNWRITTEN,
    WRONG,
    built,
    kernel,
    request,
)
from tests.shares import chosen
from tuner.measure import BuildResult, DeviceFailed, Interrupted, Runner, RunRequest, TurnsRequest
from tuner.measure._base import never
from tuner.measure.device.process import SILENT_S
from tuner.measure.network.connecting import Connected, Tracker
from tuner.measure.rpc_names import TRIAL, device_key
from tuner.measure.runners.local_device import LocalDevice
from tuner.measure.runners.pool import RunnerPool
from tuner.measure.runners.rpc import RpcRunner
from tuner.measure.runners.session import Connect, Session, SessionDied
from tuner.measure.timing.turns import LEAST_TURNS
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.records import NUMPY, ErrorKind
from worker.device_server import start_device
from worker.tracker import start_tracker

PATIENT_S, LIMIT_S = 20.0, 2.0
"""What a runner waits for a candidate, on however busy a machine; and for one that hangs."""


class Bed:
    """A runner, its device's id, and the process that serves it."""

    def __init__(self, connect: Connect, device: str, server: Callable[[], int], *, pooled: bool = False) -> None:
        self.connect, self._pooled = connect, pooled
        self.runner = self.runner_of(PATIENT_S)
        self.device = device
        self._server = server

    def runner_of(self, timeout_s: float) -> Runner:
        """A runner that waits so long for a candidate."""
        if not self._pooled:
            return RpcRunner(self.connect, timeout_s=timeout_s)
        # Two that compete for one device.
        members = dict.fromkeys("ab", partial(RpcRunner, self.connect, timeout_s=timeout_s))
        return RunnerPool(lambda: members)

    @property
    def server_pid(self) -> int:
        return self._server()

    def sessions(self) -> list[psutil.Process]:
        return psutil.Process(self.server_pid).children()

    @property
    def port(self) -> int:
        """Where the device listens."""
        listening = (each for each in psutil.Process(self.server_pid).net_connections() if each.status == "LISTEN")
        return int(next(listening).laddr.port)


@pytest.fixture(scope="module", params=chosen(["tracker"], ["private", "tracker", "pool"]))
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory: Path = tmp_path_factory.mktemp("device")
    if request.param == "private":
        with LocalDevice(directory) as device:
            yield Bed(device.connect, f"{socket.gethostname()}:local", lambda: device.pid)
        return
    with start_tracker(data_dir=directory) as tracker:
        address = ("127.0.0.1", tracker.port)
        with start_device(address, "local", device_id="rack-7", data_dir=directory) as served:
            client = Tracker(*address)
            # The two of a pool wait for each other after a crash, until one of them hears that the device is busy.
            wait_s = 6.0 if request.param == "pool" else 20.0

            def connect(life_s: float, interrupted: Callable[[], bool]) -> Connected:
                return client.request(device_key("local", "rack-7"), life_s, wait_s, interrupted)

            yield Bed(connect, "rack-7", lambda: served.pid, pooled=request.param == "pool")


@pytest.fixture
def runner(bed: Bed) -> Iterator[Runner]:
    yield bed.runner
    bed.runner.close()


def test_a_latency_is_what_the_kernel_takes(runner: Runner) -> None:
    results = runner.run(TASK, [request(RIGHT, 1, 5, 64), request(SLOW, 2, 7)])
    assert all(result.latency_s in result.samples_s or len(result.samples_s) % 2 == 0 for result in results)
    slow = results[2].latency_s
    assert slow is not None and 0.001 <= slow < 0.1


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (WRONG, "at [1, 2]"),
        (UNWRITTEN, "1 of 888 elements are wrong"),
        (PAST_THE_END, "1 elements past the end of its output were overwritten, the nearest 2 away"),
        (BEFORE_THE_START, "1 elements before the start of its output were overwritten, the nearest 3 away"),
    ],
)
def test_what_computes_or_writes_wrongly_is_wrong_and_says_how(runner: Runner, behaviour: str, says: str) -> None:
    results = runner.run(TASK, [request(behaviour, 1, 5, 64)])
    assert [result.error_kind for result in results] == [ErrorKind.WRONG, ErrorKind.WRONG]
    assert says in results[0].error
    assert results[0].latency_s is None


def test_a_process_that_was_killed_tells_of_the_machine(runner: Runner) -> None:
    """As the kernel does it when memory runs out."""
    results = runner.run(TASK, [request("raise(SIGKILL);", 1), request(CRASH, 2), request(RIGHT, 3)])
    assert [result.error_kind for result in results] == [ErrorKind.MACHINE, ErrorKind.CRASH, None]
    assert "killed" in results[0].error


def test_a_hang_while_it_is_timed_frees_the_device(bed: Bed) -> None:
    bed.runner.close()
    started, impatient = time.monotonic(), bed.runner_of(LIMIT_S)
    (hung,) = impatient.run(TASK, [request(HANG_WHEN_TIMED, 1, 64)])
    assert hung.error_kind is ErrorKind.RUN_TIMEOUT
    assert LIMIT_S <= hung.run_s < time.monotonic() - started
    impatient.close()
    assert bed.runner.run(TASK, [request(RIGHT, 2)])[0].ok
    bed.runner.close()


def test_results_name_the_device_that_ran_them(bed: Bed, runner: Runner) -> None:
    unbuilt = RunRequest(BuildResult(kernel(4), None, 0.0), (WorkloadInstance.of({"T": 5}),))
    results = runner.run(TASK, [request(RIGHT, 1), request(CRASH, 2), request(WRONG, 3), unbuilt])
    assert [result.device for result in results] == [bed.device, bed.device, bed.device, None]


def test_what_cannot_be_loaded_is_a_result(runner: Runner) -> None:
    junk = BuildResult(kernel(1), b"no shared object", 0.0)
    results = runner.run(TASK, [RunRequest(junk, (WorkloadInstance.of({"T": 5}),)), request(RIGHT, 2)])
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
    session = Session.open(bed.connect, TASK, 60.0, never)
    with pytest.raises(SessionDied):
        session.ask(TRIAL, {"limit_s": LIMIT_S}, b"")
    # Nothing here has let go of the session.
    again = Session.open(bed.connect, TASK, 60.0, never)
    assert again.server == session.server
    again.close()


def test_verify_says_which_dims_are_wrong(runner: Runner) -> None:
    dims = [{"m": 4}, {"m": 5}, {"m": 8}, {"m": 200}]
    assert runner.verify(TASK, built(RIGHT), dims) == []
    result = runner.verify(TASK, built(PAST_THE_END), dims)
    assert [values for values, _ in result] == [{"m": 5}]
    assert "past the end" in result[0][1]


def test_a_crash_under_verification_is_wrong_at_its_dims_alone(runner: Runner) -> None:
    result = runner.verify(TASK, built("if (m == 5) raise(SIGSEGV);"), [{"m": 4}, {"m": 5}, {"m": 6}])
    assert [values for values, _ in result] == [{"m": 5}]


def test_baselines_are_numpys_product_at_each_instance_and_the_roof(runner: Runner) -> None:
    result = runner.baselines(TASK, TASK.instances)
    assert [(point.name, point.instance) for point in result.points] == [(NUMPY, one) for one in TASK.instances]
    assert all(0 < point.latency_s < 0.1 and point.anchor_s for point in result.points)
    roof = result.roof
    assert roof is not None and roof.anchor_s
    assert 1e8 < roof.flops_per_s < 1e13
    assert 1e7 < roof.bytes_per_s < 1e13
    assert runner.run(TASK, [request()])[0].ok


def test_a_task_on_more_threads_than_numpys_one_has_a_roof_alone(runner: Runner) -> None:
    on_two = SearchTask(TASK.workload, shape_vars=TASK.shape_vars, instances=[5], target=TASK.target, threads=2)
    result = runner.baselines(on_two, on_two.instances)
    assert result.points == ()
    assert result.roof is not None


def test_a_device_that_dies_of_the_baselines_says_so_and_goes_on(bed: Bed, runner: Runner) -> None:
    runner.run(TASK, [request()])
    (session,) = psutil.Process(bed.server_pid).children()
    killer = threading.Timer(0.05, lambda: os.kill(session.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(DeviceFailed, match=f"device {bed.device} failed over the baselines"):
        runner.baselines(TASK, TASK.instances)
    killer.join()
    assert runner.run(TASK, [request(RIGHT, 1)])[0].ok


def test_builds_and_numpy_are_timed_in_turns(bed: Bed, runner: Runner) -> None:
    builds = built(RIGHT, 0), built(SLOW, 1)
    turns = runner.turns(TASK, TurnsRequest(TASK.instances, builds, ((0, 0), (None, 1)), True, 2.0))
    assert len(turns.seconds) >= LEAST_TURNS and turns.device == bed.device
    assert all(turn[0][1] is None and turn[1][1] > 1e-3 for turn in turns.seconds if turn[1][1])
    assert all(0 < block[0] < 0.1 and 0 < block[2] < 0.1 for turn in turns.seconds for block in turn)  # type: ignore[operator]
    assert turns.blas is not None and turns.blas.threads == 1
    assert all(anchor_s > 0 for turn in turns.anchors_s for anchor_s in turn)


def test_a_contender_that_crashes_ends_the_turns_and_the_device_goes_on(runner: Runner) -> None:
    request_of = TurnsRequest(TASK.instances, (built(RIGHT, 0), built(CRASH, 1)), ((0, 0), (1, 1)), False, 2.0)
    with pytest.raises(DeviceFailed, match="failed while libraries took turns"):
        runner.turns(TASK, request_of)
    assert runner.run(TASK, [request(RIGHT, 1)])[0].ok


def test_turns_are_interrupted_at_once(runner: Runner) -> None:
    asked = TurnsRequest(TASK.instances, (built(SLOW, 0),), ((0, 0),), False, 60.0)
    began_s = time.monotonic()
    with pytest.raises(Interrupted):
        runner.turns(TASK, asked, lambda: time.monotonic() - began_s > 0.05)
    assert runner.run(TASK, [request(RIGHT, 1)])[0].ok


def test_the_device_serves_another_task_next(runner: Runner) -> None:
    size = ShapeVar("S", range(1, 33))
    other = SearchTask("matmul", {"m": size, "n": size, "k": size}, (size,), instances=[8], target=TASK.target)
    assert runner.run(TASK, [request()])[0].ok
    square = RunRequest(built(), (WorkloadInstance.of({"S": 8}),))
    assert runner.run(other, [square])[0].ok
    assert runner.run(TASK, [request()])[0].ok


def test_the_device_is_found_again_when_its_session_was_killed(bed: Bed) -> None:
    bed.runner.run(TASK, [request()])
    for session in psutil.Process(bed.server_pid).children():
        os.kill(session.pid, signal.SIGKILL)
    bed.runner.run(TASK, [request(RIGHT, 1)])
    assert bed.runner.run(TASK, [request(RIGHT, 2)])[0].ok
    bed.runner.close()


def test_close_gives_the_device_back_at_once(bed: Bed) -> None:
    bed.runner.run(TASK, [request()])
    assert len(psutil.Process(bed.server_pid).children()) == 1
    bed.runner.close()
    _, alive = psutil.wait_procs(psutil.Process(bed.server_pid).children(), timeout=5)
    assert alive == []


# -- interrupted, silent and gone -------------------------------------------------------------------------------------
@pytest.fixture
def patient(bed: Bed) -> Iterator[Runner]:
    """Would wait for a minute."""
    bed.runner.close()
    runner = RpcRunner(bed.connect, timeout_s=60.0)
    yield runner
    runner.close()


def soon(after_s: float = 0.5) -> Callable[[], bool]:
    began = time.monotonic()
    return lambda: time.monotonic() - began > after_s


@pytest.mark.parametrize("behaviour", chosen([HANG_WHEN_TIMED], [HANG, HANG_WHEN_TIMED]))
def test_what_is_interrupted_is_killed_at_once_and_what_was_done_is_kept(
    bed: Bed, patient: Runner, behaviour: str
) -> None:
    patient.run(TASK, [request()])
    running = bed.sessions()
    unbuilt = BuildResult(kernel(1), None, 0.0, ErrorKind.BUILD, "no")
    done = RunRequest(unbuilt, (WorkloadInstance.of({"T": 5}),))
    results = patient.run(TASK, [done, request(behaviour, 2, 64), request(RIGHT, 3)], soon(2.0))

    assert [result.error_kind for result in results] == [ErrorKind.BUILD]
    _, alive = psutil.wait_procs(running, timeout=5)
    assert alive == []
    assert patient.run(TASK, [request(RIGHT, 3)])[0].ok


def test_an_interrupted_verification_says_nothing_of_the_build(patient: Runner) -> None:
    with pytest.raises(Interrupted):
        patient.verify(TASK, built(HANG), [{"m": 5}], soon())
    assert patient.verify(TASK, built(RIGHT), [{"m": 5}]) == []


def test_what_is_not_wanted_any_more_does_not_wait_for_a_device(bed: Bed, patient: Runner) -> None:
    if bed.device != "rack-7":
        pytest.skip("a private device has no queue")
    holder = RpcRunner(bed.connect)
    holder.run(TASK, [request()])
    began = time.monotonic()
    assert patient.run(TASK, [request(RIGHT, 1)], soon()) == []
    assert time.monotonic() - began < 15.0
    holder.close()
    assert patient.run(TASK, [request(RIGHT, 1)])[0].ok


def test_a_silent_connection_keeps_nobody_away(bed: Bed, patient: Runner) -> None:
    with socket.create_connection(("127.0.0.1", bed.port)):
        assert patient.run(TASK, [request()])[0].ok


def test_a_client_may_be_silent_between_two_requests(bed: Bed, patient: Runner) -> None:
    assert patient.run(TASK, [request(RIGHT, 1)])[0].ok
    (session,) = bed.sessions()
    time.sleep(SILENT_S + 1.0)
    assert patient.run(TASK, [request(RIGHT, 2)])[0].ok
    assert bed.sessions() == [session]
