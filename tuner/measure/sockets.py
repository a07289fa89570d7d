"""The TCP connections of this process, whoever opened them: TVM's own are known to its native code alone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

TCP = (socket.AF_INET, socket.AF_INET6)
RECONNECT_S = 1.0
Connect = Callable[..., socket.socket]


def unhurried(connect: Connect) -> Connect:
    """``connect``, but at least RECONNECT_S apart in one thread: TVM's server connects again at once, for as long as
    whoever listens there accepts and hangs up, as a tunnel does whose other end is away."""
    own = threading.local()

    def connect_later(*args: object) -> socket.socket:
        time.sleep(max(0.0, getattr(own, "next", 0.0) - time.monotonic()))
        own.next = time.monotonic() + RECONNECT_S
        return connect(*args)

    return connect_later


def connections() -> list[socket.socket]:
    """A duplicate of each that is connected; the caller closes them."""
    result = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # closed meanwhile
            if str(entry.readlink()).startswith("socket:"):
                result.append(socket.socket(fileno=os.dup(int(entry.name))))
    connected = [sock for sock in result if _is_connection(sock)]
    for sock in result:
        if sock not in connected:
            sock.close()
    return connected


def _is_connection(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return sock.family in TCP and sock.type == socket.SOCK_STREAM
