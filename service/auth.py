"""Authentication: every path but a few open ones needs an API key, in a header or a cookie."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import session
from service.paths import path_of, url_for_path
from service.problems import ProblemResponse, asks_for_page, problem, storage_unavailable
from service.settings import Settings
from tuner.storage import AccessStorage, ApiKey, StorageUnavailable

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/healthz", "/v1/readyz"})
FORM_PATHS = frozenset({"/login", "/logout"})
"""Open as well, but POST is accepted only from the service's own pages."""


class Auth:
    """Lets a request pass with a known key, which it leaves in ``scope["state"]["api_key"]``.

    A middleware, so that no route can be left open by accident, and unauthenticated clients learn nothing about them.
    """

    def __init__(self, app: ASGIApp, storage: AccessStorage, settings: Settings) -> None:
        self._app = app
        self._storage = storage
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        path, headers = path_of(scope), Headers(scope=scope)
        if path in OPEN_PATHS:
            return None
        if path in FORM_PATHS:
            return _cross_site_problem(scope)
        bearer = _bearer(headers)
        key_or_problem = await self._key_of(session.secret_of(headers) if bearer is None else bearer)
        if isinstance(key_or_problem, ApiKey):
            scope.setdefault("state", {})["api_key"] = key_or_problem
            return _cross_site_problem(scope) if bearer is None else None
        unauthenticated = bearer is None and key_or_problem.status_code == 401
        if unauthenticated and scope["method"] == "GET" and asks_for_page(scope):
            return _to_login(scope)
        return key_or_problem

    async def _key_of(self, secret: str | None) -> ApiKey | ProblemResponse:
        if not secret:
            return _refused("the request carries no API key", "")
        try:
            key = await to_thread.run_sync(self._storage.find_key, secret)
        except StorageUnavailable as error:
            return storage_unavailable(error, self._settings, known_caller=False)
        return key or _refused("the API key is not known, or was revoked", ', error="invalid_token"')


def _bearer(headers: Headers) -> str | None:
    """The key in the header; None if it has another scheme, such as the basic authentication of a proxy."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def _refused(what: str, challenge: str) -> ProblemResponse:
    detail = f"{what}; send one in the header: Authorization: Bearer KEY"
    headers = {"WWW-Authenticate": f'Bearer realm="shapewright"{challenge}'}
    return problem(401, "not-allowed", "An API key is needed", detail, headers, problem=what)


def _cross_site_problem(scope: Scope) -> ProblemResponse | None:
    """The problem of a request that another site may have made a browser send; None for any other."""
    what = session.cross_site_reason(scope)
    if not what:
        return None
    detail = f"{what}; scripts send their key in the header: Authorization: Bearer KEY"
    return problem(403, "foreign-request", "This must come from one of the service's own pages", detail, problem=what)


def _to_login(scope: Scope) -> RedirectResponse:
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = quote(path_of(scope)) + (f"?{query}" if query else "")
    asked = "" if wanted == "/" else f"?{urlencode({'next': wanted})}"
    return RedirectResponse(url_for_path(scope, "/login") + asked, 303, {"Cache-Control": "no-store"})
