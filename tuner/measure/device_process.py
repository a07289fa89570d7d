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
import select
import signal
import socket
import struct
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

from tuner.errors import MAX_SHOWN
from tuner.measure import bench
from tuner.measure.addresses import Address, parse_address
from tuner.measure.child import announce, orphaned
from tuner.measure.processes import ONE_THREAD, set_on_signals
from tuner.measure.rpc_names import own_key
from tuner.measure.sockets import connections
from tuner.program.target import MAX_CORES, native
from tuner.program.workload import JsonObject

log = logging.getLogger(__name__)

SILENT_S = 3
"""How long a new connection may take to say what it wants."""
FOREVER = struct.pack("ll", 0, 0)
LOOK_S = 0.2
"""How often the process looks whether it is still wanted."""
RESTART_S = 0.5
PORTS = 100
PR_SET_PDEATHSIG = 1
KILLED = f"error code -{int(signal.SIGKILL)}"
"""What TVM's server says of a session that was killed: by the kernel, when memory ran out."""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a device is served. Port 0: the first free one from 9091. ``parent``: the process to end with.

    ``cores``: those that it measures on, where others of the machine are for other devices; none: all that this process
    may use.
    """

    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    tracker: Address | None = None
    device_id: str = ""
    address: str | None = None
    parent: int | None = None
    cores: tuple[int, ...] = ()


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
        "id": _id_of(options),
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
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    home = Path.cwd()
    server = uuid.uuid4().hex
    sessions = Sessions()
    bench.register(lambda: describe(options, server, sessions))
    os.register_at_fork(after_in_child=lambda: _end_with_its_peers(options.tracker))
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
    state = PopenRPCServerState(
        options.host,
        first,
        first + (1 if options.port else PORTS),
        tracker_addr=options.tracker,
        key=own_key(options.key, _id_of(options)) if options.tracker else options.key,
        custom_addr=options.address,
        silent=True,
        # Else two devices of one machine could come by the same port.
        reuse_addr=options.port != 0,
    )
    # Connections inherit it: one that does not say what it wants is dropped, and keeps nobody else away.
    state.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENT_S, 0))
    return state


def _id_of(options: DeviceOptions) -> str:
    return options.device_id or f"{socket.gethostname()}:{options.key or 'local'}"


def _listen_again(options: DeviceOptions, should_stop: Callable[[], bool]) -> PopenRPCServerState:
    while True:
        try:
            return _listen(options)
        except (OSError, ValueError) as error:
            if should_stop():
                raise
            log.warning("port %d is not free yet: %s", options.port, error)
            time.sleep(RESTART_S)


def _end_with_its_peers(tracker: Address | None) -> None:
    """Runs in the process of a session: a candidate that hangs must outlive neither the server nor the client."""
    # SIGSEGV: TVM would print its own stack for every candidate that crashes.
    for number in (signal.SIGTERM, signal.SIGSEGV):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for connection in connections():
        if tracker is None or connection.getpeername()[1] != tracker[1]:
            # Between two requests a client may be silent for as long as it likes.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, FOREVER)
            threading.Thread(target=_end_with_client, args=(connection,), name="client", daemon=True).start()


def _end_with_client(connection: socket.socket) -> None:
    """End this process when its client hangs up, whatever it is computing: nobody wants the answer."""
    closed = select.poll()
    closed.register(connection, select.POLLRDHUP)
    closed.poll()
    os._exit(0)


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
    parser.add_argument("--cores", type=parse_cores, default=(), help="the cores to measure on, as in 0,2-3")
    return DeviceOptions(**vars(parser.parse_args(argv)))


def parse_cores(text: str) -> tuple[int, ...]:
    """``0,2-3`` as numbers of cores. Raises ValueError where it is none, or this process may not use one of them."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
            raise ValueError(f"{part[:MAX_SHOWN]!r} is neither a core nor a range of cores")
        if int(last or first) >= MAX_CORES:
            raise ValueError(f"there is no core {int(last or first)}")
        numbers |= set(range(int(first), int(last or first) + 1))
    if missing := sorted(numbers - os.sched_getaffinity(0)):
        raise ValueError(f"there is no core {missing[0]} for this process")
    return tuple(sorted(numbers))


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
