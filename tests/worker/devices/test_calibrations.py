"""A device is calibrated once, before the first search on it; whatever goes wrong, the search begins."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes import FakeBuilder
from tests.measuring import wait_for
from tests.worker.budget.curves import Bed, flat, leased
from tests.worker.jobs.scripted import Tools
from tuner.calibration.cpu import layer
from tuner.measure import BuilderLost, DeviceBusy, DeviceLost, WrongDevice, never
from tuner.measure.network.connecting import Tracker
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.program.target.calibration import VERSION, Calibration
from tuner.program.target.rates import TYPICAL, Rates
from tuner.storage import JobState
from tuner.storage.sql import Storage, open_storage
from worker.devices.calibrations import AGAIN_S, Calibrations, Candidate, candidates_of
from worker.devices.registry import DeviceList
from worker.jobs.runner import JobRunner

RATES = Rates(clock_hz=3.1e9, loads=1.5)


def found_for(task: SearchTask, rates: Rates = RATES) -> Calibration:
    target = task.known_target.fingerprint
    return Calibration(VERSION, task.threads, target, rates, None, 250, 0.2, 0.05, 30.0, "2026-11-23T13:56:24+00:00")


def task_on(threads: int = 1) -> SearchTask:
    return layer(96, 64, native(), threads)


@dataclass
class Rig:
    """Devices ``a`` and ``b`` of one key, and what calibrates them."""

    storage: Storage
    busy: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    reported: list[tuple[str, str | None]] = field(default_factory=list)
    answer: Callable[[Calibration], Calibration | None] = lambda found: found
    now_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            self.storage.register_device(name, "local", native(), {})

    def worker(self) -> Calibrations:
        return Calibrations(self.storage, self._candidates, FakeBuilder, self._make, lambda: self.now_s)

    def _candidates(self, key: str) -> list[Candidate]:
        assert key == "local"
        return [self._candidate(name) for name in ("a", "b")]

    def _candidate(self, name: str) -> Candidate:
        runner: Any = Tools()
        runner.name, runner.close = name, lambda: self.closed.append(name)

        def report(problem: str | None) -> None:
            self.reported.append((name, problem))

        return Candidate(name, lambda: name not in self.busy, lambda: runner, report)

    def _make(self, target: Any, threads: int, *, builder: Any, runner: Any, interrupted: Any) -> Calibration | None:
        self.made.append(runner.name)
        return self.answer(found_for(task_on(threads)))


@pytest.fixture
def rig(sqlite_url: str) -> Iterator[Rig]:
    with closing(open_storage(sqlite_url)) as storage:
        yield Rig(storage)


def test_a_device_is_calibrated_once_and_every_worker_uses_it(rig: Rig) -> None:
    first, second = rig.worker(), rig.worker()
    assert [each.rates("local", task_on(), never) for each in (first, first, second)] == [RATES] * 3
    assert (rig.made, rig.closed) == (["a"], ["a"])
    assert rig.storage.list_devices()[0].calibration(native(), 1) == found_for(task_on())


def test_a_search_is_told_that_a_device_is_calibrated_and_how_long_that_takes(rig: Rig) -> None:
    said: list[str] = []
    assert rig.worker().rates("local", task_on(), never, said.append) == RATES
    assert rig.made == ["a"]
    assert said == [
        "calibrating device a for 1 thread, once, before the search: up to 60 s",
        "device a is calibrated, in 30 s: theory is off by 5 % of the time, by 20 % before",
    ]
    said.clear()
    assert rig.worker().rates("local", task_on(), never, said.append) == RATES
    assert said == []
    rig.answer = lambda found: None
    rig.worker().rates("local", task_on(2), never, said.append)
    assert said == [
        "calibrating device a for 2 threads, once, before the search: about 30 s, as before",
        "device a could not be calibrated: theory takes typical rates",
    ]


def test_other_threads_and_another_version_are_measured_again(rig: Rig) -> None:
    rig.storage.device_calibrated("a", replace(found_for(task_on()), version=VERSION + 1))
    calibrations = rig.worker()
    for threads in (1, 2, 2, 1):
        assert calibrations.rates("local", task_on(threads), never) == RATES
    assert rig.made == ["a", "a"]


def test_what_is_known_of_one_device_serves_its_key(rig: Rig) -> None:
    rig.storage.device_calibrated("b", found_for(task_on()))
    assert rig.worker().rates("local", task_on(), never) == RATES
    assert rig.made == []


def test_a_device_that_measures_for_somebody_else_is_left_alone(rig: Rig) -> None:
    calibrations = rig.worker()
    rig.busy |= {"a", "b"}
    assert calibrations.rates("local", task_on(), never) == TYPICAL
    rig.busy -= {"b"}
    assert calibrations.rates("local", task_on(), never) == RATES
    assert rig.made == ["b"]


def test_a_search_does_not_wait_again_for_what_failed_a_while_ago(rig: Rig) -> None:
    rig.answer, calibrations = lambda found: None, rig.worker()
    tries = [calibrations.rates("local", task_on(), never) for _ in range(3)]
    assert tries == [TYPICAL] * 3
    assert rig.made == ["a", "b"]
    rig.answer, rig.now_s = lambda found: found, AGAIN_S + 1
    assert calibrations.rates("local", task_on(), never) == RATES


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (DeviceLost("it is gone"), [("a", "it is gone")]),
        (DeviceBusy("others have it"), []),
        (WrongDevice("it lacks amx"), []),
        (BuilderLost("Ray has died"), []),
        (ZeroDivisionError("a defect"), []),
    ],
)
def test_whatever_goes_wrong_the_search_begins(
    rig: Rig, error: Exception, reported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(found: Calibration) -> Calibration:
        raise error

    rig.answer = fail
    with caplog.at_level(logging.WARNING):
        assert rig.worker().rates("local", task_on(), never) == TYPICAL
    assert rig.reported == reported
    assert str(error) in caplog.text
    assert rig.closed == ["a"]


def test_who_waits_for_anothers_calibration_gets_it_and_may_stop_waiting(rig: Rig) -> None:
    calibrations, begun, go_on = rig.worker(), threading.Event(), threading.Event()

    def slow(found: Calibration) -> Calibration:
        begun.set()
        assert go_on.wait(20)
        return found

    rig.answer = slow
    got: list[Rates] = []
    threads = [
        threading.Thread(target=lambda: got.append(calibrations.rates("local", task_on(), never))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    assert calibrations.rates("local", task_on(), lambda: True) == TYPICAL
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert got == [RATES] * 2
    assert rig.made == ["a"]


def test_the_searches_of_a_job_begin_with_the_rates_of_its_devices(rig: Rig) -> None:
    lease, bed = leased(rig.storage), Bed([flat] * 3)
    opened: list[Rates] = []
    asked: list[str] = []

    def open_search(task: SearchTask, *given: Any, **named: Any) -> Any:
        opened.append(task.rates)
        return bed.open(task, *given, **named)

    def rates_of(key: str, task: SearchTask, interrupted: Callable[[], bool], say: Callable[[str], None]) -> Rates:
        asked.append(key)
        say("calibrating")
        assert opened == []
        return RATES

    runner = JobRunner(rig.storage, Tools(), open_search=open_search, heartbeat_s=0.05, rates_of=rates_of)
    assert runner.run(lease) is JobState.COMPLETED
    assert opened == [RATES] * 3
    assert asked == [lease.job.device]
    events = rig.storage.list_events(lease.job.id)
    told = [event.data.get("message") for event in events if event.kind == "log"]
    assert told[0] == "calibrating", "before anything is measured"
    kinds = [event.kind for event in events]
    assert "progress" not in kinds[: kinds.index("log")]


def test_rates_go_with_a_task_to_the_process_of_its_search() -> None:
    assert pickle.loads(pickle.dumps(task_on().at_rates(RATES))).rates == RATES


def test_the_devices_of_a_tracker_are_free_until_somebody_measures(rig: Rig, tracker: tuple[str, int]) -> None:
    devices = DeviceList(rig.storage, Tracker(*tracker), every_s=0.0)
    wait_for(lambda: devices.refresh() == {"local": 1})

    def runner_on(known: Any, address: Any) -> RpcRunner:
        return RpcRunner(lambda life_s, interrupted: devices.session(known, address, life_s, interrupted))

    (candidate,) = candidates_of(devices, runner_on)("local")
    assert (candidate.id, candidate.is_free()) == ("here:0", True)
    runner = candidate.runner()
    try:
        runner.ready(task_on())
        assert not candidate.is_free()
    finally:
        runner.close()
