"""The security headers of every page."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The figures' library styles what it draws inline; scripts come from the service alone, and none is inline.
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'self'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # No referrer to other sites. Not no-referrer: forms would be sent with `Origin: null`, and over plain HTTP only the
    # origin distinguishes the service's own forms (see service/session.py).
    "Referrer-Policy": "same-origin",
}


class SecurityHeaders:
    """Adds them to HTML responses; headers that a route has set are kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                _secure(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, secured if scope["type"] == "http" else send)


def _secure(headers: MutableHeaders) -> None:
    if headers.get("content-type", "").startswith("text/html"):
        for name, value in HEADERS.items():
            headers.setdefault(name, value)
