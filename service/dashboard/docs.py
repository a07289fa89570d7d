"""The page that documents the API: the OpenAPI document, laid out on the server. It loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])


@dataclass(frozen=True, slots=True)
class Operation:
    """A route as the page shows it. ``scope``: what the key needs, empty where none is needed."""

    method: str
    path: str
    tag: str
    text: str
    scope: str
    parameters: tuple[dict[str, Any], ...]
    bodies: tuple[str, ...]
    responses: tuple[tuple[str, str, str], ...]


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    document = request.app.openapi()
    operations = list(_operations(document))
    tags = [(tag, [each for each in operations if each.tag == tag["name"]]) for tag in document["tags"]]
    return TEMPLATES.page(request, "docs.html", about=document["info"]["description"], tags=tags)


def _operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield Operation(
                method.upper(),
                path,
                operation["tags"][0],
                operation.get("description", operation["summary"]),
                _scope(operation),
                tuple(operation.get("parameters", ())),
                tuple(operation.get("requestBody", {}).get("content", ())),
                tuple(map(_response, operation["responses"].items())),
            )


def _scope(operation: dict[str, Any]) -> str:
    return ", ".join(scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes)


def _response(item: tuple[str, dict[str, Any]]) -> tuple[str, str, str]:
    """Status, description, and what the answer is: the name of its schema, or its media type."""
    status, response = item
    names = []
    for media_type, content in response.get("content", {}).items():
        reference = content.get("schema", {}).get("$ref", "")
        names.append(reference.rpartition("/")[2] or media_type)
    return status, response["description"], ", ".join(names)
