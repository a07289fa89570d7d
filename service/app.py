"""The application: routes, the key check before them, and problem documents for whatever goes wrong."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, FastAPI

from service import health, problems
from service.auth import BearerAuth
from service.dependencies import EventStreams
from service.devices import endpoints as devices
from service.jobs import endpoints as jobs
from service.limits import BodyLimit
from service.settings import Settings
from service.workloads import endpoints as workloads
from tuner.storage import Storage

DEFAULTS = Settings()


def create_app(storage: Storage, *, settings: Settings = DEFAULTS) -> FastAPI:
    """The service over ``storage``, which stays the caller's to close."""
    app = FastAPI(
        title="Shapewright",
        version=_version(),
        openapi_url="/v1/openapi.json",
        # The interactive pages load their scripts from elsewhere; the description itself is enough.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.storage = storage
    app.state.settings = settings
    app.state.event_streams = EventStreams()
    problems.install(app, settings)
    app.include_router(_v1())
    app.include_router(health.router)
    # The one added last comes first: who asks is settled before anything of a body is read.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(BearerAuth, storage=storage, settings=settings)
    return app


def _v1() -> APIRouter:
    router = APIRouter(prefix="/v1")
    for part in (jobs.router, workloads.router, devices.router):
        router.include_router(part)
    router.include_router(health.router, include_in_schema=False)
    return router


def _version() -> str:
    try:
        return version("shapewright")
    except PackageNotFoundError:
        return "0"  # run from a source tree that was never installed
