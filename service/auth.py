"""API keys: who may use the service. Everything but a short list of open paths takes a bearer key."""

from __future__ import annotations

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.problems import ProblemResponse, problem, storage_unavailable
from service.settings import Settings
from tuner.storage import ApiKey, Storage, StorageUnavailable

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/v1/healthz", "/v1/readyz"})


class BearerAuth:
    """Lets a request pass with a known key, which it leaves in ``scope["state"]["api_key"]``.

    It stands before the routes, so that no route can be left open by accident and a stranger learns nothing of them.
    """

    def __init__(self, app: ASGIApp, storage: Storage, settings: Settings) -> None:
        self._app = app
        self._storage = storage
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        found = await self._key_of(Headers(scope=scope).get("authorization"))
        if isinstance(found, ProblemResponse):
            await found(scope, receive, send)
            return
        scope.setdefault("state", {})["api_key"] = found
        await self._app(scope, receive, send)

    async def _key_of(self, header: str | None) -> ApiKey | ProblemResponse:
        scheme, _, secret = (header or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            return _refused("the request carries no API key", "")
        try:
            key = await to_thread.run_sync(self._storage.find_key, secret.strip())
        except StorageUnavailable as error:
            return storage_unavailable(error, self._settings, known_caller=False)
        return key or _refused("the API key is not known, or was revoked", ', error="invalid_token"')


def _refused(what: str, challenge: str) -> ProblemResponse:
    detail = f"{what}; send one in the header: Authorization: Bearer KEY"
    headers = {"WWW-Authenticate": f'Bearer realm="shapewright"{challenge}'}
    return problem(401, "not-allowed", "An API key is needed", detail, headers, problem=what)
