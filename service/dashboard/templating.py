"""The templates of the pages, and the filters that format numbers and times in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from service.templating import Templates
from service.times import parse_time
from tuner.durations import format_duration
from tuner.schedule.space import readable
from tuner.search.verdict import Ratio

FOLDER = Path(__file__).parent
NOTHING = "–"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else format_duration(value)


def ratio(value: Ratio | float | None) -> str:
    """``1.42x``; ``equal`` where that is within noise."""
    if isinstance(value, Ratio):
        return value.figure
    return NOTHING if value is None else f"{value:.2f}x"


def age(value: float | None) -> str:
    """An age in whole seconds, minutes or hours: ``42 s``, ``15 min``, ``1 h 5 min``."""
    if value is None:
        return NOTHING
    return format_duration(value, whole=True).removesuffix(" 0 s").removesuffix(" 0 min")


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def clock(iso: str | None) -> str:
    """A time of the database's for people; scripts turn it into the reader's own time zone."""
    time = parse_time(iso)
    return f"{time:%Y-%m-%d %H:%M:%S} UTC" if time else NOTHING


def ago(iso: str | None) -> str | Markup:
    """How long ago a time of the database's was, the time itself on hover; scripts keep it up to date."""
    time = parse_time(iso)
    if time is None:
        return NOTHING
    passed = format_ago((datetime.now(UTC) - time).total_seconds())
    return Markup('<time class="ago" datetime="{}" title="{}">{}</time>').format(iso, clock(iso), passed)


def format_ago(seconds_ago: float) -> str:
    """In the largest unit that there is one of: ``3 min ago``, ``2 d ago``; ``in 5 h`` of a time to come."""
    size, unit = next((each for each in UNITS if abs(seconds_ago) >= each[0]), UNITS[-1])
    number = int(abs(seconds_ago) / size)
    return f"{number} {unit} ago" if seconds_ago >= 0 else f"in {number} {unit}"


UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))

FILTERS: Mapping[str, Callable[..., object]] = {
    "axis": readable,
    "seconds": seconds,
    "age": age,
    "ratio": ratio,
    "count": count,
    "share": share,
    "clock": clock,
    "ago": ago,
}
TEMPLATES = Templates(FOLDER / "templates", FILTERS)
