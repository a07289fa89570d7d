"""Suggestions become results here: kernels are built, measured, recorded and learned from at the same time.

While devices measure, the results before are recorded and learned from, and the next round is thought out as soon as
all of the present one is under way. Devices that have a queue of their own do not wait for any of that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.program.language.workload import WorkloadInstance
from tuner.records import Phase
from tuner.search.context import SearchContext, equivalent_devices
from tuner.search.observations import Measured
from tuner.search.policy import Suggestion
from tuner.search.stream import InFlight, MeasureStream, Queued

BATCH = 3
"""Kernels for each device that are built, and then run, where nothing may be built beside measurements."""
TURNS = 3
"""The number of turns, of all kernels under way, that there must be time for."""
FASTEST_READINGS = 3
"""How often a kernel is measured that is the fastest at an instance: of many single readings the least is lucky."""
OVERRUN_S = 2.0
"""How far a trial may pass the end of the budget's seconds, the reserve apart, before it is killed."""
READ_ONCE = (Phase.KNOWN, Phase.FINAL)
"""Phases whose fastest are not measured again: they were chosen for the median of many readings."""


@dataclass(frozen=True, slots=True)
class Round:
    """The next suggestions of a policy. ``reserve_s``: seconds of the budget that are kept for what comes after."""

    suggestions: Sequence[Suggestion]
    reserve_s: float


PlanNext = Callable[[Sequence[Suggestion]], Round]
"""Called with what is still measured; a round without suggestions ends the search for now."""


class TrialSink(Protocol):
    """What the trials of a search are entered in: tuner.search.trials.Trials."""

    measured: Measured
    round: int

    def take_in(self, flights: Sequence[InFlight], phase: Phase) -> None:
        """Record results, and learn from them."""

    def left(self, reserve: int = 0) -> int:
        """Trials of the budget that are left, without ``reserve``."""

    def seconds_left(self, reserve_s: float) -> float:
        """Seconds of the budget that are left, without ``reserve_s``."""

    @property
    def step_s(self) -> float:
        """The time to build and measure a kernel, about."""


