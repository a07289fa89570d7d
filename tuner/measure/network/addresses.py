"""Network addresses of trackers and devices."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from tuner.errors import InvalidInput, shown

Address = tuple[str, int]
"""Host and port."""


def parse_address(text: str, field: str = "address") -> Address:
    """``HOST:PORT``, or ``[HOST]:PORT`` for an address of IPv6. Raises InvalidInput on ``field``."""
    host, _, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    if not bare or not is_port or (":" in bare) != (bare != host) or set(bare) & set("[]/ \t\n"):
        raise InvalidInput(field, f"{shown(text)} is not an address", "as in 127.0.0.1:9190 or [::1]:9190")
    return bare, int(port)


def address_text(address: Address) -> str:
    """What ``parse_address`` reads."""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address(peer: Address) -> str:
    """The address of this machine on its route to ``peer``, by which the peer's network reaches it. Nothing is sent.

    Raises OSError if there is no such name or no route.
    """
    family, kind, _, _, address = socket.getaddrinfo(*peer, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        # For datagrams this only chooses the route.
        probe.connect(address)
        found: str = probe.getsockname()[0]
        return found


def is_everywhere(host: str) -> bool:
    """Whether a listener at ``host`` listens at every address of the machine."""
    return host in ("", "0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine that no other reaches; a name is looked up."""
    try:
        return ip_address(socket.getaddrinfo(host or "0.0.0.0", None)[0][4][0]).is_loopback
    except OSError:
        return False


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raises OSError if nobody could listen there now. Connections of a server that has ended are in nobody's way."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
