"""What is known of every request: its id, in the answer and in the log, and how long it took."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.metrics import Metrics
from service.paths import path_of
from tuner import logs

HEADER = "X-Request-Id"
SLOW_S = 1.0
"""Requests that take longer are logged, whatever they are."""
API = "/v1"
UNMATCHED = "unmatched"
"""The route of a request that none was found for, or that was refused before one was looked for."""

_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_log = logging.getLogger(__name__)


class Observed:
    """Gives each request an id, the client's own where it sends one, and counts and logs its answer.

    Requests that change something, fail or are slow are logged; others only at level DEBUG.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, began = _request_id(scope), time.perf_counter()
        scope.setdefault("state", {})["request_id"] = request_id
        status, seconds = 500, None

        async def observed(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                # Streams go on for hours: what counts is when the answer begins.
                status, seconds = message["status"], time.perf_counter() - began
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with logs.about(request=request_id):
            try:
                await self._app(scope, receive, observed)
            finally:
                self._record(scope, status, time.perf_counter() - began if seconds is None else seconds)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"]
        self._metrics.answered(method, route_of(scope), status, seconds)
        notable = method not in ("GET", "HEAD") or status >= 500 or seconds > SLOW_S
        level = logging.INFO if notable else logging.DEBUG
        if _log.isEnabledFor(level):
            path = path_of(scope)
            fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6)}
            _log.log(level, "%s %s %d %.3f s", method, path, status, seconds, extra={logs.FIELDS: fields})


def route_of(scope: Scope) -> str:
    """The template of the route that a request was sent to, as in ``/v1/jobs/{job_id}``."""
    template = getattr(scope.get("route"), "path", None)
    if template is None:
        return UNMATCHED
    # A route of a router within a router knows its own part alone.
    outside = path_of(scope).startswith(f"{API}/") and not template.startswith(f"{API}/")
    return f"{API}{template}" if outside else str(template)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(HEADER, "")
    return given if _ID.fullmatch(given) else secrets.token_hex(8)
