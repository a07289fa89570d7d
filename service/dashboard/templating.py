"""Jinja2 for the pages: the environment, and the words in which numbers and times are shown."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from service.paths import url_for_path

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


def moment(iso: str | None) -> datetime | None:
    return datetime.fromisoformat(iso).astimezone(UTC) if iso else None


def between_s(start: str | None, end: str | None) -> float | None:
    """Seconds from one of the database's times to another; to now if there is no end."""
    first, last = moment(start), moment(end) or datetime.now(UTC)
    return max(0.0, (last - first).total_seconds()) if first else None


def clock(iso: str | None) -> str:
    """A time of the database's for people; scripts turn it into the reader's own time zone."""
    found = moment(iso)
    return f"{found:%Y-%m-%d %H:%M:%S} UTC" if found else NOTHING


ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=select_autoescape(default=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"seconds": seconds, "ratio": ratio, "count": count, "clock": clock}


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page made of ``template``. ``url(path)`` in it is a path of this service, under whatever prefix it stands."""
    url = partial(url_for_path, request)
    text = ENVIRONMENT.get_template(template).render(url=url, root=url(""), **values)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
