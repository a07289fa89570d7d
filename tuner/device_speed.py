"""How fast a device is, by the fixed piece of work that is timed beside every reading: steady, throttled or noisy."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

RECENT, USUAL = 24, 480
"""Readings that say how fast a device is now, and how fast it usually is."""
LEAST = 8
"""Readings that say how fast it was over all of them, at least."""
THROTTLED = 1.25
"""The slowdown from which a device counts as throttled. Clocks that boost vary by less."""
NOISY = 0.2
"""A device is noisy whose middle half of recent readings is as wide as this part of their median."""
HYSTERESIS = 0.6
"""The part of either by which a device must be below, to be steady again."""


class SpeedState(StrEnum):
    """THROTTLED: slower than the device usually is. NOISY: its readings vary much."""

    STEADY = "steady"
    THROTTLED = "throttled"
    NOISY = "noisy"


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """What the fixed piece of work that is timed beside every trial takes a device, in seconds: ``recent_s`` lately,
    ``usual_s`` at its usual speed. ``spread``: the width of the middle half of recent readings, by their median."""

    state: SpeedState
    recent_s: float
    usual_s: float
    spread: float

    @property
    def slowdown(self) -> float:
        """How many times as long as usual it takes."""
        return self.recent_s / self.usual_s

    def __str__(self) -> str:
        if self.state is SpeedState.THROTTLED:
            return f"throttled: reference work takes {self.slowdown:.2f} times as long as usual"
        if self.state is SpeedState.NOISY:
            return f"noisy: half of its readings of reference work vary by {100 * self.spread:.0f} %"
        return "steady"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DeviceSpeed:
        return DeviceSpeed(SpeedState(data["state"]), data["recent_s"], data["usual_s"], data["spread"])


def assess(
    anchors_s: Sequence[float], known_usual_s: float | None = None, was: SpeedState = SpeedState.STEADY
) -> DeviceSpeed | None:
    """The speed by readings, the oldest first; None if they are too few.

    What is usual is the lower quartile: a device is slower than it can be more often than faster. ``known_usual_s`` is
    what earlier readings said, of which these know nothing. One that was not steady must clearly be, to be so again.
    """
    if len(anchors_s) < RECENT:
        return None
    low, recent_s, high = statistics.quantiles(anchors_s[-RECENT:], n=4)
    usual_s = statistics.quantiles(anchors_s, n=4)[0]
    if known_usual_s is not None and len(anchors_s) < USUAL:
        usual_s = min(usual_s, known_usual_s)
    return _speed(low, recent_s, high, usual_s, 1.0 if was is SpeedState.STEADY else HYSTERESIS)


def over_all(anchors_s: Sequence[float], known_usual_s: float | None = None) -> DeviceSpeed | None:
    """The speed over all of these readings, as ``assess`` tells the lately one; None if they are too few."""
    if len(anchors_s) < LEAST:
        return None
    low, middle_s, high = statistics.quantiles(anchors_s, n=4)
    return _speed(low, middle_s, high, low if known_usual_s is None else min(low, known_usual_s))


def _speed(low_s: float, median_s: float, high_s: float, usual_s: float, margin: float = 1.0) -> DeviceSpeed:
    """By the quartiles of readings; ``margin``: the part of the usual bounds that counts."""
    spread, state = (high_s - low_s) / median_s, SpeedState.STEADY
    if median_s - usual_s >= margin * (THROTTLED - 1) * usual_s:
        state = SpeedState.THROTTLED
    elif spread >= margin * NOISY:
        state = SpeedState.NOISY
    return DeviceSpeed(state, median_s, usual_s, spread)
