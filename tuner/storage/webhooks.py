"""Deliveries of webhooks: what is to be sent when a job has ended, until it was."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
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