class Pipeline:
    """One stretch of a search: ``run`` returns when all suggestions, and those of the rounds after, are measured.

    It ends early once only ``reserve_s`` of the budget is left; the fastest are measured again while more than
    ``reserve`` trials are left. ``plan_next`` is asked only where kernels may be built beside measurements: elsewhere
    building, measuring and thinking take turns, so that none disturbs another.
    """

    def __init__(
        self,
        context: SearchContext,
        ledger: TrialSink,
        phase: Phase,
        reserve_s: float,
        reserve: int,
        plan_next: PlanNext | None,
    ) -> None:
        self._builds, self._runner, self._ledger = context.builds, context.tools.runner, ledger
        self._stop = context.stop
        self._phase, self._reserve_s, self._reserve = phase, reserve_s, reserve
        self._takes_turns = not self._builds.beside
        self._plan_next = None if self._takes_turns else plan_next
        self._devices = devices = self._runner.devices
        busy = equivalent_devices(context.task, self._runner)
        self._most = BATCH * devices if self._takes_turns else busy + max(BATCH - 1, busy)
        """Kernels under way: those that are measured, and those that wait for a device."""
        self._todo: deque[Queued] = deque()
        self._again: deque[Queued] = deque()
        """Readings of what leads, which come first."""
        self._is_recorded = True
        """Whether what was taken from the stream is recorded; False if that failed."""
        self._stream = MeasureStream(context.task, self._runner, 1 if devices == 1 else self._most, self._interrupted)

    def run(self, suggestions: Sequence[Suggestion]) -> None:
        """Raises Cancelled, Finishing, BuilderLost, and what the runner and the ledger raise. Whatever it raises, what
        was measured is recorded, unless recording is what failed."""
        self._add(suggestions)
        with self._stream:
            try:
                self._go_on()
            except BaseException:
                if self._is_recorded:
                    self._take_rest()
                raise
            finally:
                self._builds.drop()

    def _go_on(self) -> None:
        while True:
            self._stop.check()
            self._submit()
            if not self._stream.under_way:
                return
            if not self._todo and not self._again:
                self._plan()
            self._enter(self._stream.take(*self._at_once))
            if self._ledger.seconds_left(self._reserve_s) <= 0:
                self._take_rest()
                return

    @property
    def _at_once(self) -> tuple[int, int]:
        """The least and the most calls whose results are recorded together: half of the devices can wait for that. On
        one device it is one by one, so that what is decided does not depend on how soon it is."""
        return max(1, self._devices // 2), 1 if self._devices == 1 else self._most

    def _interrupted(self) -> bool:
        return self._stop.is_due() or self._ledger.seconds_left(self._reserve_s) < -OVERRUN_S

    # -- to the devices -------------------------------------------------------------------------------------------
    def _add(self, suggestions: Sequence[Suggestion]) -> None:
        self._todo.extend(Queued(suggestion, self._ledger.round) for suggestion in suggestions)
        self._builds.start([suggestion.kernel for suggestion in suggestions])

    def _submit(self) -> None:
        """Build and hand over as much as may be under way. Raises BuilderLost, Cancelled, Finishing."""
        if self._takes_turns:
            source = self._again or self._todo
            self._measure([source.popleft() for _ in range(min(len(source), self._at_a_turn))])
            return
        while len(self._stream.under_way) < self._most and (source := self._again or self._todo):
            # Each waits for its build.
            self._stop.check()
            self._measure([source.popleft()])

    @property
    def _at_a_turn(self) -> int:
        """How many are built and then run where these take turns: one for each device where the seconds are few."""
        if self._ledger.seconds_left(self._reserve_s) < TURNS * self._most * self._ledger.step_s:
            return self._devices
        return self._most

    def _measure(self, queued: list[Queued]) -> None:
        queued = self._affordable(queued)
        if queued:
            self._stream.submit(queued, self._builds.build([each.suggestion.kernel for each in queued]))

    def _affordable(self, queued: Sequence[Queued]) -> list[Queued]:
        """The first of these for which trials of the budget are left."""
        left, result = self._ledger.left() - _trials(self._stream.under_way), []
        if self._phase is Phase.SEARCH:
            left -= self._reserve
        for each in queued:
            left -= each.trials
            if left < 0:
                break
            result.append(each)
        return result

    # -- from the devices -----------------------------------------------------------------------------------------
    def _enter(self, flights: Sequence[InFlight]) -> None:
        """Record, learn, and measure again what leads. Raises what a call of the runner raised."""
        self._record(flights)
        for flight in flights:
            if flight.error is not None:
                raise flight.error
        if self._phase not in READ_ONCE:
            for flight in flights:
                self._read_again(flight)

    def _record(self, flights: Sequence[InFlight]) -> None:
        self._is_recorded = False
        self._ledger.take_in(flights, self._phase)
        self._is_recorded = True

    def _take_rest(self) -> None:
        """Wait for what is under way, and record it."""
        self._stream.withdraw()
        rest = len(self._stream.under_way)
        self._record(self._stream.take(rest, rest))

    def _read_again(self, flight: InFlight) -> None:
        """Measure what of it is the fastest at an instance after too few readings, as far as the budget goes: once more
        on one device; on several, which would be idle, as often as it lacks."""
        left = self._ledger.left(self._reserve) - _trials((*self._stream.under_way, *self._again))
        if self._phase is not Phase.SEARCH:
            # All of it is wanted: the default is measured at every instance.
            left -= _trials(self._todo)
        for queued in flight.queued:
            lacking = self._lacking(queued.suggestion)
            pairs = [pair for pair in _pairs(queued.suggestion) if lacking[pair[0]] > 0][: max(0, left)]
            most = max(lacking.values(), default=0)
            for _ in range(min(most, 1) if self._devices == 1 else most):
                if pairs and left >= len(pairs):
                    left -= len(pairs)
                    again = Suggestion(queued.suggestion.kernel, *map(tuple, zip(*pairs, strict=True)))
                    self._again.append(Queued(again, queued.round))

    def _lacking(self, suggestion: Suggestion) -> dict[WorkloadInstance, int]:
        """How many readings are missing and not on their way, by instance."""
        measured, kernel = self._ledger.measured, suggestion.kernel
        coming = Counter(
            at for each in (*self._stream.under_way, *self._again)
            if each.suggestion.kernel == kernel for at in each.suggestion.instances
        )  # fmt: skip
        return {
            at: FASTEST_READINGS - measured.readings(kernel, at) - coming[at] if measured.is_fastest(kernel, at) else 0
            for at in suggestion.instances
        }

    def _plan(self) -> None:
        """Have the next round planned, now that all of this one is under way."""
        if self._plan_next is None:
            return
        following = self._plan_next([queued.suggestion for queued in self._stream.under_way])
        # More devices than before need another stream.
        is_last = not following.suggestions or self._runner.devices != self._devices
        self._plan_next = None if is_last else self._plan_next
        self._reserve_s = following.reserve_s
        self._add(following.suggestions)
        self._submit()


def _trials(queued: Iterable[Queued]) -> int:
    return sum(each.trials for each in queued)


def _pairs(suggestion: Suggestion) -> list[tuple[WorkloadInstance, float]]:
    return list(zip(suggestion.instances, suggestion.predicted_s, strict=True))
