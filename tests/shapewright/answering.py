"""A server that says to every request what a test has it say, however little that has to do with HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = bytes | Callable[[], Iterator[bytes]]


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """Its URL. It closes each connection after its answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_serve, args=(listening, answer), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10.0)


def _serve(listening: socket.socket, answer: Answer) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.settimeout(10.0)
            connection.recv(1 << 16)
            for piece in [answer] if isinstance(answer, bytes) else answer():
                connection.sendall(piece)
            # What is unread when a connection is closed takes the answer with it.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
