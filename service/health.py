"""Whether the service lives, whether it can work, and its figures for a monitoring system."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from service.access.scopes import OPEN, READ
from service.dependencies import EventStreamsDep, MetricsDep, SettingsDep, StorageDep
from service.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/healthz", dependencies=[OPEN])
def healthz() -> dict[str, str]:
    """200 as long as the process answers at all."""
    return {"status": "ok"}


@router.get("/readyz", dependencies=[OPEN])
def readyz(storage: StorageDep, settings: SettingsDep) -> dict[str, str]:
    """200 if the database answers with the schema this service wants, otherwise 503.

    Under `shapewright up` only once a device has registered and a worker waits: a job that is submitted will run.
    """
    storage.check()
    if settings.ready_file is not None and not Path(settings.ready_file).exists():
        detail = "the service is starting: its worker and its devices are not there yet; try again in a second"
        raise HTTPException(503, detail, {"Retry-After": "1"})
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[READ])
def metrics(storage: StorageDep, streams: EventStreamsDep, counted: MetricsDep) -> PlainTextResponse:
    """Figures in the Prometheus text format."""
    return PlainTextResponse(counted.text(storage.pulse(), streams.open), media_type=CONTENT_TYPE)
