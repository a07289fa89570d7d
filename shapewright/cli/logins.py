"""Links that sign a browser in to a service."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tuner.errors import InvalidInput

if TYPE_CHECKING:
    from tuner.storage.sql import OperatorStorage

KEY_NAME = "browser"
"""The name, in the list of keys, of the key that a link creates."""
LOGIN_TTL_S = 3600.0
"""How long a link is valid."""


def login_link(storage: OperatorStorage, url: str) -> str:
    """A link to the service at ``url`` that signs one browser in, once. Raises InvalidInput."""
    base = _checked(url).rstrip("/")
    return f"{base}/login?token={storage.create_login(KEY_NAME, LOGIN_TTL_S)}"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise InvalidInput("url", f"{url!r} is not the address of a service", "as in http://127.0.0.1:8321")
    return url
