"""The RPC tracker: TVM's, in a process of its own. Devices register with it under a key, workers request them by it.

Nothing is authenticated: it belongs on this machine or in a private network.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.measure.child import Child, announce, orphaned
from tuner.measure.processes import RUNTIME_ONLY, set_on_signals

if TYPE_CHECKING:
    from tvm.rpc.tracker import PopenTrackerServerState

MODULE = f"{__package__}.tracker"
FIRST_PORT = 9190
PORTS = 2000
REBIND_S = 10.0
POLL_S = 0.3


def start_tracker(port: int = 0, host: str = "127.0.0.1", data_dir: Path | None = None) -> Child:
    """Start a tracker in a child process and wait until it listens; its ``port`` says where.

    ``port`` 0 takes a free one. The child ends with ``stop``, or when this process is gone. Raises ChildFailed.
    """
    return Child(MODULE, ["--host", host, "--port", str(port)], data_dir=data_dir)


def main(argv: list[str] | None = None) -> None:
    options = parse_options(argv)
    serve_until_stopped(options.host, options.port, announce, options.parent)


def serve_until_stopped(host: str, port: int, on_ready: Callable[[int], object], parent: int | None = None) -> None:
    """Serve until a signal, or until the parent is no longer the one given; ``on_ready`` is called with the port. Ends
    this process, which must not have loaded TVM: a tracker has no use for the compiler.

    Raises ValueError if the port is taken.
    """
    stop = threading.Event()
    set_on_signals(stop)
    os.environ.update(RUNTIME_ONLY)
    state = _listen(host, port)
    on_ready(state.port)
    while not (stop.wait(POLL_S) or orphaned(parent)):
        if not state.thread.is_alive():
            sys.exit("the tracker's thread has ended")
    # Its thread waits for connections and cannot be stopped.
    os._exit(0)


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=MODULE, description="Assign devices to workers.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    parser.add_argument("--parent", type=int, default=None, help="end when this process is no longer the parent")
    return parser.parse_args(argv)


def _listen(host: str, port: int) -> PopenTrackerServerState:
    """Listen on ``port``, or on a free one if it is 0. Raises ValueError if the port stays taken for REBIND_S."""
    from tvm.rpc.tracker import PopenTrackerServerState  # noqa: PLC0415 - once it is known how much of TVM is wanted

    if port == 0:
        # Each process starts at another port, so that trackers that start and stop at the same time do not take each
        # other's. Not an ephemeral port: a device that reconnects to a tracker that has ended could be given that very
        # port for its own end of the connection, be connected to itself, and keep the tracker from restarting.
        first = FIRST_PORT + os.getpid() % PORTS
        return PopenTrackerServerState(host, first, first + PORTS, silent=True, reuse_addr=False)
    until = time.monotonic() + REBIND_S
    while True:
        try:
            return PopenTrackerServerState(host, port, port + 1, silent=True, reuse_addr=True)
        except ValueError:
            # The connections of a killed tracker hold its port until its devices have noticed.
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)


if __name__ == "__main__":
    main()
