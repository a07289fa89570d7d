"""Exception handlers: every error that the application can raise becomes a problem document."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from service.paths import url_for_path
from service.problems.documents import (
    ProblemResponse,
    invalid_input,
    not_found,
    problem,
    quota_exceeded,
    storage_unavailable,
)
from service.problems.pages import asks_for_page
from service.settings import Settings
from tuner.errors import InvalidInput
from tuner.program.language.effort import Abandoned
from tuner.storage import Conflict, CorruptData, IdempotencyMismatch, NotFound, QuotaExceeded, StorageUnavailable

JOB_ID = re.compile("job-[0-9a-f]{19}")
"""A whole id of a job."""

_log = logging.getLogger(__name__)


class Refusal(Exception):
    """Answers a request with a problem, from inside a route."""

    def __init__(self, response: ProblemResponse) -> None:
        super().__init__(response.status_code)
        self.response = response


def install(app: FastAPI, settings: Settings) -> None:
    """Answer every error that ``app`` can raise with a problem document."""

    def unavailable(request: Request, error: Exception) -> ProblemResponse:
        assert isinstance(error, StorageUnavailable)
        return storage_unavailable(error, settings, known_caller=hasattr(request.state, "api_key"))

    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(QuotaExceeded, _on_quota_exceeded)
    app.add_exception_handler(InvalidInput, _on_invalid_input)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(NotFound, _on_not_found)
    app.add_exception_handler(Conflict, _on_conflict)
    app.add_exception_handler(StorageUnavailable, unavailable)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(CorruptData, _on_corrupt_data)
    app.add_exception_handler(Abandoned, _on_abandoned)
    app.add_exception_handler(Exception, _on_defect)


def _on_refusal(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, Refusal)
    return error.response


def _on_quota_exceeded(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, QuotaExceeded)
    return quota_exceeded(error)


def _on_invalid_input(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, InvalidInput)
    return invalid_input(error)


def _on_validation_error(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    return invalid_input(_first_of(error.errors()))


def _first_of(errors: Sequence[Any]) -> InvalidInput:
    """The first complaint of the framework's own checks of query, path and header, in our form."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return InvalidInput("body", f"is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}", "mend it")
    # The first step says only whether it was a query parameter, a header or a part of the path.
    field = ".".join(str(step) for step in first["loc"][1:]) or "request"
    given = "is missing" if first["type"] == "missing" else f"{str(first.get('input'))[:60]!r} is not valid"
    return InvalidInput(field, given, str(first["msg"]))


def _on_not_found(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, NotFound)
    named = str(request.path_params.get("job_id", ""))
    if not named or JOB_ID.fullmatch(named):
        return not_found(error)
    # Which job `latest` or a part of an id means changes from hour to hour: an address means one job for good.
    listed = url_for_path(request, "/" if asks_for_page(request.scope) else "/v1/jobs")
    if named == "latest":
        return not_found(error, f"addresses have whole ids; {listed} lists the newest job first", look_at=listed)
    found = f"{listed}?q={quote(f'id:{named}')}"
    return not_found(error, f"addresses have whole ids; {found} has the jobs whose id begins or ends so", look_at=found)


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
    return problem(409, "conflict", "The request conflicts with the current state", str(error))


def _on_http_exception(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    path, title = request.url.path, HTTPStatus(error.status_code).phrase
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return problem(405, "method-not-allowed", title, f"{request.method} {path}: use {allowed}", error.headers)
    if error.status_code == 404:
        listed = url_for_path(request, "/v1/openapi.json")
        return problem(404, "no-such-route", title, f"there is no route {path}; {listed} lists the routes")
    if error.status_code == 400 and isinstance(cause := error.__cause__, ValueError | RecursionError):
        # The framework's own, of a body that it cannot read, for which it has no words.
        return invalid_input(InvalidInput("body", f"cannot be read as JSON: {cause}", "an object in UTF-8"))
    name = title.lower().replace(" ", "-")
    return problem(error.status_code, name, title, str(error.detail), error.headers)


def _on_abandoned(request: Request, _: Exception) -> ProblemResponse:
    return problem(408, "abandoned", "The client has left", f"{request.method} {request.url.path}: send it again")


def _on_corrupt_data(request: Request, error: Exception) -> ProblemResponse:
    # Not 500: what was stored is lost, and asking again brings nothing back.
    return _logged(request, error, "corrupt-data", "Something in the tuning database cannot be read", 410)


def _on_defect(request: Request, error: Exception) -> ProblemResponse:
    return _logged(request, error, "defect", "The service has a defect")


def _logged(request: Request, error: Exception, name: str, title: str, status: int = 500) -> ProblemResponse:
    """The problem of an error that is none of the client's: it names the id under which the log has the rest."""
    number = secrets.token_hex(8)
    what = f"{request.method} {request.url.path}"
    _log.error("problem %s: %s: %s", number, what, error, exc_info=error)
    detail = f"{what} failed; the service's log says why, under problem {number}"
    headers = {"X-Request-Id": getattr(request.state, "request_id", "")}
    return problem(status, name, title, detail, headers, id=number, instance=f"urn:shapewright:problem:{number}")
