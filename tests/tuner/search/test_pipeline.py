"""What a search does while devices measure: results are recorded, and the next round is thought out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.fakes import TASK, FakeBuilder, FakeRunner
from tuner.measure import DeviceLost, KeptBuilds, RunRequest, never
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult, Phase
from tuner.schedule.space import MicroKernel
from tuner.search.context import SearchContext, SearchTools
from tuner.search.observations import Measured
from tuner.search.pipeline import FASTEST_READINGS, Pipeline, Round
from tuner.search.policy import Suggestion
from tuner.search.stopping import Cancelled, Stopping
from tuner.search.stream import InFlight

AT_MOST_S = 20.0
AT = TASK.instances[0]


def suggestions(first: int, count: int) -> list[Suggestion]:
    return [Suggestion(MicroKernel("r", 1, (("a", number),)), (AT,), (1.0,)) for number in range(first, first + count)]


def number(kernel: MicroKernel) -> int:
    return dict(kernel.values)["a"]


@dataclass
class Gated(FakeRunner):
    """A later kernel is slower, unless ``latency_s`` says otherwise; ``gate`` is waited for before a kernel is done."""

    gate: Callable[[int], None] = lambda number: None
    latency: Callable[[int], float] = lambda number: 1.0 + number
    lost_over: int | None = None

    def run(
        self, task: SearchTask, requests: Sequence[RunRequest], interrupted: Callable[[], bool] = never
    ) -> list[MeasureResult]:
        results = []
        for request in requests:
            at = number(request.build.kernel)
            if at == self.lost_over:
                raise DeviceLost(f"gone over {at}")
            self.gate(at)
            results += [MeasureResult(request.build.kernel, each, self.latency(at)) for each in request.instances]
        return results


@dataclass
class Book:
    """A ledger that says what was entered, and in which order."""

    budget: int = 1000
    seconds: float = 1e6
    measured: Measured = field(default_factory=Measured)
    round: int = 0
    entered: list[int] = field(default_factory=list)
    told: Callable[[int], None] = lambda number: None
    stops_after: int = 1000

    def take_in(self, flights: Sequence[InFlight], phase: Phase) -> None:
        for flight in flights:
            self.measured.add(replace(result, phase=phase) for result in flight.results)
            for result in flight.results:
                self.entered.append(number(result.kernel))
                self.told(number(result.kernel))

    def left(self, reserve: int = 0) -> int:
        return self.budget - reserve - self.measured.trials

    def seconds_left(self, reserve_s: float) -> float:
        return self.seconds - reserve_s

    step_s = 0.0

    def is_full(self) -> bool:
        return len(self.entered) >= self.stops_after


def run(
    book: Book,
    runner: Gated,
    suggested: Sequence[Suggestion],
    plan_next: Callable[[Sequence[Suggestion]], Round] | None = None,
    *,
    beside: int = 1,
    reserve: int = 0,
    phase: Phase = Phase.SEARCH,
) -> FakeBuilder:
    builder = FakeBuilder()
    builds = KeptBuilds(TASK, builder, beside)
    unused: Any = None
    stop = Stopping(book.is_full, never, unused)
    context = SearchContext(TASK, SearchTools(builder, runner, unused), unused, unused, builds, unused, stop)
    Pipeline(context, book, phase, 0.0, reserve, plan_next).run(suggested)
    builds.close()
    return builder


def test_a_result_is_recorded_while_the_next_kernel_is_measured() -> None:
    recorded = threading.Event()
    book = Book(told=lambda at: recorded.set() if at == 0 else None)
    # The second one is not done before the first is recorded.
    runner = Gated(gate=lambda at: None if at != 1 or recorded.wait(AT_MOST_S) else pytest.fail("nothing was recorded"))
    run(book, runner, suggestions(0, 4))
    assert book.entered == [0, 1, 2, 3]


def test_the_next_round_is_planned_while_the_last_kernels_are_measured_and_is_told_of_them() -> None:
    planned = threading.Event()
    pending: list[list[int]] = []

    def plan_next(under_way: Sequence[Suggestion]) -> Round:
        pending.append([number(each.kernel) for each in under_way])
        planned.set()
        return Round(suggestions(10, 2) if len(pending) == 1 else (), 0.0)

    runner = Gated(gate=lambda at: None if at != 3 or planned.wait(AT_MOST_S) else pytest.fail("nothing was planned"))
    book = Book()
    run(book, runner, suggestions(0, 4), plan_next)
    assert pending[0] == [1, 2, 3]
    assert book.entered == [0, 1, 2, 3, 10, 11]


def test_where_nothing_may_be_built_beside_a_measurement_nothing_is_planned_or_recorded_beside_it() -> None:
    book = Book()
    measured: list[int] = []

    def gate(at: int) -> None:
        assert len(book.entered) % 3 == 0
        measured.append(at)

    book.told = lambda at: None if len(measured) % 3 == 0 else pytest.fail("was recorded within a batch")
    planned = lambda pending: pytest.fail("was planned")  # noqa: E731
    run(book, Gated(gate=gate), suggestions(0, 6), planned, beside=0, phase=Phase.FINAL)
    assert book.entered == list(range(6))


def test_several_devices_have_as_many_kernels_waiting_as_they_measure() -> None:
    # Eight kernels are under way before any of them is done.
    together = threading.Barrier(8)
    book, runner = Book(), Gated(gate=lambda at: (together.wait(AT_MOST_S), None)[1])
    runner.devices = 4
    run(book, runner, suggestions(0, 8), phase=Phase.FINAL)
    assert sorted(book.entered) == list(range(8))


@pytest.mark.parametrize("devices", [1, 4])
def test_what_leads_is_read_again_and_what_does_not_is_not(devices: int) -> None:
    book, runner = Book(), Gated(latency=lambda at: 1.0 if at == 1 else 2.0 + at)
    runner.devices = devices
    run(book, runner, suggestions(0, 8))
    assert book.entered.count(1) == FASTEST_READINGS
    assert {at: book.entered.count(at) for at in range(2, 8)} == dict.fromkeys(range(2, 8), 1)


def test_finalists_are_read_once() -> None:
    book = Book()
    run(book, Gated(latency=lambda at: 1.0 / (1 + at)), suggestions(0, 6), phase=Phase.FINAL)
    assert book.entered == list(range(6))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("beside", [0, 2])
def test_no_more_is_measured_than_the_budget_has_less_the_reserve(devices: int, beside: int) -> None:
    book, runner = Book(budget=10), Gated(latency=lambda at: 1.0 / (1 + at))
    runner.devices = devices
    run(book, runner, suggestions(0, 40), beside=beside, reserve=3)
    assert len(book.entered) == 7


def test_what_was_measured_before_a_device_was_lost_is_recorded() -> None:
    book, runner = Book(), Gated(lost_over=5)
    with pytest.raises(DeviceLost, match="gone over 5"):
        run(book, runner, suggestions(0, 8))
    assert book.entered[:5] == [0, 1, 2, 3, 4]
    assert set(book.entered) <= {0, 1, 2, 3, 4, 6, 7}


def test_a_stop_records_what_is_done_and_begins_nothing_else() -> None:
    book, runner = Book(stops_after=2), Gated()
    with pytest.raises(Cancelled):
        run(book, runner, suggestions(0, 40))
    assert book.entered[:2] == [0, 1]
    assert len(book.entered) <= 2 + 3


def test_a_ledger_that_fails_ends_what_is_under_way() -> None:
    def fails(at: int) -> None:
        raise RuntimeError("the database is gone")

    book = Book(told=fails)
    with pytest.raises(RuntimeError, match="the database is gone"):
        run(book, Gated(), suggestions(0, 8))
    assert book.entered == [0]


def test_nothing_more_is_begun_once_the_seconds_are_over() -> None:
    book = Book(seconds=0.0)
    run(book, Gated(), suggestions(0, 40))
    assert 1 <= len(book.entered) <= 3
