"""Which answers are compressed."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import Receive, Scope, Send

_NEVER = re.compile(r"q\s*=\s*0(\.0*)?")


class Compression(GZipMiddleware):
    """Compresses for clients that accept gzip. Starlette's own looks for the word alone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            accepted = accepts_gzip(",".join(Headers(scope=scope).getlist("accept-encoding")))
            others = [each for each in scope["headers"] if each[0] != b"accept-encoding"]
            # In place: those around this middleware read what the route leaves in the scope.
            scope["headers"] = [*others, (b"accept-encoding", b"gzip")] if accepted else others
        await super().__call__(scope, receive, send)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether the header names gzip, and not as what is never accepted (``gzip;q=0``)."""
    for part in accept_encoding.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name == "gzip":
            return not any(_NEVER.fullmatch(each) for each in parameters)
    return False
