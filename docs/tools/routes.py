"""The routes and documents of the service, from its OpenAPI document."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from docs.tools.markdown import code, prose, sentence, table
from service.app import create_app
from tuner.storage.sql import open_storage, upgrade

JsonObject = Mapping[str, Any]


@cache
def openapi() -> JsonObject:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'tuning.db'}"
        upgrade(url)
        storage = open_storage(url)
        try:
            return create_app(storage).openapi()
        finally:
            storage.close()


def operations() -> Iterator[tuple[str, JsonObject]]:
    """Each route as ``GET /v1/jobs`` with what the document says of it."""
    for path, methods in openapi()["paths"].items():
        for method, details in methods.items():
            yield f"{method.upper()} {path}", details


def routes() -> str:
    parts = []
    for tag in openapi()["tags"]:
        own = [(name, details) for name, details in operations() if details["tags"] == [tag["name"]]]
        if own:
            parts += [f"### {tag['name'].capitalize()}", tag["description"]]
            parts += [_route(name, details) for name, details in own]
    schemas = openapi()["components"]["schemas"]
    parts += ["## Documents", *(_schema(name, schema) for name, schema in sorted(schemas.items()))]
    return "\n\n".join(parts)


def _route(name: str, details: JsonObject) -> str:
    scope = "".join(scope for each in details.get("security", ()) for scopes in each.values() for scope in scopes)
    rows = [
        (code(each["name"]), each["in"], _type(each["schema"]), sentence(each.get("description")))
        for each in details.get("parameters", ())
        if each["name"] != "If-None-Match"
    ]
    facts = [f"Scope: {code(scope) if scope else 'none, it is open'}."]
    body = details.get("requestBody", {}).get("content", {})
    if body:
        facts.append(f"Body: {', '.join(dict.fromkeys(_type(each['schema']) for each in body.values()))}.")
    facts.append(f"Answers: {', '.join(_answers(details['responses']))}.")
    parts = [f"#### {code(name)}", prose(details.get("description")), " ".join(facts)]
    return "\n\n".join([*filter(None, parts), *([table(("parameter", "in", "type", "is"), rows)] if rows else [])])


def _answers(responses: JsonObject) -> Iterator[str]:
    for status, answer in sorted(responses.items()):
        kinds = {media: _type(each.get("schema", {})) for media, each in answer.get("content", {}).items()}
        shown = ", ".join(kind or code(media) for media, kind in kinds.items() if media != "application/problem+json")
        yield f"{status} {shown}" if shown else status


def _schema(name: str, schema: JsonObject) -> str:
    parts = [f"### {name}", prose(schema.get("description"))]
    if "enum" in schema:
        parts.append(f"One of {', '.join(map(code, schema['enum']))}.")
    needed = schema.get("required", ())
    rows = [
        (code(field), _type(each) + ("" if field in needed else ", optional"), sentence(each.get("description")))
        for field, each in schema.get("properties", {}).items()
    ]
    return "\n\n".join([*filter(None, parts), *([table(("field", "type", "is"), rows)] if rows else [])])


def _type(schema: JsonObject) -> str:
    """A schema in few words, with its bounds and its default."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if len(schema.get("allOf", ())) == 1:
        return _type(schema["allOf"][0])
    either = schema.get("anyOf") or schema.get("oneOf")
    if either and "type" not in schema:
        text = " or ".join(_type(each) for each in either)
    elif isinstance(schema.get("type"), list):
        text = " or ".join(schema["type"])
    elif schema.get("type") == "array":
        text = f"list of {_type(schema.get('items', {})) or 'anything'}"
    elif "enum" in schema:
        text = " or ".join(code(each) for each in schema["enum"])
    else:
        text = str(schema.get("const", schema.get("type", "")))
    return text + _bounds(schema)


def _bounds(schema: JsonObject) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" from {low} to {high}" if low is not None and high is not None else ""
    bounds = bounds or (f" from {low} on" if low is not None else f" up to {high}" if high is not None else "")
    length = schema.get("maxLength", schema.get("maxItems"))
    bounds += f" of at most {length}" if length is not None else ""
    default = schema.get("default")
    return bounds + (f" ({code(default)})" if default not in (None, "") else "")
