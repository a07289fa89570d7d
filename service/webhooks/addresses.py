"""Where a message may be sent: public addresses alone, so that no job makes the service talk to its own network."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any

from tuner.errors import ShapewrightError

Resolve = Callable[[str, int], Sequence[Any]]
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a gateway translates to the IPv4 address in their last four bytes."""
UNICAST = ipaddress.ip_network("2000::/3")
"""All that was ever given out of IPv6: site-local addresses (fec0::/10) and what has no meaning yet lie outside."""
SPECIAL = [
    ipaddress.ip_network(each)
    for each in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
]
"""Protocols, tunnels (6to4, Teredo) and documentation: some hold an IPv4 address, and nobody receives there."""


class Forbidden(ShapewrightError):
    """The host has an address that nothing may be sent to, or none at all."""


def resolve(host: str, port: int) -> Sequence[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def address_of(host: str, port: int, *, private: bool = False, look_up: Resolve = resolve) -> str:
    """The address to connect to. Raises Forbidden unless every address of the host is public; OSError.

    The caller connects to this address and looks nothing up again: a name may mean something else a moment later.
    """
    result = list(dict.fromkeys(entry[4][0] for entry in look_up(host, port)))
    if not result:
        raise Forbidden(f"{host} has no address")
    for address in result:
        if not private and not is_public(address):
            raise Forbidden(f"{host} is at {address}, which is not a public address")
    return str(result[0])


def is_public(text: str) -> bool:
    """Whether anybody on the internet could reach it: not loopback, private, link-local, shared or multicast."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address.ipv4_mapped
        if inner is not None:
            return is_public(str(inner))
        if address not in UNICAST:
            return False
    is_special = any(address in network for network in SPECIAL if network.version == address.version)
    return address.is_global and not (is_special or address.is_multicast or address.is_reserved)
