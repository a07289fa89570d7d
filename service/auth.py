"""Authentication: every path but a few open ones needs an API key, in a header or a cookie."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service import session
from service.access.keys import Keys
from service.access.rates import Rates
from service.access.streams import Streams
from service.paths import path_of, url_for_path
from service.problems import ProblemResponse, asks_for_page, problem, storage_unavailable
from service.settings import Settings
from tuner.storage import ApiKey, StorageUnavailable

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/healthz", "/v1/readyz"})
FORM_PATHS = frozenset({"/login", "/logout"})
"""Open as well, but POST is accepted only from the service's own pages."""


class Auth:
    """Lets a request pass with a known key, which it leaves in ``scope["state"]["api_key"]``.

    A middleware, so that no route can be left open by accident, and unauthenticated clients learn nothing about them.
    """

    def __init__(self, app: ASGIApp, keys: Keys, rates: Rates, settings: Settings) -> None:
        self._app = app
        self._keys = keys
        self._rates = rates
        self._settings = settings
        self._streams = Streams(keys, settings.key_cache_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_of(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif path_of(scope) in FORM_PATHS:
            await (_cross_site_problem(scope) or self._app)(scope, receive, send)
        else:
            await self._authenticated(scope, receive, send)

    async def _authenticated(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        bearer = _bearer(headers)
        secret = session.secret_of(headers) if bearer is None else bearer
        key = await self._key_of(secret, scope)
        if isinstance(key, ProblemResponse):
            page = bearer is None and key.status_code == 401 and scope["method"] == "GET" and asks_for_page(scope)
            await (_to_login(scope) if page else key)(scope, receive, send)
            return
        refusal = (_cross_site_problem(scope) if bearer is None else None) or await self._too_many(key, scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {})["api_key"] = key
        await self._streams.run(self._app, secret or "", scope, receive, send)

    async def _key_of(self, secret: str | None, scope: Scope) -> ApiKey | ProblemResponse:
        if not secret:
            return _refused("the request carries no API key", "")
        if (known := self._keys.remembered(secret)) is not None:
            return known
        if not self._keys.may_be_good(secret) and (refusal := await self._rates.attempts_left(scope)) is not None:
            return refusal
        try:
            key = await self._keys.find(secret)
        except StorageUnavailable as error:
            return storage_unavailable(error, self._settings, known_caller=False)
        if key is None:
            what = "the API key is not known, has expired, or was revoked"
            return await self._rates.failed(scope) or _refused(what, ', error="invalid_token"')
        return key

    async def _too_many(self, key: ApiKey, scope: Scope) -> ProblemResponse | None:
        return await self._rates.request(key.id, scope["method"] not in session.SAFE_METHODS)


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
