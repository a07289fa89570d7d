"""What becomes of a device whose clients are interrupted, silent or gone: what is running is killed at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.contract.beds import ALL, Bed, bed_of
from tests.measuring import (
    HANG,
    HANG_WHEN_TIMED,
    RIGHT,
    kernel,
)
from tests.shares import chosen
from tuner.measure import BuildResult, Interrupted, Runner, RunRequest
from tuner.measure.device.process import SILENT_S
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind


@pytest.fixture(scope="module", params=chosen(["tracker"], ALL))
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fake_cuda: Path) -> Iterator[Bed]:
    with bed_of(request.param, tmp_path_factory.mktemp("device"), fake_cuda) as made:
        yield made


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
    on = bed.on
    patient.run(on.TASK, [on.request()])
    running = bed.sessions()
    unbuilt = BuildResult(kernel(1), None, 0.0, ErrorKind.BUILD, "no")
    done = RunRequest(unbuilt, (WorkloadInstance.of({"T": 5}),))
    results = patient.run(on.TASK, [done, on.request(behaviour, 2, 64), on.request(RIGHT, 3)], soon(2.0))

    assert [result.error_kind for result in results] == [ErrorKind.BUILD]
    _, alive = psutil.wait_procs(running, timeout=5)
    assert alive == []
    assert patient.run(on.TASK, [on.request(RIGHT, 3)])[0].ok


def test_an_interrupted_verification_says_nothing_of_the_build(bed: Bed, patient: Runner) -> None:
    on = bed.on
    with pytest.raises(Interrupted):
        patient.verify(on.TASK, on.built(HANG), [{"m": 5}], soon())
    assert patient.verify(on.TASK, on.built(RIGHT), [{"m": 5}]) == []


def test_what_is_not_wanted_any_more_does_not_wait_for_a_device(bed: Bed, patient: Runner) -> None:
    on = bed.on
    if bed.device != "rack-7":
        pytest.skip("a private device has no queue")
    holder = RpcRunner(bed.connect)
    holder.run(on.TASK, [on.request()])
    began = time.monotonic()
    assert patient.run(on.TASK, [on.request(RIGHT, 1)], soon()) == []
    assert time.monotonic() - began < 15.0
    holder.close()
    assert patient.run(on.TASK, [on.request(RIGHT, 1)])[0].ok


def test_a_silent_connection_keeps_nobody_away(bed: Bed, patient: Runner) -> None:
    on = bed.on
    with socket.create_connection(("127.0.0.1", bed.port)):
        assert patient.run(on.TASK, [on.request()])[0].ok


def test_a_client_may_be_silent_between_two_requests(bed: Bed, patient: Runner) -> None:
    on = bed.on
    assert patient.run(on.TASK, [on.request(RIGHT, 1)])[0].ok
    (session,) = bed.sessions()
    time.sleep(SILENT_S + 1.0)
    assert patient.run(on.TASK, [on.request(RIGHT, 2)])[0].ok
    assert bed.sessions() == [session]
