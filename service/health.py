"""Whether the service lives, whether it can work, and its figures for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from service.dependencies import EventStreamsDep, StorageDep

router = APIRouter(tags=["health"])

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """200 as long as the process answers at all."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(storage: StorageDep) -> dict[str, str]:
    """200 if the database answers with the schema this service wants, otherwise 503."""
    storage.check()
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(storage: StorageDep, streams: EventStreamsDep) -> PlainTextResponse:
    """Figures in the Prometheus text format."""
    figures = {**storage.counts(), "open_event_streams": streams.open}
    return PlainTextResponse("".join(_lines(figures)), media_type=METRICS_TYPE)


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, value in figures.items():
        metric = f"shapewright_{name}"
        yield f"# TYPE {metric} gauge\n"
        if isinstance(value, Mapping):
            yield from (f'{metric}{{state="{state}"}} {number}\n' for state, number in value.items())
        else:
            yield f"{metric} {value}\n"
