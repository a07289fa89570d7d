"""Network addresses of trackers and devices."""

from __future__ import annotations

import socket

from tuner.errors import InvalidInput

Address = tuple[str, int]
"""Host and port."""


def parse_address(text: str, field: str = "address") -> Address:
    """``HOST:PORT``. Raises InvalidInput on ``field``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(field, f"{text!r} is not an address", "as in 127.0.0.1:9190")
    return host, int(port)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
