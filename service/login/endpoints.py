"""The routes that set and delete a browser's cookie."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from service import session
from service.access.keys import Keys
from service.access.rates import Attempt, Rates
from service.access.scopes import OPEN
from service.dependencies import FormDep, KeysDep, OperatorDep, RatesDep
from service.login.pages import login_page
from service.paths import local_path, url_for_path
from service.problems import Refusal
from service.templating import NO_STORE
from tuner.storage import ApiKey, is_unguessable

router = APIRouter(include_in_schema=False)


@router.get("/login", dependencies=[OPEN])
async def show_login(
    request: Request,
    storage: OperatorDep,
    keys: KeysDep,
    rates: RatesDep,
    token: str | None = None,
    target: Annotated[str, Query(alias="next")] = "/",
) -> Response:
    """The page to sign in on; with a good ``token``, a cookie at once."""
    if token is None:
        return login_page(request.scope, local_path(target))
    if session.is_from_elsewhere(request.headers):
        return login_page(request.scope, local_path(target), 403, "elsewhere")
    if not is_unguessable(token):
        await _refuse_too_many(request, rates, "links")
    redeemed = await to_thread.run_sync(storage.redeem_login, token, session.MAX_AGE_S)
    if redeemed is not None:
        return _signed_in(request, redeemed[1], target)
    if await _session_key(request, keys) is not None:
        # The same link opened again, or reloaded, in the browser that used it.
        return _redirect(request, local_path(target))
    await _failed(request, rates, "links")
    return login_page(request.scope, local_path(target), 401, "spent")


@router.post("/login", dependencies=[OPEN])
async def sign_in(request: Request, form: FormDep, keys: KeysDep, rates: RatesDep) -> Response:
    """Take the API key in the field ``key`` into the cookie."""
    secret, target = form.get("key", "").strip(), form.get("next", "/")
    if not keys.may_be_good(secret):
        await _refuse_too_many(request, rates, "keys")
    if secret and await keys.find(secret) is not None:
        return _signed_in(request, secret, target)
    if secret:
        await _failed(request, rates, "keys")
    return login_page(request.scope, local_path(target), 401, "unknown" if secret else "empty")


@router.post("/logout", dependencies=[OPEN])
async def sign_out(request: Request, storage: OperatorDep, keys: KeysDep) -> Response:
    """Delete the cookie, and revoke its key if it was made from a one-time token: no one else has it."""
    if (key := await _session_key(request, keys)) is not None:
        await to_thread.run_sync(storage.end_login, key.id)
        keys.forget(session.secret_of(request.headers) or "")
    response = _redirect(request, "/login")
    session.end(response, request)
    return response


async def _refuse_too_many(request: Request, rates: Rates, kind: Attempt) -> None:
    """Raises Refusal when too many wrong ones came from the client's address."""
    if (refusal := await rates.attempts_left(request.scope, kind)) is not None:
        raise Refusal(refusal)


async def _failed(request: Request, rates: Rates, kind: Attempt) -> None:
    """Count a wrong one. Raises Refusal where there were too many before."""
    if (refusal := await rates.failed(request.scope, kind)) is not None:
        raise Refusal(refusal)


async def _session_key(request: Request, keys: Keys) -> ApiKey | None:
    secret = session.secret_of(request.headers)
    return await keys.find(secret) if secret else None


def _signed_in(request: Request, secret: str, target: str) -> Response:
    response = _redirect(request, local_path(target))
    session.begin(response, request, secret)
    return response


def _redirect(request: Request, path: str) -> Response:
    # The address may hold a token, which must not go out as the referrer.
    headers = {**NO_STORE, "Referrer-Policy": "no-referrer"}
    return RedirectResponse(url_for_path(request, path), 303, headers)
