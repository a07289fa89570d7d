"""Problem documents in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from service.problems.documents import MEDIA_TYPE

PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "description": "An error (RFC 9457): what went wrong, and what to do about it. Some have further members: `field`, "
    "`problem` and `remedy` of a wrong input, `needed_scope` of a key that allows too little, `quota`, `used` and "
    "`limit` of a quota.",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "pattern": "^urn:shapewright:", "description": "the kind of the problem"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string"},
    },
}
MEANINGS = {
    401: "No API key, or one that is unknown, revoked or expired",
    403: "The key does not allow this: it lacks a scope, the job is another owner's, or a quota is used up",
    404: "There is nothing of that name",
    408: "The body did not arrive in time",
    409: "Not possible in the state that it is in",
    413: "The body is too large",
    415: "The body is of a media type that cannot be read",
    422: "Something in the request can never work; `field` names it",
    429: "Too many requests of this key; Retry-After says when to come back",
    500: "A defect of the service",
    503: "The database cannot be used at present; Retry-After says when to come back",
}
RETRY_AFTER = {"Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}}


def answer(status: int) -> dict[str, Any]:
    """A response with a problem document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    result: dict[str, Any] = {"description": MEANINGS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
    if status in (429, 503):
        result["headers"] = RETRY_AFTER
    return result


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route has beside those of every route, for its ``responses``."""
    return {status: answer(status) for status in statuses}
