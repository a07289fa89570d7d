"""The message of a delivery, and its signature, in the form of Standard Webhooks (standardwebhooks.com)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from tuner.storage import Delivery


def body_of(delivery: Delivery) -> bytes:
    return json.dumps(delivery.payload, separators=(",", ":")).encode()


def headers_of(delivery: Delivery, body: bytes, now_s: float) -> dict[str, str]:
    """``webhook-id`` is the same at every attempt, so a receiver can tell that it has a message already."""
    message_id, timestamp = f"msg-{delivery.id}", str(int(now_s))
    return {
        "Content-Type": "application/json",
        "User-Agent": "shapewright",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature(delivery.signing_key, message_id, timestamp, body)}",
    }


def signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
