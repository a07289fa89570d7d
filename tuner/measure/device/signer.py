"""Keeping a device's join token from the candidates that it runs.

A session is a fork of the device's server: whatever the server has in its memory, a candidate can read. So the token is
kept by a process of its own, the *signer*, which is started before the device starts itself again with a clean
environment. It is told once what the device claims to be, and from then on proves that for nonces, and nothing else. A
session asks it when a worker wants a proof, and drops the way to it before it loads a first candidate.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import NoReturn

from tuner.device_auth import NONCE_BYTES, Claim, Credential, credential_of
from tuner.errors import InvalidInput
from tuner.measure.sandbox.confinement import SIGNER, set_undumpable
from tuner.program.language.workload import JsonObject

TOKEN = "SHAPEWRIGHT_DEVICE_TOKEN"
"""The variable of the environment that may hold the token."""
ANSWER_S = 5.0
MAX_MESSAGE = 16384


class Signer:
    """The way to the signer, or to none: a device without a token proves nothing, and says so."""

    def __init__(self, way: socket.socket | None = None) -> None:
        self._way = way
        self._claim: Claim | None = None

    @staticmethod
    def inherited() -> Signer:
        """The one that this process was started with, if any. Raises InvalidInput."""
        number = os.environ.get(SIGNER)
        if number is None:
            return Signer()
        try:
            way = socket.socket(fileno=int(number))
        except (OSError, ValueError):
            raise InvalidInput(SIGNER, f"{number[:20]!r} is no socket", "leave it out: a device sets it") from None
        way.settimeout(ANSWER_S)
        return Signer(way)

    def claim(self, claim: Claim) -> None:
        """Tell what the device is, before any session: it cannot be told again."""
        self._claim = claim
        if self._way is not None:
            self._way.send(json.dumps(asdict(claim)).encode())

    def answer(self, nonce: str) -> JsonObject:
        """``{"claim"}``, and ``token``, its id, and ``proof``, if there is a token and the way to it is open.

        Raises OSError.
        """
        told: JsonObject = {"claim": None if self._claim is None else asdict(self._claim)}
        if self._way is None:
            return told
        self._way.send(json.dumps({"nonce": nonce}).encode())
        while True:
            # A session that was killed may have left its own answer.
            proved: JsonObject = json.loads(self._way.recv(MAX_MESSAGE))
            if proved.pop("nonce") == nonce:
                return told | proved

    def close(self) -> None:
        """Close the way to the signer, in a session before it loads anything: what comes then proves nothing."""
        if self._way is not None:
            self._way.close()
            self._way = None


def with_signer(environment: Mapping[str, str], token: str | None) -> dict[str, str]:
    """The environment for the device to start itself again with: where it has a token, with a signer.

    Raises InvalidInput on field ``token``.
    """
    if token is None or SIGNER in os.environ:
        return dict(environment)
    return {**environment, SIGNER: str(_start(credential_of(token)))}


def _start(credential: Credential) -> int:
    """Start the signer; the descriptor of the way to it, which outlives ``exec``."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    if os.fork() == 0:
        ours.close()
        _sign_until_closed(its, credential)
    its.close()
    ours.set_inheritable(True)
    return ours.detach()


def _sign_until_closed(way: socket.socket, credential: Credential) -> NoReturn:
    """Sign until nobody has the other end: the device and all its sessions have ended."""
    try:
        # Of the same user, too, nobody reads its memory, nor the environment that the token may have been in.
        set_undumpable()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            # Whoever reads what the device prints waits for the end of it.
            os.dup2(nowhere, stream)
        claim: Claim | None = None
        while message := way.recv(MAX_MESSAGE):
            try:
                asked = json.loads(message)
            except ValueError:
                # Cut short, or no nonce of ours: the sender gets no answer.
                continue
            if claim is None:
                claim = Claim(**asked)
            elif len(nonce := str(asked["nonce"])) == 2 * NONCE_BYTES:
                proof = credential.prove(claim, nonce)
                way.send(json.dumps({"nonce": nonce, "token": credential.token_id, "proof": proof}).encode())
    finally:
        os._exit(0)
