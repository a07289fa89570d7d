"""Requests of one call on several devices at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.fakes import FakeRunner
from tests.measuring import TASK, kernel
from tuner.measure import BuildResult, DeviceLost, Interrupted, Runner, RunRequest, WrongDevice, never
from tuner.measure._base import DeviceBusy
from tuner.measure.runners import workers as device_workers
from tuner.measure.runners.pool import RunnerPool
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import Baselines, ErrorKind, MeasureResult

AT_ONCE_S = 20.0


@dataclass
class Device(FakeRunner):
    """One of several. ``meets``: a run waits until as many devices run. ``loses``: over how many runs it is lost."""

    number: int = 0
    meets: threading.Barrier | None = None
    loses: int = 0
    fails: Exception | None = None
    broken: bool = False
    closed: int = 0
    prepared: list[SearchTask] = field(default_factory=list)

    def ready(self, task: SearchTask, interrupted: Callable[[], bool] = never) -> None:
        self.prepared.append(task)

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        if self.loses:
            self.loses -= 1
            raise DeviceLost(f"device {self.number} is gone")
        if self.fails is not None:
            raise self.fails
        if self.meets is not None:
            self.meets.wait(AT_ONCE_S)
        if self.broken:
            return [
                MeasureResult(each.build.kernel, at, error_kind=ErrorKind.MACHINE, error="the disk is full")
                for each in requests
                for at in each.instances
            ]
        return [
            MeasureResult(each.build.kernel, at, 1.0, device=f"d{self.number}")
            for each in requests
            for at in each.instances
        ]

    def verify(
        self,
        task: SearchTask,
        build: BuildResult,
        dims: Sequence[Mapping[str, int]],
        interrupted: Callable[[], bool] = never,
    ) -> list[tuple[Mapping[str, int], str]]:
        if interrupted():
            raise Interrupted("no longer wanted")
        return super().verify(task, build, dims)

    def close(self) -> None:
        self.closed += 1


class Poisoned(Device):
    """Is lost over the kernel of number 1."""

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        if any(each.build.kernel["number"] == 1 for each in requests):
            raise DeviceLost(f"device {self.number} is gone")
        return super().run(task, requests, interrupted)


@dataclass
class Told(Device):
    """Says when it is given back."""

    given_back: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        super().close()
        self.given_back.set()


class Silent(Device):
    def baselines(self, task: SearchTask, instances: Sequence[WorkloadInstance]) -> Baselines:
        raise DeviceLost("it says nothing")


def pool_of(*devices: Device) -> RunnerPool:
    members = {device.number: partial(_same, device) for device in devices}
    return RunnerPool(lambda: members, discovery_s=0.0)


def _same(device: Device) -> Runner:
    return device


def requests(count: int, *shapes: int) -> list[RunRequest]:
    instances = tuple(WorkloadInstance.of({"T": t}) for t in shapes or (5, 9))
    return [RunRequest(BuildResult(kernel(number), b"code", 0.0), instances) for number in range(count)]


def names(results: Sequence[MeasureResult]) -> list[tuple[int, int]]:
    return [(result.kernel["number"], result.instance.shape["T"]) for result in results]


IN_ORDER = [(number, t) for number in range(6) for t in (5, 9)]


def test_devices_measure_at_the_same_time_and_results_keep_the_order_of_the_requests() -> None:
    together = threading.Barrier(3)
    pool = pool_of(*(Device(number=number, meets=together) for number in range(3)))
    results = pool.run(TASK, requests(6))
    assert names(results) == IN_ORDER
    assert {result.device for result in results} == {"d0", "d1", "d2"}
    assert pool.devices == 3


def test_another_device_takes_over_what_a_lost_one_was_working_on() -> None:
    lost = Device(number=0, loses=1)
    results = pool_of(lost, Device(number=1)).run(TASK, requests(6))
    assert names(results) == IN_ORDER
    assert {result.device for result in results} == {"d1"} or lost.loses == 1


def test_the_call_fails_when_all_devices_are_lost() -> None:
    pool = pool_of(Device(loses=1))
    with pytest.raises(DeviceLost, match="is gone"):
        pool.run(TASK, requests(4))
    assert names(pool.run(TASK, requests(6))) == IN_ORDER


def test_what_else_a_device_raises_ends_the_call() -> None:
    pool = pool_of(*(Device(number=n, fails=WrongDevice("lacks avx512f")) for n in range(2)))
    with pytest.raises(WrongDevice, match="lacks avx512f"):
        pool.run(TASK, requests(4))


def test_an_interrupted_call_has_the_results_of_the_first_requests() -> None:
    assert pool_of(Device(), Device(number=1)).run(TASK, requests(4), lambda: True) == []


def test_problems_of_a_verification_come_in_the_order_of_the_shapes() -> None:
    def wrong(dims: Mapping[str, int]) -> str | None:
        return "off by one" if dims["m"] % 2 else None

    pool = pool_of(Device(wrong=wrong), Device(number=1, wrong=wrong))
    dims = [{"m": number} for number in range(7)]
    assert pool.verify(TASK, BuildResult(kernel(0), b"code", 0.0), dims) == [
        ({"m": number}, "off by one") for number in (1, 3, 5)
    ]
    with pytest.raises(Interrupted):
        pool.verify(TASK, BuildResult(kernel(0), b"code", 0.0), dims, lambda: True)


def test_one_request_of_many_instances_keeps_several_devices_busy() -> None:
    together = threading.Barrier(3)
    pool = pool_of(*(Device(number=number, meets=together) for number in range(3)))
    results = pool.run(TASK, requests(1, 1, 2, 3))
    assert names(results) == [(0, 1), (0, 2), (0, 3)]
    assert {result.device for result in results} == {"d0", "d1", "d2"}


def test_devices_without_work_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_workers, "IDLE_RELEASE_S", 100.0)
    first, second = Device(meets=threading.Barrier(2)), Device(number=1)
    second.meets = first.meets
    pool = pool_of(first, second)
    pool.run(TASK, requests(2, 5))
    first.meets = second.meets = None
    assert (first.closed, second.closed) == (0, 0)
    monkeypatch.setattr(device_workers, "IDLE_RELEASE_S", 0.0)
    pool.run(TASK, requests(1, 5))
    assert sorted((first.closed, second.closed)) == [0, 1]
    pool.close()
    assert (first.closed, second.closed) == (1, 1)


def test_one_request_goes_to_the_device_at_hand_and_to_another_if_that_is_lost() -> None:
    first, second = Device(), Device(number=1)
    pool = pool_of(first, second)
    pool.run(TASK, requests(1, 5))
    (again,) = {result.device for _ in range(5) for result in pool.run(TASK, requests(1, 5))}
    at_hand, other = (first, second) if again == "d0" else (second, first)
    at_hand.loses = 1
    assert {result.device for result in pool.run(TASK, requests(1, 5))} == {f"d{other.number}"}


def test_what_a_machine_failed_over_goes_to_another_and_the_device_rests() -> None:
    told: list[tuple[int, str | None]] = []
    broken, good = Device(broken=True), Device(number=1)
    pool = RunnerPool(lambda: {0: lambda: broken, 1: lambda: good}, lambda *each: told.append(each))
    results = pool.run(TASK, requests(12))
    assert names(results) == [(number, t) for number in range(12) for t in (5, 9)]
    assert len([result for result in results if not result.ok]) <= 1
    assert {name for name, problem in told if problem} <= {0}


def test_a_machine_that_fails_alone_answers_for_itself() -> None:
    (result, _) = RunnerPool(lambda: {0: lambda: Device(broken=True)}).run(TASK, requests(1))
    assert (result.error_kind, result.error) == (ErrorKind.MACHINE, "the disk is full")


def test_a_candidate_over_which_two_devices_are_lost_is_given_up() -> None:
    poison = requests(3)[1]
    pool = pool_of(*(Poisoned(number=number) for number in range(8)))
    results = pool.run(TASK, [requests(1)[0], poison, requests(3)[2]])
    assert [result.error_kind for result in results] == [None, None, ErrorKind.DEVICE, ErrorKind.DEVICE, None, None]
    assert "2 devices were lost over it; the last: device" in results[2].error


def test_what_was_not_built_is_no_devices_failure() -> None:
    told: list[tuple[int, str | None]] = []
    failed = BuildResult(kernel(0), None, 1.0, ErrorKind.MACHINE, "the builder's disk is full")
    pool = RunnerPool(lambda: {0: Device}, lambda *each: told.append(each))
    (result,) = pool.run(TASK, [RunRequest(failed, (WorkloadInstance.of({"T": 5}),))])
    assert (result.error_kind, result.error) == (ErrorKind.MACHINE, "the builder's disk is full")
    assert told == []


def test_a_device_that_is_busy_or_unsuitable_is_left_out_and_not_reported() -> None:
    told: list[tuple[int, str | None]] = []
    busy, unsuitable = Device(fails=DeviceBusy("others use it")), Device(number=1, fails=WrongDevice("lacks avx512f"))
    members = {0: lambda: busy, 1: lambda: unsuitable, 2: lambda: Device(number=2)}
    pool = RunnerPool(lambda: members, lambda *each: told.append(each))
    assert {result.device for result in pool.run(TASK, requests(9))} == {"d2"}
    assert {name for name, _ in told} == {2}


def test_what_was_done_before_the_last_device_was_lost_is_kept() -> None:
    pool = pool_of(Poisoned())
    assert names(pool.run(TASK, [requests(1)[0], requests(3)[1], requests(3)[2]])) == [(0, 5), (0, 9)]
    with pytest.raises(DeviceLost):
        pool.run(TASK, [requests(3)[1]])


def test_baselines_are_measured_on_another_device_if_the_first_is_lost() -> None:
    first, second = Silent(), Device(number=1)
    pool = pool_of(first, second)
    assert pool.baselines(TASK, TASK.instances).points
    assert second.compared
    with pytest.raises(DeviceLost, match="says nothing"):
        pool_of(Silent()).baselines(TASK, TASK.instances)


def test_a_failing_device_is_reported_and_so_is_one_that_works() -> None:
    told: list[tuple[int, str | None]] = []
    members = {0: lambda: Device(loses=1), 1: lambda: Device(number=1)}
    pool = RunnerPool(lambda: members, lambda *each: told.append(each))
    pool.run(TASK, requests(20))
    assert (1, None) in told
    assert {problem for name, problem in told if name == 0} <= {"device 0 is gone"}


def test_a_device_that_appears_is_used_and_one_that_goes_is_given_back() -> None:
    first, second = Device(), Device(number=1)
    present: dict[int, Callable[[], Runner]] = {}
    pool = RunnerPool(lambda: dict(present), discovery_s=0.1)
    assert pool.devices == 1
    with pytest.raises(DeviceLost, match="there has been no device"):
        pool.run(TASK, requests(1))
    assert pool.run(TASK, requests(1), lambda: True) == []
    present[0] = lambda: first
    assert pool.run(TASK, requests(1))[0].device == "d0"
    present.clear()
    present[1] = lambda: second
    assert pool.run(TASK, requests(1))[0].device == "d1"
    assert first.closed == 1


def test_nothing_to_do_is_no_work() -> None:
    pool = pool_of(Device(), Device(number=1))
    assert pool.run(TASK, []) == []
    assert pool.verify(TASK, BuildResult(kernel(0), b"code", 0.0), []) == []


def test_a_device_that_should_rest_is_used_where_there_is_no_other() -> None:
    fresh, tired = Device(number=0), Device(number=1)
    members = {0: lambda: fresh, 1: lambda: tired}
    pool = RunnerPool(lambda: members, should_rest=lambda name: name == 1)
    assert {result.device for result in pool.run(TASK, requests(4))} == {"d0"}
    fresh.loses = 1
    assert {result.device for result in pool.run(TASK, requests(2))} == {"d1"}
    both = RunnerPool(lambda: members, should_rest=lambda name: True)
    assert len(both.run(TASK, requests(2))) == len(pool.run(TASK, requests(2)))


def test_devices_that_idle_are_given_back_though_nobody_calls_but_for_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_workers, "IDLE_RELEASE_S", 0.0)
    together, given_back = threading.Barrier(2), threading.Event()
    first, second = (Told(number=number, meets=together, given_back=given_back) for number in range(2))
    pool = pool_of(first, second)
    pool.run(TASK, requests(2, 5))
    assert given_back.wait(AT_ONCE_S)
    assert sorted((first.closed, second.closed)) == [0, 1]
    pool.close()
    assert (first.closed, second.closed) == (1, 1)


def test_several_threads_share_the_devices_and_each_has_its_own_results() -> None:
    together = threading.Barrier(3)
    pool = pool_of(*(Device(number=number, meets=together) for number in range(3)))
    found: dict[int, list[tuple[int, int]]] = {}

    def call(number: int) -> None:
        (request,) = requests(number + 1, 5)[number:]
        found[number] = names(pool.run(TASK, [request]))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(AT_ONCE_S)
    assert found == {number: [(number, 5)] for number in range(3)}


def test_a_call_that_raises_or_is_interrupted_leaves_the_others_alone() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Device):
        def run(
            self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
        ) -> list[MeasureResult]:
            begun.set()
            assert go_on.wait(AT_ONCE_S)
            if requests[0].build.kernel["number"] == 1:
                raise ZeroDivisionError("a defect")
            return super().run(task, requests, interrupted)

    pool, raised, found = pool_of(Slow()), threading.Event(), []

    def call_that_raises() -> None:
        with pytest.raises(ZeroDivisionError, match="a defect"):
            pool.run(TASK, requests(2, 5)[1:])
        raised.set()

    callers = [threading.Thread(target=lambda: found.extend(pool.run(TASK, requests(1, 5))))]
    callers[0].start()
    assert begun.wait(AT_ONCE_S)
    callers.append(threading.Thread(target=call_that_raises))
    callers[1].start()
    assert pool.run(TASK, requests(3, 5)[2:], lambda: True) == []
    go_on.set()
    for caller in callers:
        caller.join(AT_ONCE_S)
    assert raised.is_set()
    assert names(found) == [(0, 5)]


def test_a_call_that_is_interrupted_while_there_is_no_device_has_done_nothing() -> None:
    pool = RunnerPool(dict, discovery_s=AT_ONCE_S)
    asked = RunRequest(BuildResult(kernel(1), b"built", 0.0), TASK.instances)
    assert pool.run(TASK, [asked], lambda: True) == []
    with pytest.raises(Interrupted):
        pool.verify(TASK, asked.build, [{}], lambda: True)
    with pytest.raises(Interrupted):
        pool.ready(TASK, lambda: True)
