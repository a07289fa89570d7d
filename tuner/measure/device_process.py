"""The process behind a device: TVM's RPC server with Shapewright's own functions, each session in a child process.

``python -m tuner.measure.device_process`` prints one line of JSON, ``{"port": ...}``, when it is ready. Anyone who can
reach the port can run code here: private networks only.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from tvm.rpc.server import PopenRPCServerState

from tuner.measure import bench
from tuner.measure.addresses import Address, parse_address
from tuner.measure.child import announce, orphaned
from tuner.measure.processes import ONE_THREAD, set_on_signals
from tuner.program.target import native
from tuner.program.workload import JsonObject

log = logging.getLogger(__name__)

LOOK_S = 0.2
"""How often the process looks whether it is still wanted."""
RESTART_S = 0.5
PORTS = 100
PR_SET_PDEATHSIG = 1
KILLED = f"error code -{int(signal.SIGKILL)}"
"""What TVM's server says of a session that was killed: by the kernel, when memory ran out."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a device is served. Port 0: the first free one from 9091. ``parent``: the process to end with."""

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    tracker: Address | None = None
    device_id: str = ""
    address: str | None = None
    parent: int | None = None


@dataclass(slots=True)
class Sessions:
    """How many sessions of this process were killed. A session knows of those before it."""

    killed: int = 0

    def ended(self, args: threading.ExceptHookArgs) -> None:
        """TVM's server thread ends with an exception when a session's process crashed or was timed out."""
        log.warning("a session ended: %s", args.exc_value)
        self.killed += KILLED in str(args.exc_value)


def describe(options: DeviceOptions, server: str, sessions: Sessions) -> JsonObject:
    """What a device says of itself: its id and key, its target, the machine and its software. ``server`` names this
    very process: it changes when the device is restarted. ``killed`` counts the sessions that were."""
    return {
        "id": options.device_id or f"{socket.gethostname()}:{options.key or 'local'}",
        "key": options.key,
        "server": server,
        "killed": sessions.killed,
        "target": native().to_json(),
        "description": {
            "host": socket.gethostname(),
            "cpu": _cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "tvm": version("apache-tvm"),
        },
    }


def serve(options: DeviceOptions, ready: Callable[[int], None], should_stop: Callable[[], bool]) -> None:
    """Serve sessions, one after another, until ``should_stop``. TVM's server gives up when a session's process
    crashes, so it is started again on the same port."""
    home = Path.cwd()
    server = uuid.uuid4().hex
    sessions = Sessions()
    bench.register(lambda: describe(options, server, sessions))
    os.register_at_fork(after_in_child=_end_with_server)
    threading.excepthook = sessions.ended
    state = _listen(options)
    ready(state.port)
    while not should_stop():
        state.thread.join(LOOK_S)
        if not state.thread.is_alive():
            state.sock.close()
            # A session works in a directory of its own, which is gone now.
            os.chdir(home)
            state = _listen_again(replace(options, port=state.port), should_stop)


def serve_until_stopped(options: DeviceOptions, ready: Callable[[int], None]) -> NoReturn:
    """As ``serve``, until SIGTERM or SIGINT, or until the parent is gone; ends this process.

    ``ready`` is called with the port once the device listens. NumPy must have been loaded for ONE_THREAD.
    """
    stop = threading.Event()
    set_on_signals(stop)
    serve(options, ready, lambda: stop.is_set() or orphaned(options.parent))
    sys.stdout.flush()
    # The server's thread waits for a connection that will not come.
    os._exit(0)


def _listen(options: DeviceOptions) -> PopenRPCServerState:
    first = options.port or 9091
    return PopenRPCServerState(
        options.host,
        first,
        first + (1 if options.port else PORTS),
        tracker_addr=options.tracker,
        key=options.key,
        custom_addr=options.address,
        silent=True,
        # Else two devices of one machine could come by the same port.
        reuse_addr=options.port != 0,
    )


def _listen_again(options: DeviceOptions, should_stop: Callable[[], bool]) -> PopenRPCServerState:
    while True:
        try:
            return _listen(options)
        except (OSError, ValueError) as error:
            if should_stop():
                raise
            log.warning("port %d is not free yet: %s", options.port, error)
            time.sleep(RESTART_S)


def _end_with_server() -> None:
    """Runs in the process of a session: a candidate that hangs must not outlive the server."""
    # SIGSEGV: TVM would print its own stack for every candidate that crashes.
    for number in (signal.SIGTERM, signal.SIGSEGV):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def parse_options(argv: list[str]) -> DeviceOptions:
    parser = argparse.ArgumentParser(prog="device_process", description="Serve this machine as a device.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="the port; 0 takes a free one")
    parser.add_argument("--key", default="", help="the key that jobs name this device by")
    parser.add_argument("--tracker", type=parse_address, default=None, metavar="HOST:PORT")
    parser.add_argument("--id", default="", dest="device_id", help="names this device; the same after a restart")
    parser.add_argument("--address", default=None, help="the address that others reach this machine by")
    parser.add_argument("--parent", type=int, default=None, help="end when this process is no longer the parent")
    return DeviceOptions(**vars(parser.parse_args(argv)))


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s device %(levelname)s %(message)s", stream=sys.stderr)
    argv = sys.argv[1:] if argv is None else argv
    options = parse_options(argv)
    if not ONE_THREAD.items() <= os.environ.items():
        # NumPy reads these when it is first imported, which has happened by now.
        again = [sys.executable, "-m", "tuner.measure.device_process", *argv]
        os.execve(sys.executable, again, {**os.environ, **ONE_THREAD})
    serve_until_stopped(options, announce)


if __name__ == "__main__":
    main()
