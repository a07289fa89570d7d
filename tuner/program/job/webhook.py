"""How a job is queued, and who is notified of its end: the fields ``priority`` and ``webhook`` of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from tuner.errors import InvalidInput, shown

MAX_PRIORITY = 10
MAX_URL = 2000
_FORM = "as in {url: https://ci.example/hooks/tuned}"


def parse_priority(value: object) -> int:
    """Raises InvalidInput unless it is an integer from -10 to 10."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:
        form = f"an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}; above 0 only with a key of scope admin"
        raise InvalidInput("priority", f"{shown(value)} is not a priority", form)
    return value


def parse_webhook(data: object) -> str | None:
    """The URL of a webhook. Raises InvalidInput; whether its host may be reached is known when it is."""
    if data is None:
        return None
    if not isinstance(data, Mapping) or set(data) != {"url"}:
        raise InvalidInput("webhook", f"{shown(data)} is not a mapping with a url", _FORM)
    url = data["url"]
    if not isinstance(url, str) or not 0 < len(url) <= MAX_URL or not (url.isascii() and url.isprintable()):
        raise InvalidInput("webhook.url", f"{shown(url)} is not a URL", f"ASCII, at most {MAX_URL} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput("webhook.url", f"{shown(url)} is not a URL: {error}", _FORM) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or " " in url:
        raise InvalidInput("webhook.url", f"{shown(url)} is not an http or https URL with a host", _FORM)
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidInput("webhook.url", "holds a user, a password or a fragment", "none; the message is signed")
    return url
