"""The application: routes, authentication, and problem documents for errors."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, FastAPI

from service import health, problems
from service.auth import Auth
from service.dashboard import assets, form, pages
from service.dependencies import EventStreams
from service.devices import endpoints as devices
from service.figures import endpoints as figures
from service.figures.searches import Searches
from service.jobs import endpoints as jobs
from service.limits import BodyLimit
from service.login import endpoints as login
from service.paths import UnderPrefix, parse_prefix
from service.security import SecurityHeaders
from service.settings import Settings
from service.workloads import endpoints as workloads
from tuner.storage import Storage

DEFAULTS = Settings()


def create_app(storage: Storage, *, settings: Settings = DEFAULTS, root_path: str = "") -> FastAPI:
    """The service over ``storage``, which stays the caller's to close.

    ``root_path`` is the prefix that a proxy in front puts everything under. Raises InvalidInput on it.
    """
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
    app.state.searches = Searches(storage)
    problems.install(app, settings)
    app.include_router(_v1())
    for router in (health.router, login.router, assets.router, form.router, pages.router):
        app.include_router(router)
    app.mount("/static", assets.files)
    # The one added last runs first: authentication precedes reading the body.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Auth, storage=storage, settings=settings)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(UnderPrefix, prefix=parse_prefix(root_path))
    return app


def _v1() -> APIRouter:
    router = APIRouter(prefix="/v1")
    for part in (jobs.router, workloads.router, devices.router, figures.router):
        router.include_router(part)
    router.include_router(health.router, include_in_schema=False)
    return router


def _version() -> str:
    try:
        return version("shapewright")
    except PackageNotFoundError:
        return "0"  # run from a source tree that was never installed
