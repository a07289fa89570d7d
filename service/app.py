"""The application: routes, authentication, and problem documents for errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from threading import BoundedSemaphore

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from service import health, openapi, problems
from service.access import endpoints as access
from service.access.keys import Keys
from service.access.rates import Rates
from service.access.scopes import require_scopes
from service.auth import Auth
from service.compare import endpoints as compare
from service.compression import Compression
from service.conditional import Conditional
from service.dashboard import access as access_pages
from service.dashboard import assets, comparing, docs, fleet, form, model, pages
from service.dashboard import records as record_pages
from service.dashboard import trials as trial_pages
from service.dashboard import workloads as workload_pages
from service.dependencies import EXPORT_THREADS, IMPORTS, EventStreams
from service.devices import endpoints as devices
from service.devices import token_endpoints as device_tokens
from service.devices.fleet import Fleets
from service.explain import endpoints as explain
from service.figures import endpoints as figures
from service.figures.searches import Searches
from service.jobs import endpoints as jobs
from service.jobs import filter_endpoints as filters
from service.jobs.hub import EventHub
from service.libraries import endpoints as libraries
from service.limits import BodyLimit
from service.login import endpoints as login
from service.lookup import endpoints as lookup
from service.lookup.batching import LookupBatcher
from service.lookup.described import DescribedLookups
from service.lookup.direct import DirectLookups
from service.lookup.lookups import Lookups
from service.metrics import Metrics
from service.observing import Observed
from service.paths import UnderPrefix, parse_prefix
from service.records import endpoints as records
from service.security import SecurityHeaders
from service.settings import Settings
from service.starts import PacedStarts
from service.trials import endpoints as trials
from service.validation import Validation
from service.workloads import endpoints as workloads
from tuner import __version__
from tuner.storage.sql import Storage

DEFAULTS = Settings()
GZIP_FROM = 1000
"""Bytes: smaller answers fit a packet as they are."""
GZIP_LEVEL = 5


def create_app(storage: Storage, *, settings: Settings = DEFAULTS, root_path: str = "") -> FastAPI:
    """The service over ``storage``, which stays the caller's to close.

    ``root_path`` is the prefix that a proxy in front puts everything under. Raises InvalidInput on it.
    """
    app = FastAPI(
        title="Shapewright",
        version=__version__,
        openapi_url="/v1/openapi.json",
        description=openapi.ABOUT,
        openapi_tags=openapi.TAGS,
        # The framework's own pages load their scripts from elsewhere; service/dashboard/docs.py has one that does not.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.storage = storage
    app.state.settings = settings
    app.state.event_streams = EventStreams(EventHub(storage, settings.event_poll_s))
    app.state.metrics = Metrics()
    app.state.imports = BoundedSemaphore(IMPORTS)
    app.state.exports = CapacityLimiter(EXPORT_THREADS)
    app.state.searches = Searches(storage)
    app.state.fleets = Fleets(storage)
    app.state.lookups = Lookups(storage)
    app.state.lookup_batcher = LookupBatcher(app.state.lookups.answers)
    app.state.described_lookups = DescribedLookups(storage, app.state.lookups)
    app.state.validation = Validation()
    app.state.keys = keys = Keys(storage, settings.key_cache_s)
    app.state.rates = rates = Rates(settings)
    problems.install(app, settings)
    app.router.routes.extend(_routes())
    openapi.install(app)
    app.mount("/static", assets.files)
    # The one added last runs first: authentication precedes reading the body.
    app.add_middleware(BodyLimit, settings=settings)
    direct = {"batcher": app.state.lookup_batcher, "metrics": app.state.metrics, "settings": settings}
    app.add_middleware(DirectLookups, **direct)
    app.add_middleware(Conditional)
    app.add_middleware(Auth, keys=keys, rates=rates, settings=settings)
    app.add_middleware(Compression, minimum_size=GZIP_FROM, compresslevel=GZIP_LEVEL)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Observed, metrics=app.state.metrics)
    app.add_middleware(PacedStarts)
    app.add_middleware(UnderPrefix, prefix=parse_prefix(root_path))
    return app


@cache
def _routes() -> Sequence[BaseRoute]:
    """Of every application of this process: they know no storage, and take longer to make than all the rest of it."""
    result = APIRouter()
    for router in (
        _v1(),
        health.router,
        login.router,
        assets.router,
        form.router,
        docs.router,
        pages.router,
        comparing.router,
        trial_pages.router,
        model.router,
        fleet.router,
        access_pages.router,
        record_pages.router,
        workload_pages.router,
    ):
        result.include_router(router)
    require_scopes(result.routes)
    return result.routes


def _v1() -> APIRouter:
    router = APIRouter(prefix="/v1")
    for part in (
        jobs.router,
        trials.router,
        filters.router,
        explain.router,
        workloads.router,
        libraries.router,
        lookup.router,
        records.router,
        # Before devices, whose ids may look like the paths of their figures and tokens.
        figures.router,
        compare.router,
        device_tokens.router,
        devices.router,
        access.router,
    ):
        router.include_router(part)
    router.include_router(health.router, include_in_schema=False)
    return router
