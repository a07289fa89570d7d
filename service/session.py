"""A browser's session: an API key in a cookie, and which requests the cookie counts for."""

from __future__ import annotations

from urllib.parse import quote, unquote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from service.paths import url_for_path

COOKIE = "shapewright_session"
MAX_AGE_S = 30 * 24 * 3600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def secret_of(headers: Headers) -> str | None:
    """The API key in the cookie."""
    # Of two cookies of that name browsers send the one with the longer path first: that of this prefix.
    for part in ";".join(headers.getlist("cookie")).split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return unquote(value)
    return None


def begin(response: Response, request: Request, secret: str) -> None:
    """Set the cookie: not readable by scripts, and not sent with requests of other sites."""
    _set_cookie(response, request, quote(secret, safe=""), MAX_AGE_S)


def end(response: Response, request: Request) -> None:
    _set_cookie(response, request, "", 0)


def cross_site_reason(scope: Scope) -> str:
    """Why a state-changing request may have come from another site; empty if it came from the service's own pages.

    Browsers send cookies with requests that other sites cause. The headers that name a request's origin are set by the
    browser, and no page can forge them.
    """
    headers = Headers(scope=scope)
    if scope["method"] in SAFE_METHODS:
        return ""
    if (site := headers.get("sec-fetch-site")) is not None:
        return "" if site == "same-origin" else f"Sec-Fetch-Site is {site!r}, not 'same-origin'"
    # Browsers send no Sec-Fetch-Site to servers reached by plain HTTP.
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is None:
        return "the request has neither Sec-Fetch-Site nor Origin"
    if _host_of(origin) == host.lower() != "":
        return ""
    return f"its Origin is {origin!r} and its Host {host!r}; a proxy in between has to pass the Host on"


def is_from_elsewhere(headers: Headers) -> bool:
    """Whether a browser says that another site caused the request: by a link there, or by an image that nobody sees."""
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _set_cookie(response: Response, request: Request, value: str, max_age_s: int) -> None:
    response.set_cookie(
        COOKIE,
        value,
        max_age=max_age_s,
        path=url_for_path(request, "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
