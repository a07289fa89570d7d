"""HTML pages from Jinja2 templates. ``url(path)`` in a template is a path of this service, under its prefix; ``caller``
is the key of whoever asks, None if there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse
from starlette.types import Scope

from service.paths import url_for_path
from service.security import HEADERS
from tuner.figures.html import NO_FILTERS, html_environment
from tuner.storage import ApiKey

SHARED = Path(__file__).parent / "templates"
NO_STORE = {"Cache-Control": "no-store"}
NO_HEADERS: Mapping[str, str] = {}


class Templates:
    """The templates of one folder, and those that all pages share. No page is to be stored by a browser."""

    def __init__(self, folder: Path, filters: Mapping[str, Callable[..., object]] = NO_FILTERS) -> None:
        self._environment = html_environment(folder, SHARED, filters=filters)

    def page(
        self,
        request: HTTPConnection | Scope,
        template: str,
        status: int = 200,
        headers: Mapping[str, str] = NO_HEADERS,
        **values: object,
    ) -> HTMLResponse:
        url, caller = partial(url_for_path, request), caller_of(request)
        text = self._environment.get_template(template).render(url=url, root=url(""), caller=caller, **values)
        # The security headers too: an error's page is sent from outside the middleware that adds them to all others.
        return HTMLResponse(text, status, {**HEADERS, **NO_STORE, **headers})


def caller_of(request: HTTPConnection | Scope) -> ApiKey | None:
    """The key that a request came with; None before it was authenticated."""
    scope = request.scope if isinstance(request, HTTPConnection) else request
    key: ApiKey | None = scope.get("state", {}).get("api_key")
    return key
