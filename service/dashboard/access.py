"""The pages of administrators: API keys with their quotas, and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from service.access.scopes import ADMIN
from service.dashboard.templating import TEMPLATES
from service.dependencies import CallerDep, Cursor, FormDep, OperatorDep, SettingsDep
from service.paths import url_for_path
from service.times import parse_time
from tuner.errors import InvalidInput
from tuner.storage import ApiKey, NewKey, Quota, Scope
from tuner.storage.access import check_names, parse_scopes
from tuner.storage.sql import OperatorStorage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[ADMIN])

LIFETIMES = {"30": "30 days", "90": "90 days", "365": "a year", "": "never"}
MAX_LIMIT = 10**12
PAGE = 50
Given = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class Listed:
    """A key as a line of the page. ``limits``: each of its quotas with what its owner's jobs use of it."""

    key: ApiKey
    state: str
    limits: Sequence[tuple[str, float, float]]


# -- keys -------------------------------------------------------------------------------------------------------------
@router.get("/keys")
def keys_page(request: Request, storage: OperatorDep, settings: SettingsDep, q: Given = "") -> HTMLResponse:
    """All keys, those that are good first."""
    return _keys_page(request, storage, settings.key_cache_s, q=q.strip())


@router.post("/keys")
def create_key(
    request: Request, storage: OperatorDep, settings: SettingsDep, caller: CallerDep, form: FormDep
) -> HTMLResponse:
    """Make a key of the form's fields; the page shows its secret, this once."""
    try:
        made = _new_key(form)
    except InvalidInput as error:
        return _keys_page(request, storage, settings.key_cache_s, 422, wrong=error, form=form)
    key, secret = storage.create_key(form["name"].strip(), made=made, actor=caller.id)
    return _keys_page(request, storage, settings.key_cache_s, created=key, secret=secret)


@router.post("/keys/{key_id}/revoke")
def revoke_key(request: Request, key_id: str, storage: OperatorDep, caller: CallerDep) -> RedirectResponse:
    storage.revoke_key(key_id, caller.id)
    return RedirectResponse(url_for_path(request, "/keys"), 303)


def _keys_page(
    request: Request, storage: OperatorStorage, refused_within_s: float, status: int = 200, **more: Any
) -> HTMLResponse:
    shown = {"q": "", "created": None, "secret": "", "wrong": None, "form": {}} | more
    listed = [each for each in _listed(storage) if _matches(each.key, shown["q"])]
    return TEMPLATES.page(
        request, "keys.html", status, listed=listed, scopes=list(Scope), lifetimes=LIFETIMES,
        refused_within_s=refused_within_s, **shown,
    )  # fmt: skip


def _listed(storage: OperatorStorage) -> list[Listed]:
    keys = storage.list_keys()
    uses = storage.quota_uses(key.owner for key in keys if not key.quota.unlimited)
    lines = []
    for key in reversed(keys):
        limits = key.quota.to_json() or {}
        used = [(name, getattr(uses[key.owner], name), limit) for name, limit in limits.items()]
        lines.append(Listed(key, _state(key), used))
    return sorted(lines, key=lambda line: line.state != "valid")


def _state(key: ApiKey) -> str:
    expires = parse_time(key.expires_at)
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if expires is not None and expires <= datetime.now(UTC) else "valid"


def _matches(key: ApiKey, text: str) -> bool:
    return text.lower() in f"{key.id} {key.name} {key.owner}".lower()


def _new_key(form: Mapping[str, str]) -> NewKey:
    """Raises InvalidInput."""
    name, owner = form.get("name", "").strip(), form.get("owner", "").strip()
    check_names(name, owner)
    days = form.get("days", "")
    if days not in LIFETIMES:
        raise InvalidInput("days", f"{days[:20]!r} is not offered", f"one of: {', '.join(filter(None, LIFETIMES))}")
    quota = Quota(*(_limit(form, name) for name in ("open_jobs", "trials", "seconds")))
    return NewKey(parse_scopes([form.get("scope", "")]), owner, 86400.0 * int(days) if days else None, quota)


def _limit(form: Mapping[str, str], name: str) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_LIMIT):
        raise InvalidInput(name, f"{text[:20]!r} is not a limit", f"a whole number up to {MAX_LIMIT:,}, or nothing")
    return int(text)


# -- the audit trail --------------------------------------------------------------------------------------------------
@router.get("/audit")
def audit_page(
    request: Request,
    storage: OperatorDep,
    subject: Given = "",
    actor: Given = "",
    action: Given = "",
    cursor: Cursor = None,
) -> HTMLResponse:
    """Who did what, newest first."""
    subject, actor, action = subject.strip(), actor.strip(), action.strip()
    entries = storage.list_audit(cursor, subject or None, PAGE, actor or None, action or None)
    names = {key.id: key.name for key in storage.list_keys()}
    return TEMPLATES.page(
        request, "audit.html", entries=entries, names=names, first=cursor is None, subject=subject, actor=actor,
        action=action,
    )  # fmt: skip
