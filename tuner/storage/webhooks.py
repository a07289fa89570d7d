"""Deliveries of webhooks: what is to be sent when a job has ended, until it was."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from tuner.program.language.workload import JsonObject
from tuner.storage.access import hash_of


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message to send. ``attempts`` counts this one; ``signing_key`` is that of the key that submitted the job."""

    id: int
    job_id: str
    url: str
    payload: JsonObject
    attempts: int
    signing_key: bytes
    api_key_id: str = ""

    @property
    def host(self) -> str:
        """Scheme, host and port, as they stand in the URL."""
        return host_of(self.url)


def host_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def signing_key(secret_sha256: str) -> bytes:
    """What signs the messages of an API key's jobs. It follows from the key's secret, so nothing more is stored, and it
    opens nothing: the secret does not follow from it."""
    return hashlib.sha256(f"shapewright webhook {secret_sha256}".encode()).digest()


def webhook_secret(secret: str) -> str:
    """The signing key of an API key's secret, as receivers take it: ``whsec_`` and base64."""
    return f"whsec_{base64.b64encode(signing_key(hash_of(secret))).decode()}"


class WebhookStorage(Protocol):
    """Sending each message at least once, from one of several processes at a time."""

    def claim_delivery(
        self, hold_s: float, not_of_keys: Sequence[str] = (), not_to_hosts: Sequence[str] = ()
    ) -> Delivery | None:
        """The message that is due longest, which no other caller gets for ``hold_s`` seconds. None if none is due.

        Those of jobs of these API keys, and to these hosts (as of a Delivery), are left.
        """

    def finish_delivery(self, delivery: Delivery) -> None:
        """Note that it was delivered."""

    def retry_delivery(self, delivery: Delivery, error: str, after_s: float | None) -> None:
        """Note that it was not delivered: try again after ``after_s`` seconds, or never (None)."""
