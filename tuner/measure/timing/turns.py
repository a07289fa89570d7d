"""Several contenders timed in turns: what disturbs one of them disturbs its neighbours, and ratios cancel it.

A *block* is one sample of each contender at one instance, right after one another, with the anchor (see
tuner.measure.timing.protocol) before and after. A *turn* is a block at each instance, in an order that rotates. A block
whose anchors are slower than those of its like, or whose threads waited for a core, is taken again.

Before each sample its contender is called once: caches hold its own operands, as in the readings of a search. Else
whoever reads the most would be timed on what the others have left: a product of NumPy that takes 2.4 ms in a row took
3.1 ms in turns. Calls of more than LONG_S are not repeated so: what they wait for the memory is a small part.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from tuner.measure._base import Turns
from tuner.measure.timing.protocol import AGAIN, DISTURBED, RECENT, Flush, sampling
from tuner.measure.timing.waiting import Waited, never, slowed

TURNS, LEAST_TURNS = 15, 4
"""As many turns as time allows, and the fewest that say anything of noise."""
SAMPLE_S = 0.002
"""The time of a sample, about; of a call that takes longer one call is a sample."""
LONG_S = 0.02
"""What a call that takes longer waits for the memory, where its operands left the caches, is a small part of it."""
Times = tuple[float | None, ...]
"""Seconds of each contender; None of one that does not run there."""
Contender = Callable[[int], float]
"""Makes a number of calls in a row, and returns the mean seconds."""


class TurnTaking:
    """Takes turns between the contenders of each instance (None: it does not run there), for ``limit_s``.

    Where time is short for LEAST_TURNS, they take up to twice as long.
    """

    def __init__(
        self,
        contenders: Sequence[Sequence[Contender | None]],
        anchor: Callable[[], float],
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        waited: Waited = never,
    ) -> None:
        self._contenders, self._anchor, self._clock, self._waited = contenders, anchor, clock, waited
        self._began_s, self._limit_s = clock(), limit_s
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._numbers: list[list[int]] = []
        self._are_long: list[list[bool]] = []
        self._retaken = self._disturbed = 0

    def run(self) -> Turns:
        expected_s = 0.0
        for each in self._contenders:
            plans = [_calls(call) if call else (0, 0.0) for call in each]
            self._numbers.append([number for number, _ in plans])
            self._are_long.append([call_s > LONG_S for _, call_s in plans])
            expected_s += sum((number + (call_s <= LONG_S)) * call_s for number, call_s in plans)
        seconds: list[tuple[Times, ...]] = []
        anchors_s: list[tuple[float, ...]] = []
        longest_s = expected_s
        while len(seconds) < TURNS and self._has_time(len(seconds), longest_s):
            before_s = self._clock()
            blocks = [self._block(at, len(seconds)) for at in range(len(self._contenders))]
            seconds.append(tuple(times for _, times in blocks))
            anchors_s.append(tuple(anchor_s for anchor_s, _ in blocks))
            longest_s = max(longest_s, self._clock() - before_s)
        return Turns(tuple(seconds), tuple(anchors_s), self._retaken, self._disturbed)

    def _has_time(self, done: int, turn_s: float) -> bool:
        spent_s = self._clock() - self._began_s
        return spent_s + turn_s <= (1 if done >= LEAST_TURNS else 2) * self._limit_s

    def _block(self, at: int, turn: int) -> tuple[float, Times]:
        """The slower anchor, and the times, of the block of one instance: the least disturbed of those taken."""
        readings = [self._reading(at, turn)]
        while self._is_disturbed(readings[-1][0]) and len(readings) <= AGAIN and self._has_time(LEAST_TURNS, 0.0):
            self._retaken += 1
            readings.append(self._reading(at, turn))
        pace, anchor_s, times = min(readings, key=lambda reading: reading[0])
        self._disturbed += self._is_disturbed(pace)
        self._recent.append(pace)
        return anchor_s, times

    def _is_disturbed(self, pace: float) -> bool:
        return bool(self._recent) and pace > DISTURBED * statistics.median(self._recent)

    def _reading(self, at: int, turn: int) -> tuple[float, float, Times]:
        """How disturbed a block is, as a time of the anchor, its slower anchor, and its times."""
        contenders, numbers = self._contenders[at], self._numbers[at]
        began_s, waited_s = self._clock(), self._waited()
        times: list[float | None] = [None] * len(contenders)
        before = self._anchor()
        for place in range(len(contenders)):
            # Whoever comes next finds caches and clock as another one left them.
            which = (place + turn + at) % len(contenders)
            if (call := contenders[which]) is not None:
                if not self._are_long[at][which]:
                    call(1)
                times[which] = call(numbers[which])
        anchor_s = max(before, self._anchor())
        return slowed(anchor_s, self._waited() - waited_s, self._clock() - began_s), anchor_s, tuple(times)


def called(call: Callable[[], object], flush: Flush | None = None) -> Contender:
    """What is called from Python, as the clock of this process sees it, after ``flush`` each time."""
    take = sampling(call, flush)
    return lambda number: take(number, 1, _nothing)[0]


def _nothing() -> None:
    """What comes before a sample."""


def _calls(call: Contender) -> tuple[int, float]:
    """How many calls make a sample, and the seconds of one."""
    took_s = call(1)
    if took_s < SAMPLE_S:
        # The first call may have been the first to touch its memory.
        took_s = min(took_s, call(1))
    return max(1, math.ceil(SAMPLE_S / max(took_s, 1e-7))), took_s
