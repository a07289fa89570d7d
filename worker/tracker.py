"""The RPC tracker: TVM's, in a process of its own. Devices register with it under a key, workers ask it for one.

Nothing is authenticated: it belongs on this machine or in a private network.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from tvm.rpc.tracker import PopenTrackerServerState

from tuner.measure.child import Child

MODULE = "worker.tracker"
LOOK_S = 0.3


def start_tracker(port: int = 0, host: str = "127.0.0.1", data_dir: Path | None = None) -> Child:
    """Start a tracker in a child process and wait until it listens; its ``port`` says where.

    ``port`` 0 takes a free one. The child ends with ``stop``, or when this process is gone. Raises ChildFailed.
    """
    return Child(MODULE, ["--host", host, "--port", str(port)], data_dir=data_dir)


def main(argv: list[str] | None = None) -> None:
    """Serve until a signal, or until the parent is no longer the one given."""
    parser = argparse.ArgumentParser(prog="worker.tracker", description="Hand out devices.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    parser.add_argument("--parent", type=int, default=None, help="end when this process is no longer the parent")
    options = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    port = options.port or _free_port(options.host)
    state = PopenTrackerServerState(options.host, port, port + 1, silent=True, reuse_addr=options.port != 0)
    print(json.dumps({"port": state.port, "pid": os.getpid()}), flush=True)
    while not stop.wait(LOOK_S) and options.parent in (None, os.getppid()):
        if not state.thread.is_alive():
            sys.exit("the tracker's thread has ended")
    # Its thread waits for connections and knows no other end.
    os._exit(0)


def _free_port(host: str) -> int:
    """A port that nobody has, of those that the system hands out: another tracker's may be in use again soon."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
