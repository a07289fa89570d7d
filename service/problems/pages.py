"""Problem documents as pages, for browsers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse
from starlette.types import Scope

from service.paths import path_of
from service.templating import Templates

TEMPLATES = Templates(Path(__file__).parent / "templates")


def asks_for_page(scope: Scope) -> bool:
    """Whether a browser is to show the answer: it accepts HTML, and the path is not one of the API's."""
    accepted = Headers(scope=scope).get("accept", "").split(",")
    wants_html = any(part.partition(";")[0].strip().lower() == "text/html" for part in accepted)
    return wants_html and not f"{path_of(scope)}/".startswith("/v1/")


def problem_page(scope: Scope, document: Mapping[str, Any], headers: Mapping[str, str]) -> HTMLResponse:
    """A problem document as a page, with its status."""
    return TEMPLATES.page(scope, "problem.html", document["status"], headers, problem=document)
