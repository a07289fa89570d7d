"""The few pages that need no key: signing in, and what went wrong. Nothing on them comes from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Scope

from service.paths import path_of, url_for_path
from service.security import HEADERS

NO_STORE = {"Cache-Control": "no-store"}

Wrong = Literal["", "spent", "unknown", "empty"]
"""What was wrong with the last attempt to sign in: its link, its key, or that there was no key."""


def asks_for_page(scope: Scope) -> bool:
    """Whether a browser wants to show the answer: it accepts HTML, and the path is not one of the API's."""
    accepted = Headers(scope=scope).get("accept", "").split(",")
    wants_html = any(part.partition(";")[0].strip().lower() == "text/html" for part in accepted)
    return wants_html and not f"{path_of(scope)}/".startswith("/v1/")


def login_page(scope: Scope, target: str, status: int = 200, wrong: Wrong = "") -> HTMLResponse:
    """The form for a key. ``target`` is where it leads on to."""
    return _page("login.html", scope, status, {}, target=target, wrong=wrong)


def problem_page(scope: Scope, document: Mapping[str, Any], headers: Mapping[str, str]) -> HTMLResponse:
    """A problem document as a page, with its status."""
    return _page("problem.html", scope, document["status"], headers, problem=document)


def _page(template: str, scope: Scope, status: int, headers: Mapping[str, str], **values: object) -> HTMLResponse:
    text = _environment().get_template(template).render(url=partial(url_for_path, scope), **values)
    # The headers of pages are here too: what answers a defect stands outside of what adds them to all others.
    return HTMLResponse(text, status, {**HEADERS, **NO_STORE, **headers})


@cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("service.login"), autoescape=True, undefined=StrictUndefined)
