"""Each kernel is built once, ahead of time if asked to, by one thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pytest

from tests.fakes import TASK
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import LibraryFiles
from tuner.measure import BuilderLost, BuildResult, KeptBuilds
from tuner.program.job.task import SearchTask
from tuner.records import ErrorKind
from tuner.schedule.space import MicroKernel

A, B, C, D = (MicroKernel("r", 1, (("a", value),)) for value in range(4))


class Spy:
    """A builder that says what it was asked for, and waits for ``go`` before it builds."""

    def __init__(self) -> None:
        self.asked: list[list[MicroKernel]] = []
        self.threads: set[int] = set()
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
        self.begun.set()
        assert self.go.wait(10)
        self.asked.append(list(kernels))
        self.threads.add(threading.get_ident())
        if D in kernels:
            raise BuilderLost("gone")
        return [BuildResult(kernel, b"binary", 0.0, code=b"" if kernel == C else b"object") for kernel in kernels]

    def library(self, dispatcher: Dispatcher, job_id: str | None, objects: Mapping[MicroKernel, bytes]) -> LibraryFiles:
        self.threads.add(threading.get_ident())
        return LibraryFiles({"library.so": b"binary"}, {"job_id": job_id, "linked": list(objects)}, {})

    def close(self) -> None:
        pass


def test_a_library_comes_from_the_thread_that_builds() -> None:
    spy = Spy()
    builds = KeptBuilds(TASK, spy, beside=1)
    builds.build([A])
    dispatcher = Dispatcher(TASK, (A,), 0, Leaf(0), ())
    assert builds.library(dispatcher, "job-1").manifest == {"job_id": "job-1", "linked": [A]}
    assert len(spy.threads) == 1
    assert threading.get_ident() not in spy.threads


def test_a_library_is_linked_of_what_was_built_and_has_an_object() -> None:
    builds = KeptBuilds(TASK, Spy())
    builds.build([A, C])
    dispatcher = Dispatcher(TASK, (A, B, C), 0, Leaf(0), ())
    assert [builds.is_linkable(kernel) for kernel in (A, B, C)] == [True, False, False]
    assert builds.library(dispatcher, None).manifest["linked"] == [A]


def test_results_come_in_order_and_nothing_is_built_twice() -> None:
    spy = Spy()
    builds = KeptBuilds(TASK, spy)
    assert [build.kernel for build in builds.build([B, A])] == [B, A]
    assert [build.kernel for build in builds.build([A, C, B])] == [A, C, B]
    assert spy.asked == [[B, A], [C]]


def test_what_was_started_is_there_and_was_built_a_few_at_a_time() -> None:
    spy = Spy()
    builds = KeptBuilds(TASK, spy, beside=1)
    builds.start([A, B])
    builds.start([A])
    assert [build.kernel for build in builds.build([B, A, C])] == [B, A, C]
    assert spy.asked == [[A], [B], [C]]
    assert len(spy.threads) == 1
    assert threading.get_ident() not in spy.threads


def test_nothing_is_started_where_nothing_may_run_beside() -> None:
    spy = Spy()
    KeptBuilds(TASK, spy).start([A])
    assert spy.asked == []


def test_a_lost_builder_is_heard_of_when_its_build_is_wanted() -> None:
    builds = KeptBuilds(TASK, Spy(), beside=2)
    builds.start([D])
    assert builds.build([A])[0].kernel == A
    with pytest.raises(BuilderLost, match="gone"):
        builds.build([D])


def test_closing_waits_for_the_build_at_hand_and_begins_no_other() -> None:
    spy = Spy()
    spy.go.clear()
    builds = KeptBuilds(TASK, spy, beside=1)
    builds.start([A, B, C])
    threading.Timer(0.05, spy.go.set).start()
    builds.close()
    assert spy.asked in ([[A]], [])


def test_what_is_dropped_is_not_built_unless_it_was_begun() -> None:
    spy = Spy()
    spy.go.clear()
    builds = KeptBuilds(TASK, spy, beside=1)
    builds.start([A, B, C])
    assert spy.begun.wait(10)
    builds.drop()
    spy.go.set()
    assert [build.kernel for build in builds.build([A, C])] == [A, C]
    assert spy.asked == [[A], [C]]


def test_what_the_machine_failed_over_is_built_again_when_it_is_asked_for() -> None:
    class Full(Spy):
        """Has no room for its first two builds of B."""

        def build(self, task: SearchTask, kernels: Sequence[MicroKernel]) -> list[BuildResult]:
            results = super().build(task, kernels)
            if sum(B in asked for asked in self.asked) > 2:
                return results
            full = {B: BuildResult(B, None, 0.0, ErrorKind.MACHINE, "no space left")}
            return [full.get(result.kernel, result) for result in results]

    spy = Full()
    builds = KeptBuilds(TASK, spy, beside=1)
    assert [build.error_kind for build in builds.build([A, B])] == [None, ErrorKind.MACHINE]
    assert builds.has(A) and not builds.has(B)
    builds.start([A, B])
    assert [build.error_kind for build in builds.build([B, A, B])] == [ErrorKind.MACHINE, None, ErrorKind.MACHINE]
    assert [build.error_kind for build in builds.build([B])] == [None]
    assert spy.asked == [[A, B], [B], [B]]
    builds.close()
