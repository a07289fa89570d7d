"""Opening RPC sessions with deadlines, on a server or through a tracker. TVM's own client waits for ever."""

from __future__ import annotations

import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tvm import rpc
from tvm.rpc import RPCSession
from tvm.rpc.base import RPC_TRACKER_MAGIC, TrackerCode, recvall, recvjson, sendjson

from tuner.errors import ShapewrightError
from tuner.measure._base import DeviceBusy, DeviceLost, Interrupted, never
from tuner.measure.network.addresses import Address, address_text
from tuner.measure.network.sockets import connections

T = TypeVar("T")
RETRY_S = 0.05
ASK_EVERY_S = 0.25
"""How often a call that can be interrupted checks whether it is."""
HANDSHAKE_S = 10.0


PROTOCOL_ERRORS = (RuntimeError, AttributeError, ValueError, LookupError, TypeError)
"""Errors that a request to a server raises that is none of ours, or of another version."""


class OutOfTime(ShapewrightError):
    """A call did not come back within its deadline; it has been left behind."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A session, and the address of its device's server."""

    rpc: RPCSession
    address: Address

    def call(self, function: str, *args: Any) -> Any:
        """What the device's ``function`` answers. Call it ``within`` a deadline: looking it up is a request, too."""
        return self.rpc.get_function(function)(*args)

    def hang_up(self) -> None:
        """Shut the connection down, whatever the session is doing: TVM's client waits for an answer before it says
        anything else. The process of the session notices, and ends."""
        peers = _resolved(self.address)
        for connection in connections():
            with connection, suppress(OSError):  # closed meanwhile
                if connection.getpeername()[:2] in peers:
                    connection.shutdown(socket.SHUT_RDWR)


def _resolved(address: Address) -> set[tuple[str, int]]:
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    return {(str(name), int(port)) for *_, (name, port, *_) in found}


def within(seconds: float, call: Callable[[], T], interrupted: Callable[[], bool] = never) -> T:
    """``call()`` in a thread of its own, for calls that wait in native code with no deadline.

    Raises OutOfTime, and Interrupted.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # raised again below, in the thread that asked
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        left_s = deadline - time.monotonic()
        try:
            value, error = outcome.get(timeout=max(0.0, left_s if interrupted is never else min(left_s, ASK_EVERY_S)))
            break
        except queue.Empty:
            if interrupted():
                raise Interrupted("the answer is no longer wanted") from None
            if left_s <= 0:
                raise OutOfTime(f"no answer within {seconds:g} s") from None
    if error is None:
        return value  # type: ignore[return-value]
    try:
        raise error
    finally:
        # Else the error and this frame keep each other alive, and with them the callers' frames and their sessions: a
        # device stays taken until a garbage collection.
        del error


def connect_server(
    host: str,
    port: int,
    key: str,
    session_timeout_s: float,
    wait_s: float,
    interrupted: Callable[[], bool] = never,
) -> RPCSession | None:
    """A session on the server itself; None if it could not be had within ``wait_s``. A server that lost a session to
    a crash is away for a moment, so a refusal is tried again. Raises Interrupted."""
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            limit_s = min(left, HANDSHAKE_S)
            return within(limit_s, lambda: rpc.connect(host, port, key, session_timeout=session_timeout_s), interrupted)
        except (RuntimeError, OutOfTime):
            if interrupted():
                raise Interrupted("the device is no longer wanted") from None
            time.sleep(RETRY_S)
    return None


class Tracker:
    """A client of TVM's RPC tracker, each request on a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return f"tracker {address_text((self.host, self.port))}"

    def servers(self) -> list[tuple[str, tuple[str, int]]]:
        """(key, address) of every device that is registered now, busy ones included. Raises DeviceLost."""
        try:
            with self._open(HANDSHAKE_S) as sock:
                code, summary = _ask(sock, [TrackerCode.SUMMARY])
        except (OSError, ValueError, struct.error) as error:
            raise DeviceLost(f"{self} does not answer: {error}") from error
        if code != TrackerCode.SUCCESS:
            raise DeviceLost(f"{self} refused to list its devices")
        return [(info["key"].removeprefix("server:"), _address(info["addr"])) for info in summary["server_info"]]

    def free(self, key: str) -> int:
        """How many devices of ``key`` wait for work. Raises DeviceLost."""
        try:
            with self._open(HANDSHAKE_S) as sock:
                _, summary = _ask(sock, [TrackerCode.SUMMARY])
        except (OSError, ValueError, struct.error) as error:
            raise DeviceLost(f"{self} does not answer: {error}") from error
        return int(summary["queue_info"].get(key, {"free": 0})["free"])

    def request(
        self, key: str, session_timeout_s: float, wait_s: float, interrupted: Callable[[], bool] = never
    ) -> Connected:
        """A session on a device of ``key``, waiting up to ``wait_s`` for one to be free.

        Whoever is interrupted leaves the tracker's queue. Raises DeviceLost, Interrupted.
        """
        deadline = time.monotonic() + wait_s
        problem, is_away = "no time was given", True
        while (left := deadline - time.monotonic()) > 0:
            if interrupted():
                raise Interrupted("the device is no longer wanted")
            try:
                host, port, match = self._match(key, left, interrupted)
            except TimeoutError:
                raise DeviceBusy(f"no device {key!r} from {self} within {wait_s:g} s: no device was free") from None
            except (OSError, ValueError, struct.error) as error:
                problem, is_away = str(error), True
                time.sleep(min(left, 0.5))
                continue
            session = connect_server(host, port, match, session_timeout_s, min(left, 2.0), interrupted)
            if session is not None:
                return Connected(session, (host, port))
            problem, is_away = f"the device at {address_text((host, port))} does not answer", False
        kind = DeviceBusy if is_away else DeviceLost
        raise kind(f"no device {key!r} from {self} within {wait_s:g} s: {problem}")

    def _match(self, key: str, wait_s: float, interrupted: Callable[[], bool]) -> tuple[str, int, str]:
        """Where a free device is and the word that it wants to hear. Raises Interrupted, TimeoutError."""
        with self._open(wait_s) as sock:
            sendjson(sock, [TrackerCode.REQUEST, key, "", 1])
            _await_answer(sock, wait_s, interrupted)
            code, result = recvjson(sock)
        if code != TrackerCode.SUCCESS:
            raise ValueError(f"it answered {result!r}")
        host, port, match = result
        return str(host), int(port), str(match)

    def _open(self, timeout_s: float) -> socket.socket:
        sock = socket.create_connection((self.host, self.port), timeout=min(timeout_s, HANDSHAKE_S))
        try:
            sock.sendall(struct.pack("<i", RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", recvall(sock, 4))
            if magic != RPC_TRACKER_MAGIC:
                raise ValueError("it is not an RPC tracker")
            sock.settimeout(timeout_s)
        except BaseException:
            sock.close()
            raise
        return sock


def _await_answer(sock: socket.socket, wait_s: float, interrupted: Callable[[], bool]) -> None:
    """Wait until there is something to read. Raises Interrupted, TimeoutError."""
    deadline = time.monotonic() + wait_s
    answered = select.poll()
    answered.register(sock, select.POLLIN)
    while not answered.poll(1000 * ASK_EVERY_S):
        if interrupted():
            raise Interrupted("the device is no longer wanted")
        if time.monotonic() > deadline:
            raise TimeoutError


def _ask(sock: socket.socket, request: list[object]) -> tuple[int, Any]:
    sendjson(sock, request)
    code, value = recvjson(sock)
    return int(code), value


def _address(pair: list[Any]) -> tuple[str, int]:
    return str(pair[0]), int(pair[1])
