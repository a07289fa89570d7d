"""What every Builder does: on child processes, and on Ray."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.measuring import TASK, kernel
from tests.shares import chosen
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import CompiledKernel, LibraryFiles
from tuner.measure import Builder, BuilderLost, LibraryFailed
from tuner.measure.builders import child as building
from tuner.measure.builders.child import Build, Link
from tuner.measure.builders.local import LocalBuilder
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel
from worker.building.cluster import Cluster
from worker.building.cores import Cores
from worker.building.ray_builder import RayBuilder

pytestmark = pytest.mark.together("ray")
LIMIT_S = 2.0
PER_PROCESS = 12
RIGHT, RAISES, CRASHES, HANGS = range(4)
START_S = 120.0

Make = Callable[[int], Builder]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def misbehaving() -> Build:
    """A build that does as the kernel's number says. Nested, so that it travels to other processes by value."""

    def build(task: SearchTask, kernel: MicroKernel) -> CompiledKernel:
        import os  # noqa: PLC0415  (it has to be found in the other process)
        import signal  # noqa: PLC0415
        import time  # noqa: PLC0415

        from tuner.library.package import CompiledKernel  # noqa: PLC0415

        what = kernel["number"] % 4
        if what == 1:
            raise ValueError(f"no {task.workload} with kernel {kernel['number']}")
        if what == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while what == 3:
            time.sleep(60)
        return CompiledKernel(str(os.getpid()).encode(), b"object")

    return build


def mislinking() -> Link:
    """Compiles a library as the job's id says."""

    def link(dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        import time  # noqa: PLC0415

        from tuner.library.package import LibraryFiles  # noqa: PLC0415

        if job_id == "raises":
            raise ValueError("no such instruction")
        if job_id == "crashes":
            os.kill(os.getpid(), signal.SIGKILL)
        while job_id == "hangs":
            time.sleep(60)
        return LibraryFiles(
            {"library.so": b"machine code"}, {"pid": os.getpid(), "objects": list(objects.values())}, {}
        )

    return link


locally = pytest.mark.parametrize("make", ["local", pytest.param("ray", marks=pytest.mark.soak)], indirect=True)
"""An actor is a process, which takes seconds to start."""


@pytest.fixture(scope="module", params=chosen(["local"], ["local", "ray"]))
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a builder on so many processes."""
    if request.param == "local":
        return lambda count: LocalBuilder(
            misbehaving(), mislinking(), processes=count, timeout_s=LIMIT_S, builds_per_process=PER_PROCESS
        )
    cluster: Cluster = request.getfixturevalue("cluster")
    return lambda count: RayBuilder(
        misbehaving(),
        mislinking(),
        actors=lambda: count,
        timeout_s=LIMIT_S,
        builds_per_actor=PER_PROCESS,
        alive=cluster.alive,
        cores=Cores(2),
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


@locally
def test_builds_run_in_other_processes_which_are_replaced_when_old(builder: Builder) -> None:
    results = builder.build(TASK, numbers(*[RIGHT] * (2 * PER_PROCESS + 1)))
    pids = {int(result.binary or b"0") for result in results}
    assert os.getpid() not in pids
    assert len(pids) > 2


def test_nothing_to_build_is_no_work(builder: Builder) -> None:
    assert builder.build(TASK, []) == []


# -- libraries --------------------------------------------------------------------------------------------------------
DISPATCHER = Dispatcher(TASK, (kernel(0), kernel(1)), 0, Leaf(0), ())


def test_a_library_is_compiled_in_another_process(builder: Builder) -> None:
    (built,) = builder.build(TASK, numbers(RIGHT))
    files = builder.library(DISPATCHER, "job-1", {built.kernel: built.code})
    assert files.files == {"library.so": b"machine code"}
    assert files.manifest["pid"] != os.getpid()
    assert files.manifest["objects"] == [b"object"]


@locally
@pytest.mark.parametrize(
    ("behaviour", "limit_s", "says"),
    [
        ("raises", 60.0, "ValueError: no such instruction"),
        ("crashes", 60.0, "the compiler's process ended"),
        # A process that hangs is ended as a build's is, above.
        pytest.param("hangs", 2.0, "it took longer than 2 s", marks=pytest.mark.soak),
    ],
)
def test_a_compiler_that_fails_costs_the_library_alone(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, behaviour: str, limit_s: float, says: str
) -> None:
    monkeypatch.setattr(building, "LIBRARY_S", limit_s)
    monkeypatch.setattr(building, "KERNEL_S", 0.0)
    with pytest.raises(LibraryFailed, match=f"the library of 2 kernels .* cannot be compiled: {says}"):
        builder.library(DISPATCHER, behaviour, {})
    monkeypatch.setattr(building, "LIBRARY_S", 60.0)
    assert builder.library(DISPATCHER, None, {}).files
    assert builder.build(TASK, numbers(RIGHT))[0].binary is not None


@locally
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


def test_builds_on_a_machine_whose_cores_are_measured_on_wait_for_their_turn(cluster: Cluster) -> None:
    cores = Cores(1)
    builder = RayBuilder(misbehaving(), mislinking(), actors=lambda: 1, alive=cluster.alive, cores=cores)
    try:
        with ThreadPoolExecutor(2) as threads:
            with cores.taken(1):
                build = threads.submit(builder.build, TASK, numbers(RIGHT, RIGHT))
                link = threads.submit(builder.library, Dispatcher(TASK, (kernel(0),), 0, Leaf(0)), None, {})
                until(lambda: len(cores._waiting) == 2)
                assert not (build.done() or link.done())
            assert all(result.binary for result in build.result(START_S))
            assert link.result(START_S).files
        assert cores.take_free(2) == 1
    finally:
        builder.close()


def test_a_build_that_waits_for_cores_ends_with_its_cluster() -> None:
    cores, is_alive = Cores(1), threading.Event()
    is_alive.set()
    builder = RayBuilder(misbehaving(), mislinking(), actors=lambda: 1, alive=is_alive.is_set, cores=cores)
    with ThreadPoolExecutor(1) as threads, cores.taken(1):
        build = threads.submit(builder.build, TASK, numbers(RIGHT))
        until(lambda: len(cores._waiting) == 1)
        is_alive.clear()
        with pytest.raises(BuilderLost, match="has died"):
            build.result(START_S)
