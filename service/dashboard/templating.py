"""The templates of the pages, and the filters that format numbers and times in them."""

from __future__ import annotations

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


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def clock(iso: str | None) -> str:
    """A time of the database's for people; scripts turn it into the reader's own time zone."""
    time = parse_time(iso)
    return f"{time:%Y-%m-%d %H:%M:%S} UTC" if time else NOTHING


TEMPLATES = Templates(FOLDER / "templates", {"seconds": seconds, "ratio": ratio, "count": count, "clock": clock})
