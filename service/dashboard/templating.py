"""The templates of the pages, and the filters that format numbers and times in them."""

from __future__ import annotations

import math
from pathlib import Path

from service.templating import Templates
from service.times import parse_time

FOLDER = Path(__file__).parent
PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
NOTHING = "–"


def seconds(value: float | None) -> str:
    """A time in seconds with three digits and a fitting unit."""
    if value is None:
        return NOTHING
    if value >= 120:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    scale, unit = next(((scale, unit) for scale, unit in PREFIXES if value >= scale), PREFIXES[-1])
    digits = min(3, max(0, 2 - math.floor(math.log10(value / scale)))) if value > 0 else 0
    return f"{value / scale:.{digits}f} {unit}"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}×"


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def clock(iso: str | None) -> str:
    """A time of the database's for people; scripts turn it into the reader's own time zone."""
    found = parse_time(iso)
    return f"{found:%Y-%m-%d %H:%M:%S} UTC" if found else NOTHING


TEMPLATES = Templates(FOLDER / "templates", {"seconds": seconds, "ratio": ratio, "count": count, "clock": clock})
