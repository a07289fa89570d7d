"""Which devices may join: those that prove a token, where one is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tuner.device_auth import Claim, is_proof, new_nonce
from tuner.errors import ShapewrightError
from tuner.measure import DeviceLost
from tuner.measure.network.connecting import PROTOCOL_ERRORS, Connected, OutOfTime, within
from tuner.measure.rpc_names import JOIN
from tuner.storage import DeviceToken, Joined, JoinKey, TokenState
from tuner.storage.sql import DeviceStorage

ANSWER_S = 10.0
REMEDY = "make one by `shapewright device-tokens create KEY`, and serve the device with --token-file"


class TokenRule(StrEnum):
    """Which devices need a token. AUTO: those of keys that one was ever made for, expired and revoked ones included."""

    AUTO = "auto"
    REQUIRED = "required"
    OFF = "off"


class NotAdmitted(ShapewrightError):
    """A device may not join; the message says why."""


class Admission:
    """Has devices prove their tokens, against the tokens that there were at the last ``refresh``.

    ``refresh`` is called by one thread, the rest by any.
    """

    def __init__(self, storage: DeviceStorage, rule: TokenRule = TokenRule.AUTO) -> None:
        self._storage, self._rule = storage, rule
        self._keys: Mapping[str, JoinKey] = {}
        self._closed: frozenset[str] = frozenset()
        self._joined: Mapping[str, Joined | None] = {}

    def refresh(self) -> None:
        """Read tokens, and who has joined by them. Raises StorageUnavailable."""
        if self._rule is TokenRule.OFF:
            return
        self._keys = {each.token.id: each for each in self._storage.join_keys()}
        self._closed = frozenset(each.token.key for each in self._keys.values() if each.token.required)
        self._joined = {device.id: device.joined for device in self._storage.list_devices()}

    def needs_token(self, key: str) -> bool:
        return self._rule is TokenRule.REQUIRED or (self._rule is TokenRule.AUTO and key in self._closed)

    def may_stay(self, key: str, joined: Joined | None) -> bool:
        """Whether a device that is known needs to prove nothing: its token may have expired since."""
        if not self.needs_token(key):
            return True
        known = None if joined is None else self._keys.get(joined.token_id)
        return known is not None and known.token.key == key and known.token.state is not TokenState.REVOKED

    def admit(self, connected: Connected, device_id: str, key: str, target: str) -> Joined | None:
        """How a device that opened a session has joined; None where it needs no token. ``target``: its fingerprint.

        Raises NotAdmitted, and DeviceLost where it does not answer.
        """
        if not self.needs_token(key):
            return None
        nonce = new_nonce()
        claim, token_id, proof = _told(_asked(connected, nonce))
        if (claim.id, claim.key, claim.target) != (device_id, key, target):
            raise NotAdmitted(f"it claims to be {claim.id!r} of key {claim.key!r}, or has changed its target")
        known = self._keys.get(token_id)
        if known is None:
            raise NotAdmitted(f"its token {token_id} is not known to this database; {REMEDY}")
        if not is_proof(known.stored_key, claim, nonce, proof):
            raise NotAdmitted(f"it cannot prove that it has the token {token_id}; {REMEDY}")
        joined = Joined(token_id, claim.server)
        _check(known.token, key, is_new=self._joined.get(device_id) != joined)
        return joined


def _check(token: DeviceToken, key: str, is_new: bool) -> None:
    """Raises NotAdmitted. ``is_new``: this process of the device has not joined by this token before."""
    if token.key != key:
        raise NotAdmitted(f"its token {token.id} is for devices of key {token.key!r}; {REMEDY}")
    if token.state is TokenState.REVOKED:
        raise NotAdmitted(f"its token {token.id} was revoked at {token.revoked_at}; {REMEDY}")
    if token.state is TokenState.EXPIRED and is_new:
        raise NotAdmitted(f"its token {token.id} has expired at {token.expires_at}; {REMEDY}")


def _asked(connected: Connected, nonce: str) -> Any:
    """Raises DeviceLost where there is no answer, NotAdmitted where it cannot be read or the device knows no tokens."""
    try:
        answer = within(ANSWER_S, lambda: connected.call(JOIN, nonce))
    except AttributeError:
        raise NotAdmitted("it knows no join tokens: bring it to the worker's version") from None
    except (*PROTOCOL_ERRORS, OutOfTime) as error:
        # Its session may have died, or its machine be busy: that says nothing of its token.
        raise DeviceLost(f"the device does not answer for its token: {str(error)[-200:]}") from error
    try:
        return json.loads(answer)
    except (ValueError, TypeError) as error:
        raise NotAdmitted(f"its answer about its token cannot be read: {str(error)[:200]}") from error


def _told(answer: Any) -> tuple[Claim, str, str]:
    """Claim, token's id and proof. Raises NotAdmitted."""
    try:
        claim = Claim(**{name: str(value) for name, value in answer["claim"].items()})
        if "token" not in answer:
            raise NotAdmitted(f"it brings no token; {REMEDY}")
        return claim, str(answer["token"])[:40], str(answer["proof"])
    except PROTOCOL_ERRORS as error:
        raise NotAdmitted(f"its answer about its token cannot be read: {str(error)[:200]}") from error
