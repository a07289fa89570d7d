"""Every error as a problem document (RFC 9457): what went wrong, with which input, and what would do."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from service.login.pages import asks_for_page, problem_page
from service.paths import url_for_path
from service.settings import Settings
from tuner.errors import InvalidInput
from tuner.storage import Conflict, IdempotencyMismatch, NotFound, StorageUnavailable

MEDIA_TYPE = "application/problem+json"
MAX_TEXT = 2000
"""Characters of a member: a wrong value of a large body is not repeated whole."""

_log = logging.getLogger(__name__)


class ProblemResponse(JSONResponse):
    """A problem document; the same as a page for a browser that has one to show."""

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


def storage_unavailable(error: StorageUnavailable, settings: Settings, known_caller: bool) -> ProblemResponse:
    """What the database said may name hosts and paths: it goes to the log, and to callers whose key was checked."""
    _log.warning("database unavailable: %s", error)
    reason = str(error) if known_caller else "the service's log says why"
    detail = f"try again in {settings.retry_after_s} s: {reason}"
    headers = {"Retry-After": str(settings.retry_after_s)}
    return problem(503, "database-unavailable", "The tuning database cannot be used at present", detail, headers)


def install(app: FastAPI, settings: Settings) -> None:
    """Answer every error that ``app`` can raise with a problem document."""

    def unavailable(request: Request, error: Exception) -> ProblemResponse:
        assert isinstance(error, StorageUnavailable)
        return storage_unavailable(error, settings, known_caller=hasattr(request.state, "api_key"))

    app.add_exception_handler(InvalidInput, _on_invalid_input)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(NotFound, _on_not_found)
    app.add_exception_handler(Conflict, _on_conflict)
    app.add_exception_handler(StorageUnavailable, unavailable)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_defect)


def _on_invalid_input(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, InvalidInput)
    return invalid_input(error)


def _on_validation_error(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    return invalid_input(_first_of(error.errors()))


def _first_of(errors: Sequence[Any]) -> InvalidInput:
    """The first complaint of the framework's own checks of query, path and header, in our form."""
    first = errors[0]
    # The first step says only whether it was a query parameter, a header or a part of the path.
    field = ".".join(str(step) for step in first["loc"][1:]) or "request"
    given = "is missing" if first["type"] == "missing" else f"{str(first.get('input'))[:60]!r} will not do"
    return InvalidInput(field, given, str(first["msg"]))


def _on_not_found(_: Request, error: Exception) -> ProblemResponse:
    return problem(404, "not-found", "There is nothing of that name", str(error))


def _on_conflict(_: Request, error: Exception) -> ProblemResponse:
    if isinstance(error, IdempotencyMismatch):
        remedy = "use a new key for a new job"
        return problem(
            422,
            "idempotency-mismatch",
            "The idempotency key was used for another job",
            str(error),
            field="Idempotency-Key",
            problem=str(error),
            remedy=remedy,
        )
    return problem(409, "conflict", "The request does not fit the state that this is in", str(error))


def _on_http_exception(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    path, title = request.url.path, HTTPStatus(error.status_code).phrase
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return problem(405, "method-not-allowed", title, f"{request.method} {path}: use {allowed}", error.headers)
    if error.status_code == 404:
        listed = url_for_path(request, "/v1/openapi.json")
        return problem(404, "no-such-route", title, f"no route is at {path}; the routes stand in {listed}")
    name = title.lower().replace(" ", "-")
    return problem(error.status_code, name, title, str(error.detail), error.headers)


def _on_defect(request: Request, error: Exception) -> ProblemResponse:
    # The server above logs the traceback; what it says is for us, not for the client.
    detail = f"{request.method} {request.url.path} failed; the service's log says why"
    return problem(500, "defect", "The service has a defect", detail)


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"... ({len(text)} characters)"
