"""Problem documents, and the ones that several parts of the service answer with."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from service.problems.pages import asks_for_page, problem_page
from service.settings import Settings
from tuner.errors import InvalidInput, ShapewrightError
from tuner.storage import NotFound, QuotaExceeded, StorageUnavailable

MEDIA_TYPE = "application/problem+json"
MAX_TEXT = 2000
"""Characters of a member: a wrong value in a large body is clipped."""

_log = logging.getLogger(__name__)


class ProblemResponse(JSONResponse):
    """A problem document; as a page for a browser that accepts one."""

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not asks_for_page(scope):
            await super().__call__(scope, receive, send)
            return
        own = {name: value for name, value in self.headers.items() if not name.startswith("content-")}
        await problem_page(scope, json.loads(bytes(self.body)), own)(scope, receive, send)


def problem(
    status: int, name: str, title: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> ProblemResponse:
    """A problem document. ``name`` ends its type URI; ``members`` are extension members."""
    content = {"type": f"urn:shapewright:{name}", "title": title, "status": status, "detail": _clipped(detail)}
    content |= {key: _clipped(value) if isinstance(value, str) else value for key, value in members.items()}
    return ProblemResponse(content, status, dict(headers or {}))


def invalid_input(error: InvalidInput) -> ProblemResponse:
    return problem(
        422,
        "invalid-input",
        "The request holds something that can never work",
        str(error),
        field=error.field,
        problem=error.problem,
        remedy=error.remedy,
    )


def not_found(error: NotFound, remedy: str | None = None, look_at: str | None = None) -> ProblemResponse:
    """``remedy``: what to ask for in its place, where that is known, and the path of it."""
    if remedy is None:
        return problem(404, "not-found", "Not found", str(error))
    return problem(
        404, "not-found", "Not found", f"{error}; {remedy}", problem=str(error), remedy=remedy, look_at=look_at
    )


def problem_of(error: ShapewrightError) -> dict[str, Any]:
    """The document of an error of one part of a request, to stand in the answer to the whole."""
    response = invalid_input(error) if isinstance(error, InvalidInput) else not_found(NotFound(str(error)))
    document: dict[str, Any] = json.loads(bytes(response.body))
    return document


def quota_exceeded(error: QuotaExceeded) -> ProblemResponse:
    """403, not 429: waiting alone may not help, so no time to come back is named."""
    return problem(
        403,
        "quota-exceeded",
        "The job would use more than its owner may",
        str(error),
        quota=error.name,
        used=error.used,
        asked=error.asked,
        limit=error.limit,
        problem=f"quota {error.name} would be exceeded",
        remedy=error.remedy,
    )


def storage_unavailable(error: StorageUnavailable, settings: Settings, known_caller: bool) -> ProblemResponse:
    """The database's message may name hosts and paths: it is logged, and sent only to authenticated callers."""
    _log.warning("database unavailable: %s", error)
    reason = str(error) if known_caller else "the service's log says why"
    detail = f"try again in {settings.retry_after_s} s: {reason}"
    headers = {"Retry-After": str(settings.retry_after_s)}
    return problem(503, "database-unavailable", "The tuning database cannot be used at present", detail, headers)


def _clipped(text: str) -> str:
    """What a document can carry of a text: half of a character, which a name in JSON may have, becomes a whole one."""
    kept = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"... ({len(text)} characters)"
    return kept.encode(errors="replace").decode()
