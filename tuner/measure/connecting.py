"""Opening RPC sessions with deadlines, on a server or through a tracker. TVM's own client waits for ever."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tvm import rpc
from tvm.rpc import RPCSession
from tvm.rpc.base import RPC_TRACKER_MAGIC, TrackerCode, recvall, recvjson, sendjson

from tuner.errors import ShapewrightError
from tuner.measure._base import DeviceLost

T = TypeVar("T")
RETRY_S = 0.05
HANDSHAKE_S = 10.0


class OutOfTime(ShapewrightError):
    """A call did not come back within its deadline; it has been left behind."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """``call()`` in a thread of its own, for calls that wait in native code with no deadline. Raises OutOfTime."""
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # raised again below, in the thread that asked
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise OutOfTime(f"no answer within {seconds:g} s") from None
    if error is None:
        return value  # type: ignore[return-value]
    try:
        raise error
    finally:
        # Else the error and this frame keep each other alive, and with them the callers' frames and their sessions: a
        # device stays taken until a garbage collection.
        del error


def connect_server(host: str, port: int, key: str, session_timeout_s: float, wait_s: float) -> RPCSession | None:
    """A session on the server itself; None if it could not be had within ``wait_s``. A server that lost a session to
    a crash is away for a moment, so a refusal is tried again."""
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            return within(
                min(left, HANDSHAKE_S), lambda: rpc.connect(host, port, key, session_timeout=session_timeout_s)
            )
        except (RuntimeError, OutOfTime):
            time.sleep(RETRY_S)
    return None


class Tracker:
    """A client of TVM's RPC tracker, each request on a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def __str__(self) -> str:
        return f"tracker {self.host}:{self.port}"

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

    def request(self, key: str, session_timeout_s: float, wait_s: float) -> RPCSession:
        """A session on a device of ``key``, waiting up to ``wait_s`` for one to be free. Raises DeviceLost."""
        return self.request_at(key, session_timeout_s, wait_s)[0]

    def request_at(self, key: str, session_timeout_s: float, wait_s: float) -> tuple[RPCSession, tuple[str, int]]:
        """As ``request``, and the address of the device."""
        deadline = time.monotonic() + wait_s
        problem = "no time was given"
        while (left := deadline - time.monotonic()) > 0:
            try:
                host, port, match = self._match(key, left)
            except TimeoutError:
                problem = "no device was free"
                break
            except (OSError, ValueError, struct.error) as error:
                problem = str(error)
                time.sleep(min(left, 0.5))
                continue
            session = connect_server(host, port, match, session_timeout_s, min(left, 2.0))
            if session is not None:
                return session, (host, port)
            problem = f"the device at {host}:{port} does not answer"
        raise DeviceLost(f"no device {key!r} from {self} within {wait_s:g} s: {problem}")

    def _match(self, key: str, wait_s: float) -> tuple[str, int, str]:
        """Where a free device is and the word that it wants to hear."""
        with self._open(wait_s) as sock:
            code, result = _ask(sock, [TrackerCode.REQUEST, key, "", 1])
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


def _ask(sock: socket.socket, request: list[object]) -> tuple[int, Any]:
    sendjson(sock, request)
    code, value = recvjson(sock)
    return int(code), value


def _address(pair: list[Any]) -> tuple[str, int]:
    return str(pair[0]), int(pair[1])
