"""The TCP sockets of this process: where it listens, and its connections, whoever opened them: TVM's own are known to
its native code alone."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tvm.rpc import base

TCP = (socket.AF_INET, socket.AF_INET6)
RECONNECT_S = 1.0
BACKLOG = 1
"""A device has one session at a time."""
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


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """A socket that listens at the first of ``ports`` that is free. Raises OSError, which names them if all are
    taken."""
    family = base.get_addr_family((host, ports[0]))
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    for port in ports:
        try:
            # With SO_REUSEADDR: connections of a server that has ended do not keep its successor away.
            return socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    which = f"port {ports[0]} is" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]} are"
    raise OSError(errno.EADDRINUSE, f"{which} in use at {host}")


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
