"""How latencies are measured: the protocol named by ``tuner.records.PROTOCOL``.

Protocol v3, for one micro-kernel on one instance:

- operands of random values in [-1, 1), allocated once, aligned to 64 bytes; caches as earlier calls left them (warm),
  or operands flushed before every single call (v3-cold: all of them; v3-streamed: packed constants, see caches.py);
- one thread pool of ``task.threads`` threads, in a process that does nothing else;
- warm-up: one call, then more until WARM_UP_S have passed;
- a sample is the mean of as many calls in a row as MIN_SAMPLE_S takes, one at least;
- SAMPLES samples, or as many as BUDGET_S allows, MIN_SAMPLES at least;
- the latency is the median of the samples;
- before, between and after the samples a fixed piece of work is timed (see Anchor): how fast the core ran;
- where that took DISTURBED times as long as beside the middle one of the last RECENT readings, the reading is taken
  again, AGAIN times at most: the least disturbed one counts. What threads waited for a core meanwhile counts as time
  of the anchor (see waiting.py).

A change of anything here takes another name.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tuner.measure.timing.waiting import Waited, never, slowed

Flush = Callable[[], object]
"""Brings operands out of the caches (see tuner.measure.timing.caches)."""
Sample = Callable[[int, int, Callable[[], None]], tuple[float, ...]]
"""``sample(number, repeat, before)``: ``repeat`` means of ``number`` calls in a row, after ``before()`` each."""

WARM_UP_S = 0.004
MIN_SAMPLE_S = 0.004
SAMPLES = 8
MIN_SAMPLES = 4
BUDGET_S = 0.08
ANCHOR_SIZE, ANCHOR_PRODUCTS = 64, 500
DISTURBED, RECENT, AGAIN = 1.08, 12, 2


@dataclass(frozen=True, slots=True)
class Timed:
    """A latency and the samples it is the median of, in seconds. ``latency_s / anchor_s`` is the median of what each
    sample took in anchors; ``samples_s`` in the order they were taken."""

    latency_s: float
    samples_s: tuple[float, ...]
    anchor_s: float


class Anchor:
    """A fixed piece of work: a product of small matrices by NumPy's own library, on one thread and in the L1 cache.

    A shared or boosting core changes its speed by a quarter within minutes, and by some percent between two samples.
    Latencies that were measured at different times can be compared after they are divided by their anchors.
    """

    def __init__(self) -> None:
        self._square = np.full((ANCHOR_SIZE, ANCHOR_SIZE), 1.0 / ANCHOR_SIZE, np.float32)
        self._out = np.empty_like(self._square)

    def seconds(self) -> float:
        """The time of one product: the mean of ANCHOR_PRODUCTS, a millisecond or so."""
        before = time.perf_counter()
        for _ in range(ANCHOR_PRODUCTS):
            np.dot(self._square, self._square, out=self._out)
        return (time.perf_counter() - before) / ANCHOR_PRODUCTS


class Timer:
    """Measures by the protocol; ``anchor()`` gives the time of the fixed piece of work just then, ``waited()`` what
    threads have waited for a core so far.

    What disturbs a core slows the anchor more than most kernels, or less: dividing by it then does harm. What is no
    trial may do with fewer samples at ``least``, or with fewer readings taken ``again``, where time is short.
    """

    def __init__(
        self, anchor: Callable[[], float], waited: Waited = never, *, least: int = MIN_SAMPLES, again: int = AGAIN
    ) -> None:
        self._anchor, self._waited, self._least, self._again = anchor, waited, least, again
        self._recent: deque[float] = deque(maxlen=RECENT)

    def measure(self, call: Callable[[], object], sample: Sample) -> Timed:
        number, repeat = plan(warm_up(call), self._least)
        readings: list[tuple[float, Timed]] = []
        while len(readings) <= self._again:
            readings.append(self._reading(sample, number, repeat))
            # Not beside the fastest: where the core's speed swings, every other reading would be taken again.
            if not self._recent or readings[-1][0] <= DISTURBED * statistics.median(self._recent):
                break
        pace, timed = min(readings, key=lambda reading: reading[0])
        self._recent.append(pace)
        return timed

    def best(self, call: Callable[[], object], sample: Sample) -> Timed:
        """The fastest sample, and the fastest anchor: of a peak, which nothing that disturbs a core can raise."""
        number, _ = plan(warm_up(call), self._least)
        anchors: list[float] = []
        samples = sample(number, SAMPLES, lambda: anchors.append(self._anchor()))
        return Timed(min(samples), samples, min(anchors))

    def _reading(self, sample: Sample, number: int, repeat: int) -> tuple[float, Timed]:
        """How disturbed it is, as a time of the anchor, and the latency."""
        began_s, waited_s = time.perf_counter(), self._waited()
        anchors: list[float] = []
        samples = sample(number, repeat, lambda: anchors.append(self._anchor()))
        anchors.append(self._anchor())
        # Each sample by the anchors on both its sides: a speed that drifts evenly cancels out.
        paces = [2 * taken / (anchors[place] + anchors[place + 1]) for place, taken in enumerate(samples)]
        latency_s = statistics.median(samples)
        pace = slowed(statistics.median(anchors), self._waited() - waited_s, time.perf_counter() - began_s)
        return pace, Timed(latency_s, samples, latency_s / statistics.median(paces))


def warm_up(call: Callable[[], object]) -> float:
    """Call until WARM_UP_S have passed; the fastest call, in seconds, is what the plan goes by."""
    fastest, started = math.inf, time.perf_counter()
    while True:
        before = time.perf_counter()
        call()
        now = time.perf_counter()
        fastest = min(fastest, now - before)
        if now - started >= WARM_UP_S:
            return fastest


def sampling(call: Callable[[], object], flush: Flush | None = None) -> Sample:
    """Samples of what is called from Python, as the clock of this process sees them; ``flush`` comes before every call
    and does not count."""

    def sample(number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        return tuple(_mean_s(call, number, before, flush) for _ in range(repeat))

    return sample


def _mean_s(call: Callable[[], object], number: int, before: Callable[[], None], flush: Flush | None) -> float:
    before()
    if flush is not None:
        return statistics.fmean(_flushed_s(call, flush) for _ in range(number))
    started = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - started) / number


def _flushed_s(call: Callable[[], object], flush: Flush) -> float:
    flush()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def plan(estimate_s: float, least: int = MIN_SAMPLES) -> tuple[int, int]:
    """(calls per sample, samples) for a kernel of about ``estimate_s``."""
    number = max(1, math.ceil(MIN_SAMPLE_S / max(estimate_s, 1e-7)))
    affordable = int(BUDGET_S / (number * max(estimate_s, 1e-7)))
    return number, min(SAMPLES, max(least, affordable))
