"""Sends what is due: one message at a time, at least once, and again later if it was not accepted."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit, urlunsplit

import httpx
from anyio import to_thread

from service.webhooks import message
from service.webhooks.addresses import Forbidden, address_of
from tuner.storage import Delivery, StorageUnavailable, WebhookStorage

SEND_S = 10.0
"""A receiver's time to answer, from looking up its name on."""
HOLD_S = 60.0
"""How long a message belongs to the process that claimed it."""
RETRIES_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""The wait after each failed attempt; after the last one the message is given up."""
MAX_ERROR = 500

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sender:
    """Sends the messages of one database. Several processes may have one each: every message is claimed first."""

    storage: WebhookStorage
    private: bool = False
    poll_s: float = 2.0
    outage_s: float = 5.0
    retries_s: tuple[float, ...] = RETRIES_S

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                sent = await self.send_next()
            except StorageUnavailable as error:
                _log.warning("webhooks wait: %s", error)
                await asyncio.sleep(self.outage_s)
                continue
            except Exception:
                _log.exception("a webhook could not be sent")
                await asyncio.sleep(self.outage_s)
                continue
            if not sent:
                await asyncio.sleep(self.poll_s)

    async def send_next(self) -> bool:
        """Send the message that is due longest; False if none is. Raises StorageUnavailable."""
        delivery = await to_thread.run_sync(self.storage.claim_delivery, HOLD_S)
        if delivery is None:
            return False
        error = await self._attempt(delivery)
        if error is None:
            await to_thread.run_sync(self.storage.finish_delivery, delivery)
            return True
        left = delivery.attempts <= len(self.retries_s)
        after_s = self.retries_s[delivery.attempts - 1] if left else None
        again = "given up" if after_s is None else f"again in {after_s:g} s"
        _log.warning("webhook of job %s: %s; %s", delivery.job_id, error, again)
        await to_thread.run_sync(self.storage.retry_delivery, delivery, error, after_s)
        return True

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
        look_up = partial(address_of, host, port, private=self.private)
        address = await to_thread.run_sync(look_up, abandon_on_cancel=True)
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
