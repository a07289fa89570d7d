"""The OpenAPI document: what the framework knows of the routes, and what the middlewares and the handlers add."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.jobs.job_schema import SCHEMAS
from service.problems.openapi import PROBLEM, answer

ABOUT = """Auto-scheduling search for tensor programs whose shapes are dynamic.

Send an API key in `Authorization: Bearer KEY`. Each operation says which scope of the key it needs: `read`, `submit`,
`promote` or `admin`, each including the ones before it. Errors are problem documents (RFC 9457). Lists are read with
keyset cursors. Every JSON answer to a GET has an ETag; `If-None-Match` with it is answered with 304 while nothing has
changed. Answers are compressed for clients that accept gzip."""
TAGS = [
    {"name": "jobs", "description": "Tuning jobs: submitting and following them."},
    {"name": "workloads", "description": "What is known: the best kernel for a shape."},
    {"name": "libraries", "description": "Built libraries: which one is served, their names and the history of these."},
    {"name": "records", "description": "Tuning records, to take to another service and from one."},
    {"name": "devices", "description": "Where candidates are measured."},
    {"name": "figures", "description": "Plotly JSON, made from what is recorded."},
    {"name": "access", "description": "The audit trail."},
    {"name": "health", "description": "Whether the service lives and can work, and its figures for monitoring."},
]
FRAMEWORK = ("HTTPValidationError", "ValidationError")
"""Schemas that the framework documents for its own errors, which no answer here has."""
NOT_MODIFIED = {"description": "The client has this answer already"}
IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "the ETag of an earlier answer",
    "schema": {"type": "string", "maxLength": 500},
}
ETAG = {"ETag": {"description": "changes when the answer does", "required": True, "schema": {"type": "string"}}}


def install(app: FastAPI) -> None:
    """Complete what ``app.openapi()`` returns."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        if "Problem" not in document["components"]["schemas"]:
            _complete(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in FRAMEWORK:
        schemas.pop(name, None)
    schemas["Problem"] = PROBLEM
    schemas.update(SCHEMAS)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status in _problems(path, method, operation):
                operation["responses"].setdefault(str(status), answer(status))
            if "422" in operation["responses"]:
                operation["responses"]["422"] = answer(422)
            for content in operation["responses"].get("200", {}).get("content", {}).values():
                if "itemSchema" in content:
                    # The framework describes every stream as one text.
                    content.pop("schema", None)
            if method == "get" and path.startswith("/v1/"):
                _describe_etag(operation)


def _problems(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    """The problems that follow from where a route stands; others are declared at the route."""
    result = [500, 503]
    if operation.get("security"):
        result += [401, 403, 429]
    if "{" in path:
        result.append(404)
    if method != "get":
        result += [408, 413]
    return result


def _describe_etag(operation: dict[str, Any]) -> None:
    success = operation["responses"].get("200", {})
    if "application/json" in success.get("content", {}) or "304" in operation["responses"]:
        operation["responses"].setdefault("304", NOT_MODIFIED)
        success.setdefault("headers", ETAG)
        parameters = operation.setdefault("parameters", [])
        if not any(each["name"].lower() == "if-none-match" for each in parameters):
            parameters.append(IF_NONE_MATCH)
