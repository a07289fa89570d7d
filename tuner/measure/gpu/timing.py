"""How latencies are measured on a GPU. Protocol v3 (tuner.measure.timing.protocol) as it stands, but for these:

- a call is timed between two events on its stream, which the GPU writes the time of;
- calls of a sample are put behind a kernel that keeps the stream busy meanwhile (see Spin), so that they follow each
  other as fast as the GPU takes them, and what a launch takes the host does not count where a kernel is longer;
- the fixed piece of work is that kernel, which follows the clock of the multiprocessors;
- warm: operands are in L2 as far as they fit, as the call before left them. Cold: zeros are written over twice the
  bytes of L2 before every call. Streamed: so they are, and all operands but packed constants are read again.

On an H100 kernels take some 1.5 us more than in graphs: what a launch takes the GPU (docs/decisions/0096).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tuner.measure.gpu.driver import Driver
from tuner.measure.gpu.spin import Spin
from tuner.measure.timing.protocol import Flush

QUEUED = 256
"""Calls of a sample at the most: a stream takes about a thousand launches before it makes who launches wait."""
MARGIN = 1.5
"""How much longer a stream is held than putting calls in it took before."""


class Events:
    """Events of one driver, made once and taken again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._made: list[Any] = []

    def some(self, count: int) -> list[Any]:
        self._made += [self._driver.event() for _ in range(count - len(self._made))]
        return self._made[:count]


@dataclass(slots=True)
class GpuTiming:
    """A ``Timing`` (tuner.measure.device.place): ``launch`` puts one call in the stream."""

    driver: Driver
    spin: Spin
    events: Events
    launch: Callable[[], object]
    flush: Flush | None
    _queue_s: float = field(default=1.0, init=False)
    """What putting one call, and what comes before it, in the stream takes this process."""

    def call(self) -> None:
        began_s = time.perf_counter()
        if self.flush is not None:
            self.flush()
        self.launch()
        self._queue_s = min(self._queue_s, time.perf_counter() - began_s)
        self.driver.finish()

    def sample(self, number: int, repeat: int, before: Callable[[], None]) -> tuple[float, ...]:
        means = []
        for _ in range(repeat):
            before()
            means.append(self.mean(number))
        return tuple(means)

    def mean(self, number: int) -> float:
        number = min(number, QUEUED)
        self.spin.hold(MARGIN * number * self._queue_s)
        return self._in_a_row(number) if self.flush is None else self._flushed(number, self.flush)

    def _in_a_row(self, number: int) -> float:
        first, last = self.events.some(2)
        self.driver.record(first)
        for _ in range(number):
            self.launch()
        self.driver.record(last)
        return self.driver.seconds(first, last) / number

    def _flushed(self, number: int, flush: Flush) -> float:
        events = self.events.some(2 * number)
        for first, last in zip(events[::2], events[1::2], strict=True):
            flush()
            self.driver.record(first)
            self.launch()
            self.driver.record(last)
        return statistics.fmean(map(self.driver.seconds, events[::2], events[1::2]))
