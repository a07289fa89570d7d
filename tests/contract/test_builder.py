"""What every Builder does: on child processes, and on Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.measuring import TASK, kernel
from tuner.measure import Builder
from tuner.measure.building import Build
from tuner.measure.local_builder import LocalBuilder
from tuner.program.task import SearchTask
from tuner.records import ErrorKind
from tuner.rules.space import MicroKernel
from worker.cluster import Cluster
from worker.ray_builder import RayBuilder

LIMIT_S = 2.0
PER_PROCESS = 4
RIGHT, RAISES, CRASHES, HANGS = range(4)

Make = Callable[[int], Builder]


def misbehaving() -> Build:
    """A build that does as the kernel's number says. Nested, so that it travels to other processes by value."""

    def build(task: SearchTask, kernel: MicroKernel) -> bytes:
        import os  # noqa: PLC0415  (it has to be found in the other process)
        import signal  # noqa: PLC0415
        import time  # noqa: PLC0415

        what = kernel["number"] % 4
        if what == 1:
            raise ValueError(f"no {task.workload} with kernel {kernel['number']}")
        if what == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while what == 3:
            time.sleep(60)
        return str(os.getpid()).encode()

    return build


@pytest.fixture(scope="module", params=["local", "ray"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a builder on so many processes."""
    if request.param == "local":
        return lambda count: LocalBuilder(
            misbehaving(), processes=count, timeout_s=LIMIT_S, builds_per_process=PER_PROCESS
        )
    cluster: Cluster = request.getfixturevalue("cluster")
    return lambda count: RayBuilder(
        misbehaving(), actors=count, timeout_s=LIMIT_S, builds_per_actor=PER_PROCESS, alive=cluster.alive
    )


@pytest.fixture(scope="module")
def builder(make: Make) -> Iterator[Builder]:
    """One for all tests: its processes take seconds to load the compiler."""
    made = make(2)
    yield made
    made.close()


def numbers(*behaviours: int) -> list[MicroKernel]:
    """A kernel for each behaviour, all of them different."""
    return [kernel(4 * index + behaviour) for index, behaviour in enumerate(behaviours)]


def test_results_come_in_order_and_failures_touch_no_other_build(builder: Builder) -> None:
    kernels = numbers(RIGHT, RAISES, RIGHT, CRASHES, RIGHT, HANGS, RIGHT, RIGHT)
    started = time.monotonic()
    results = builder.build(TASK, kernels)
    assert [result.kernel for result in results] == kernels
    assert [result.error_kind for result in results] == [
        None,
        ErrorKind.BUILD,
        None,
        ErrorKind.BUILD,
        None,
        ErrorKind.BUILD_TIMEOUT,
        None,
        None,
    ]
    assert "ValueError: no matmul(m=T, n=24, k=16) with kernel 5" in results[1].error
    assert "2 s" in results[5].error
    assert results[3].error
    assert all((result.binary is None) == (result.error_kind is not None) for result in results)
    assert LIMIT_S <= results[5].build_s < time.monotonic() - started


def test_builds_run_in_other_processes_which_are_replaced_when_old(builder: Builder) -> None:
    results = builder.build(TASK, numbers(*[RIGHT] * (2 * PER_PROCESS + 2)))
    pids = {int(result.binary or b"0") for result in results}
    assert os.getpid() not in pids
    assert len(pids) > 2


def test_nothing_to_build_is_no_work(builder: Builder) -> None:
    assert builder.build(TASK, []) == []


def test_close_ends_the_processes(make: Make) -> None:
    builder = make(1)
    results = builder.build(TASK, numbers(RIGHT))
    builder.close()
    for pid in {int(result.binary or b"0") for result in results}:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}/stat").exists() and time.monotonic() < deadline:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                break
            time.sleep(0.05)
        else:
            assert not Path(f"/proc/{pid}").exists()
