"""The templates of the pages, and the filters that format numbers and times in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from service.templating import Templates
from service.times import parse_time
from tuner.durations import format_duration

FOLDER = Path(__file__).parent
NOTHING = "–"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else format_duration(value)


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}×"


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


FILTERS: Mapping[str, Callable[..., object]] = {
    "seconds": seconds,
    "age": age,
    "ratio": ratio,
    "count": count,
    "share": share,
    "clock": clock,
}
TEMPLATES = Templates(FOLDER / "templates", FILTERS)
