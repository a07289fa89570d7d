"""Sends what is due: some messages at a time, each at least once, and again later if it was not accepted.

A receiver that never answers holds its place for ten seconds. So a key, and a host, have a few places of all.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit, urlunsplit

import httpx
from anyio import CapacityLimiter, to_thread

from service.webhooks import message
from service.webhooks.addresses import Forbidden, address_of
from tuner.storage import Delivery, StorageUnavailable
from tuner.storage.sql import OperatorStorage

SEND_S = 10.0
"""A receiver's time to answer, from looking up its name on."""
HOLD_S = 60.0
"""How long a message belongs to the process that claimed it."""
RETRIES_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""The wait after each failed attempt; after the last one the message is given up."""
MAX_ERROR = 500
AT_ONCE = 16
PER_KEY, PER_HOST = 4, 2
"""Messages under way at a time, of jobs of one API key, and to one host."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sender:
    """Sends the messages of one database. Several processes may have one each: every message is claimed first."""

    storage: OperatorStorage
    private: bool = False
    poll_s: float = 2.0
    outage_s: float = 5.0
    retries_s: tuple[float, ...] = RETRIES_S
    look_up: Callable[..., str] = address_of
    _limiter: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(AT_ONCE))

    async def run(self) -> None:
        """Send deliveries until it is cancelled."""
        sending: dict[asyncio.Task[None], Delivery] = {}
        try:
            while True:
                pause_s = await self._fill(sending)
                if sending:
                    await asyncio.wait(sending, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(pause_s)
                for task in [each for each in sending if each.done()]:
                    del sending[task]
        finally:
            for task in sending:
                task.cancel()  # sent again once its claim is over

    async def _fill(self, sending: dict[asyncio.Task[None], Delivery]) -> float:
        """Begin to send what is due, as far as there are places; when to look again."""
        try:
            while len(sending) < AT_ONCE and (delivery := await self._claim(sending.values())) is not None:
                sending[asyncio.create_task(self._send_logged(delivery))] = delivery
        except StorageUnavailable as error:
            _log.warning("webhooks wait: %s", error)
            return self.outage_s
        except Exception:
            _log.exception("no webhook could be claimed")
            return self.outage_s
        return self.poll_s

    async def _claim(self, sending: Iterable[Delivery]) -> Delivery | None:
        keys = Counter(each.api_key_id for each in sending)
        hosts = Counter(each.host for each in sending)
        claim = partial(
            self.storage.claim_delivery,
            HOLD_S,
            not_of_keys=[key for key, count in keys.items() if count >= PER_KEY],
            not_to_hosts=[host for host, count in hosts.items() if count >= PER_HOST],
        )
        return await to_thread.run_sync(claim)

    async def _send_logged(self, delivery: Delivery) -> None:
        try:
            await self._deliver(delivery)
        except StorageUnavailable as error:
            _log.warning("a webhook will be sent again: %s", error)
        except Exception:
            _log.exception("a webhook could not be sent")

    async def send_next(self) -> bool:
        """Send the message that is due longest; False if none is. Raises StorageUnavailable."""
        delivery = await self._claim(())
        if delivery is not None:
            await self._deliver(delivery)
        return delivery is not None

    async def _deliver(self, delivery: Delivery) -> None:
        error = await self._attempt(delivery)
        if error is None:
            await to_thread.run_sync(self.storage.finish_delivery, delivery)
            return
        left = delivery.attempts <= len(self.retries_s)
        after_s = self.retries_s[delivery.attempts - 1] if left else None
        again = "given up" if after_s is None else f"again in {after_s:g} s"
        _log.warning("webhook of job %s: %s; %s", delivery.job_id, error, again)
        await to_thread.run_sync(self.storage.retry_delivery, delivery, error, after_s)

    async def _attempt(self, delivery: Delivery) -> str | None:
        """Why the message was not accepted; None if it was."""
        try:
            async with asyncio.timeout(SEND_S):
                status = await self._send(delivery)
        except TimeoutError:
            return f"no answer within {SEND_S:g} s"
        except (Forbidden, OSError, httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            return f"{type(error).__name__}: {error}"[:MAX_ERROR]
        return None if 200 <= status < 300 else f"the receiver answered {status}"

    async def _send(self, delivery: Delivery) -> int:
        """The status of the answer, whose body is not read. Redirects are not followed: they could lead anywhere."""
        parts = urlsplit(delivery.url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        look_up = partial(self.look_up, host, port, private=self.private)
        # Threads of its own: names that nobody answers for take none from requests.
        address = await to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._limiter)
        place = f"[{address}]" if ":" in address else address
        url = urlunsplit((parts.scheme, f"{place}:{port}", parts.path or "/", parts.query, ""))
        body = message.body_of(delivery)
        headers = message.headers_of(delivery, body, time.time()) | {"Host": parts.netloc}
        # The name is still what the certificate has to be for.
        names = {"sni_hostname": host}
        async with (
            httpx.AsyncClient(trust_env=False, timeout=SEND_S, follow_redirects=False) as client,
            client.stream("POST", url, content=body, headers=headers, extensions=names) as answer,
        ):
            return answer.status_code
