"""Durations as text."""

from __future__ import annotations

import math

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
IN_MINUTES_S = 120.0
"""Durations from here on are given in minutes and seconds, or hours and minutes."""


def format_duration(seconds: float, *, whole: bool = False) -> str:
    """``12.3 µs``, ``1.23 ms``, ``119 s``, ``2 min 22 s``, ``25 h 1 min``: three significant digits below two minutes.

    ``whole`` rounds to whole seconds. ``seconds`` is finite and not negative.
    """
    if whole and round(seconds) < IN_MINUTES_S:
        return f"{round(seconds)} s"
    if seconds >= IN_MINUTES_S or whole:
        minutes, remainder = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {remainder} s"
    scale, unit = next(((scale, unit) for scale, unit in UNITS if seconds >= scale), UNITS[-1])
    digits = min(3, max(0, 2 - math.floor(math.log10(seconds / scale)))) if seconds > 0 else 0
    return f"{seconds / scale:.{digits}f} {unit}"
