"""Join tokens: how a device proves that it has one, without showing it.

A worker sends a fresh nonce, and the device answers with a proof over it and over what the device claims to be. Keys
and proof are those of SCRAM-SHA-256 (RFC 5802, section 3; RFC 7677). A token is 256 random bits, so it is not salted or
iterated as a password would be. What the database keeps, ``stored_key``, checks proofs and cannot make them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass

from tuner.errors import InvalidInput

PREFIX = "swd"
"""Lets people, and scanners for leaked secrets, see what they have before them."""
NONCE_BYTES = 32
PURPOSE = "shapewright device joins, 1"
LONGEST = 200
"""Characters of a token, and more than any has."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a device says that it is. ``server`` names the process that serves it, ``target`` is a fingerprint."""

    id: str
    key: str
    server: str
    target: str

    def message(self, nonce: str) -> bytes:
        """What a proof is made over."""
        return json.dumps([PURPOSE, nonce, *asdict(self).values()]).encode()


@dataclass(frozen=True, slots=True)
class Credential:
    """What a device keeps of its token."""

    token_id: str
    client_key: bytes

    def prove(self, claim: Claim, nonce: str) -> str:
        """The proof, as hexadecimal digits."""
        signature = _sign(_stored_key(self.client_key), claim.message(nonce))
        return _xor(self.client_key, signature).hex()


def new_token() -> tuple[str, str]:
    """A fresh token's id, which is no secret, and its text."""
    number = secrets.token_hex(6)
    return f"dt-{number}", f"{PREFIX}_{number}_{secrets.token_urlsafe(32)}"


def new_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def credential_of(token: str) -> Credential:
    """Raises InvalidInput, which does not show the token."""
    prefix, _, rest = token.partition("_")
    number, _, secret = rest.partition("_")
    if prefix != PREFIX or not number.isalnum() or not secret or len(token) > LONGEST or not token.isascii():
        remedy = "one as `shapewright device-tokens create KEY` prints it"
        raise InvalidInput("token", "it is not a join token of a device", remedy)
    return Credential(f"dt-{number}", hmac.digest(token.encode(), b"Client Key", "sha256"))


def stored_key_of(token: str) -> str:
    """What the database keeps of a token, as hexadecimal digits."""
    return _stored_key(credential_of(token).client_key).hex()


def is_proof(stored_key: str, claim: Claim, nonce: str, proof: str) -> bool:
    """Whether whoever made the proof has the token, and meant this claim and this nonce."""
    key = bytes.fromhex(stored_key)
    signature = _sign(key, claim.message(nonce))
    try:
        given = bytes.fromhex(proof)
    except ValueError:
        return False
    return len(given) == len(signature) and hmac.compare_digest(_stored_key(_xor(given, signature)), key)


def _stored_key(client_key: bytes) -> bytes:
    return hashlib.sha256(client_key).digest()


def _sign(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(first: bytes, second: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(first, second, strict=True))
