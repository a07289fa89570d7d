"""Where a device listens."""

from __future__ import annotations

import socket

import pytest

from tuner.measure.network.sockets import listen


def test_a_listener_takes_the_first_free_port_or_names_those_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as bound:
        port = taken.getsockname()[1]
        with listen("127.0.0.1", range(port, port + 100)) as found:
            assert port < found.getsockname()[1] < port + 100
        with pytest.raises(OSError, match=f"port {port} is in use at 127.0.0.1"):
            listen("127.0.0.1", [port])
        bound.bind(("127.0.0.1", 0))
        both = [port, bound.getsockname()[1]]
        with pytest.raises(OSError, match="ports {} to {} are in use".format(*both)):
            listen("127.0.0.1", both)
