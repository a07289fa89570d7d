"""The page to sign in on. It needs no key, and loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from starlette.responses import HTMLResponse
from starlette.types import Scope

from service.templating import Templates

TEMPLATES = Templates(Path(__file__).parent / "templates")

Failure = Literal["", "spent", "unknown", "empty", "elsewhere"]
"""Why the last attempt failed: its link was used, its key is unknown, there was no key, or another site opened the
link."""


def login_page(scope: Scope, target: str, status: int = 200, failure: Failure = "") -> HTMLResponse:
    """The form for a key. ``target`` is the path to continue to."""
    return TEMPLATES.page(scope, "login.html", status, target=target, failure=failure)
