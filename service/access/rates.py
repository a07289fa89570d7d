"""Rate limits of keys, and of failed attempts of addresses: counted in this process, in windows of fixed length."""

from __future__ import annotations

import time
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Literal

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter
from starlette.types import Scope

from service.problems import ProblemResponse, problem
from service.settings import Settings

Attempt = Literal["keys", "links"]
NOWHERE = "-"
SAID = {
    "requests": "all requests of this key",
    "changes": "the requests of this key that change something",
    "keys": "wrong keys from this address",
    "links": "wrong links to sign in from this address",
}


class Rates:
    """Each check returns a problem to answer with, or None. Other processes of the same service count by themselves."""

    def __init__(self, settings: Settings) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._requests = _parsed(settings.request_rate)
        self._changes = _parsed(settings.change_rate)
        self._attempts = _parsed(settings.attempt_rate)

    async def request(self, key_id: str, changes: bool) -> ProblemResponse | None:
        """Count a request of a key; ``changes``: one that is meant to change something."""
        refused = await self._hit(self._requests, "requests", key_id)
        if refused is None and changes:
            refused = await self._hit(self._changes, "changes", key_id)
        return refused

    async def attempts_left(self, scope: Scope, kind: Attempt = "keys") -> ProblemResponse | None:
        """Whether this address has failed too often to try another one."""
        if self._attempts is None or await self._limiter.test(self._attempts, kind, network_of(scope)):
            return None
        return await self._refusal(self._attempts, kind, network_of(scope))

    async def failed(self, scope: Scope, kind: Attempt = "keys") -> ProblemResponse | None:
        """Count one that was wrong; what to answer in place of that if there were too many before."""
        refusal = await self.attempts_left(scope, kind)
        if self._attempts is not None:
            await self._limiter.hit(self._attempts, kind, network_of(scope))
        return refusal

    async def _hit(self, item: RateLimitItem | None, what: str, who: str) -> ProblemResponse | None:
        if item is None or await self._limiter.hit(item, what, who):
            return None
        return await self._refusal(item, what, who)

    async def _refusal(self, item: RateLimitItem, what: str, who: str) -> ProblemResponse:
        reset_s, _ = await self._limiter.get_window_stats(item, what, who)
        after_s = max(1, round(reset_s - time.time() + 0.5))
        detail = f"more than {item} of {SAID[what]}; try again in {after_s} s"
        headers = {"Retry-After": str(after_s)}
        return problem(429, "too-many-requests", "Too many requests", detail, headers, limit=str(item))


def address_of(scope: Scope) -> str:
    """The client's address: a proxy's own, unless the server was told to trust what that says of its clients."""
    client = scope.get("client")
    return client[0] if client else NOWHERE


def network_of(scope: Scope) -> str:
    """The client's address; of IPv6 the network, which one client has all addresses of.

    A socket of both kinds tells IPv4 addresses in the form of IPv6, where all of them are of one network.
    """
    address = address_of(scope)
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return address if parsed.version == 4 else str(ip_network((int(parsed) >> 64 << 64, 64)))


def _parsed(rate: str) -> RateLimitItem | None:
    return parse(rate) if rate else None
