"""The page that documents the API: the OpenAPI document, laid out on the server, with requests that can be tried.

It loads nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup, escape

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

Schema = Mapping[str, Any]
DEPTH = 4
"""Levels of an example."""
MANY = 6
"""Values of an enumeration that are listed."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the page shows it. ``initial`` is what the form begins with."""

    name: str
    place: str
    required: bool
    type: Markup
    text: str
    initial: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """What a request carries: its media types, the schema, and an example to begin with."""

    media_types: tuple[str, ...]
    type: Markup
    example: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; ``example`` is empty where there is none in JSON."""

    status: str
    text: str
    type: Markup
    example: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A route as the page shows it. ``scope``: what the key needs, empty where none is needed."""

    id: str
    method: str
    path: str
    tag: str
    text: str
    scope: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A schema as the page shows it: its fields with type, whether they must be there, and meaning."""

    name: str
    text: str
    type: Markup
    fields: tuple[tuple[str, Markup, bool, str], ...]


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    document = request.app.openapi()
    schemas = document["components"]["schemas"]
    operations = list(_operations(document, schemas))
    return TEMPLATES.page(
        request, "docs.html", about=document["info"]["description"],
        tags=[(tag, [each for each in operations if each.tag == tag["name"]]) for tag in document["tags"]],
        schemas=[_document(name, schema) for name, schema in sorted(schemas.items())],
    )  # fmt: skip


def _operations(document: Schema, schemas: Schema) -> Iterator[Operation]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield Operation(
                operation["operationId"],
                method.upper(),
                path,
                operation["tags"][0],
                operation.get("description", operation["summary"]),
                _scope(operation),
                tuple(
                    _parameter(each, schemas)
                    for each in operation.get("parameters", ())
                    if each["name"] != "If-None-Match"
                ),
                _body(operation, schemas),
                tuple(_answer(status, each, schemas) for status, each in operation["responses"].items()),
            )


def _scope(operation: Schema) -> str:
    return ", ".join(scope for each in operation.get("security", ()) for scopes in each.values() for scope in scopes)


def _parameter(parameter: Schema, schemas: Schema) -> Parameter:
    schema = parameter["schema"]
    default = schema.get("default")
    either = [schema, *schema.get("anyOf", ())]
    named = [schemas[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for each in either]
    choices = [choice for each in named for choice in each.get("enum", ())]
    initial = "" if default in (None, "") else json.dumps(default).strip('"')
    return Parameter(
        parameter["name"], parameter["in"], parameter.get("required", False), type_of(schema),
        parameter.get("description", ""), initial, tuple(map(str, choices)),
    )  # fmt: skip


def _body(operation: Schema, schemas: Schema) -> Body | None:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return None
    first = next(iter(content.values()))
    example = first.get("example", example_of(first.get("schema", {}), schemas))
    text = example if isinstance(example, str) else json.dumps(example, indent=2)
    return Body(tuple(content), type_of(first.get("schema", {})), text)


def _answer(status: str, response: Schema, schemas: Schema) -> Answer:
    """Status, meaning, and what the answer is: a schema, or its media type."""
    names, example = [], ""
    for media_type, content in response.get("content", {}).items():
        schema = content.get("schema", {})
        names.append(type_of(schema) or escape(media_type))
        if media_type == "application/json" and schema:
            example = json.dumps(example_of(schema, schemas), indent=2)
    return Answer(status, response["description"], Markup(", ").join(names), example)


def _document(name: str, schema: Schema) -> Document:
    needed = schema.get("required", ())
    fields = tuple(
        (field, type_of(each), field in needed, each.get("description", ""))
        for field, each in schema.get("properties", {}).items()
    )
    return Document(name, schema.get("description", ""), Markup("") if fields else type_of(schema), fields)


def type_of(schema: Schema) -> Markup:
    """A schema in few words, with links to those that have a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    either = schema.get("anyOf") or schema.get("oneOf")
    if either and "type" not in schema:
        return Markup(" or ").join(filter(None, map(type_of, either)))
    if len(schema.get("allOf", ())) == 1:
        return type_of(schema["allOf"][0])
    if "enum" in schema:
        values = list(map(str, schema["enum"]))
        return escape(" | ".join(values[:MANY]) + (" | …" if len(values) > MANY else ""))
    kind = schema.get("const", schema.get("type", ""))
    if kind == "array":
        return Markup("list of {}").format(type_of(schema.get("items", {})) or "anything")
    return escape(" or ".join(kind) if isinstance(kind, list) else kind)


def example_of(schema: Schema, schemas: Schema, depth: int = DEPTH) -> Any:
    """A value of a schema's form, for people to begin with; not every one is allowed."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    for name in ("example", "default", "const"):
        if schema.get(name) is not None:
            return schema[name]
    if "enum" in schema:
        return schema["enum"][0]
    parts = [*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    parts = [part for part in parts if part.get("type") != "null"]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        return _object(schema, schemas, depth)
    if parts and kind is None:
        return example_of(parts[0], schemas, depth)
    if kind == "array":
        return [example_of(schema.get("items", {}), schemas, depth - 1)] if depth else []
    return {"string": "text", "integer": 0, "number": 0.0, "boolean": False}.get(kind or "")


def _object(schema: Schema, schemas: Schema, depth: int) -> dict[str, Any]:
    if not depth:
        return {}
    return {name: example_of(each, schemas, depth - 1) for name, each in schema.get("properties", {}).items()}
