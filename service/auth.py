"""API keys: who may use the service. Everything but a short list of open paths takes a key, in a header or a cookie."""

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
"""Open as well, but what they change is changed from the service's own pages alone."""


class Auth:
    """Lets a request pass with a known key, which it leaves in ``scope["state"]["api_key"]``.

    It stands before the routes, so that no route can be left open by accident and a stranger learns nothing of them.
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
            return _unless_own(scope)
        bearer = _bearer(headers)
        found = await self._key_of(session.secret_of(headers) if bearer is None else bearer)
        if isinstance(found, ApiKey):
            scope.setdefault("state", {})["api_key"] = found
            return _unless_own(scope) if bearer is None else None
        stranger = bearer is None and found.status_code == 401
        return _to_login(scope) if stranger and scope["method"] == "GET" and asks_for_page(scope) else found

    async def _key_of(self, secret: str | None) -> ApiKey | ProblemResponse:
        if not secret:
            return _refused("the request carries no API key", "")
        try:
            key = await to_thread.run_sync(self._storage.find_key, secret)
        except StorageUnavailable as error:
            return storage_unavailable(error, self._settings, known_caller=False)
        return key or _refused("the API key is not known, or was revoked", ', error="invalid_token"')


def _bearer(headers: Headers) -> str | None:
    """The key in the header; None if the header is for somebody else, such as a proxy with passwords of its own."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def _refused(what: str, challenge: str) -> ProblemResponse:
    detail = f"{what}; send one in the header: Authorization: Bearer KEY"
    headers = {"WWW-Authenticate": f'Bearer realm="shapewright"{challenge}'}
    return problem(401, "not-allowed", "An API key is needed", detail, headers, problem=what)


def _unless_own(scope: Scope) -> ProblemResponse | None:
    """The answer to a request that some other site may have made a browser send."""
    what = session.foreign(scope)
    if not what:
        return None
    detail = f"{what}; scripts send their key in the header: Authorization: Bearer KEY"
    return problem(403, "foreign-request", "This must come from one of the service's own pages", detail, problem=what)


def _to_login(scope: Scope) -> RedirectResponse:
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = quote(path_of(scope)) + (f"?{query}" if query else "")
    asked = "" if wanted == "/" else f"?{urlencode({'next': wanted})}"
    return RedirectResponse(url_for_path(scope, "/login") + asked, 303, {"Cache-Control": "no-store"})
