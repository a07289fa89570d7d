"""Paths under a proxy's prefix: clients see prefix and path, routes only the path."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from tuner.errors import InvalidInput

_PREFIX = re.compile(r"(/(?!\.+(/|$))[\w.~-]+)*", re.ASCII)
_UNSAFE = re.compile(r"[\\\x00-\x20\x7f]|//")


class UnderPrefix:
    """Serves everything under a prefix too, whether the proxy in front strips it or not.

    Inside, ``scope["root_path"]`` is the prefix and ``scope["path"]`` begins with it, as ASGI has it. A proxy that
    strips a prefix needs one that no route of the service begins with: ``/v1`` would be stripped twice.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._prefix and scope["type"] in ("http", "websocket"):
            # In place: the handler of unexpected errors is outside of this middleware and reads the same scope.
            scope["root_path"] = self._prefix
            scope["path"] = self._prefixed(scope["path"])
        await self._app(scope, receive, send)

    def _prefixed(self, path: str) -> str:
        if path == self._prefix:
            return f"{path}/"
        return path if path.startswith(f"{self._prefix}/") else self._prefix + path


def parse_prefix(text: str) -> str:
    """``/shapewright`` or ``/tools/shapewright``, a slash at its end dropped. Raises InvalidInput."""
    prefix = text.rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidInput("root_path", f"{text!r} is not a path of letters, digits and -._~", "as in /shapewright")
    return prefix


def url_for_path(where: HTTPConnection | Scope, path: str) -> str:
    """The path of the service (``/jobs/x``, percent-encoded by the caller) as the client of this request sees it."""
    return _prefix_of(_scope_of(where)) + path


def path_of(where: HTTPConnection | Scope) -> str:
    """The requested path without the prefix: the one to compare with routes."""
    scope = _scope_of(where)
    path: str = scope["path"]
    prefix = _prefix_of(scope)
    return path[len(prefix) :] if path.startswith(f"{prefix}/") else path


def local_path(text: str) -> str:
    """``text`` if it is a path of this service, query included; ``/`` if it could lead a browser elsewhere."""
    return text if text.startswith("/") and not _UNSAFE.search(text) else "/"


def _scope_of(where: HTTPConnection | Scope) -> Scope:
    return where.scope if isinstance(where, HTTPConnection) else where


def _prefix_of(scope: Scope) -> str:
    # Below a mount, root_path holds the mount's own path too.
    prefix: str = scope.get("app_root_path", scope.get("root_path", ""))
    return prefix
