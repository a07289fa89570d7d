"""The process behind a device: TVM's RPC server with Shapewright's own functions, each session in a child process.

``python -m tuner.measure.device.process`` prints one line of JSON, ``{"port": ...}``, when it is ready. Anyone who can
reach the port can run code here: private networks only.
"""

from __future__ import annotations

import logging
import os
import platform
import select
import signal
import socket
import struct
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import numpy.ma
import numpy.random  # noqa: F401 - sessions may be unable to read these, as another user
import psutil  # noqa: F401 - as above
from tvm.rpc import base
from tvm.rpc import server as rpc_server

from tuner.device_auth import Claim
from tuner.errors import GpuFailed, InvalidInput
from tuner.measure.child import announce, orphaned
from tuner.measure.device import functions
from tuner.measure.device.cpu import CpuPlace
from tuner.measure.device.options import HERE, DeviceOptions, parse_options, placed
from tuner.measure.device.place import Place
from tuner.measure.device.session_folder import FolderWatch
from tuner.measure.device.signer import TOKEN, Signer, with_signer
from tuner.measure.gpu.facts import GpuFacts, hold_gpu
from tuner.measure.gpu.facts import ask as facts_of_gpu
from tuner.measure.gpu.place import GpuPlace
from tuner.measure.network.addresses import Address, address_text, is_loopback
from tuner.measure.network.sockets import connections, listen, unhurried
from tuner.measure.processes import device_environment, set_on_signals
from tuner.measure.rpc_names import device_key
from tuner.measure.sandbox.confinement import NOT_CONFINED, check, clean_environment, confine, keep_sockets
from tuner.program.job.cache import CACHES
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.program.target import Target, native

log = logging.getLogger(__name__)

SILENT_S = 3
"""How long a new connection may take to send its request."""
FOREVER = struct.pack("ll", 0, 0)
LOOK_S = 0.2
"""How often the process looks whether it is still wanted."""
FIRST_PORT, PORTS = 9091, 100
KILLED = f"error code -{int(signal.SIGKILL)}"
"""The text by which TVM's server tells of a session that was killed: by the kernel, when memory ran out."""


Ready = Callable[[DeviceOptions, int], None]
"""Called once a device listens, with its options, all filled in, and its port."""


@dataclass(slots=True)
class Sessions:
    """How many sessions of this process were killed, but by itself. A session knows of those before it.

    ``asked``: processes of sessions that this one has ended, because their folders were full.
    """

    killed: int = 0
    asked: set[int] = field(default_factory=set)

    def ended(self, args: threading.ExceptHookArgs) -> None:
        """TVM's server thread ends with an exception when a session's process crashed or was timed out."""
        log.warning("a session ended: %s", args.exc_value)
        text = str(args.exc_value)
        self.killed += KILLED in text and not any(f"process {pid} " in text for pid in self.asked)


def describe(options: DeviceOptions, server: str, gpu: GpuFacts | None = None) -> JsonObject:
    """What a device says of itself: its id and key, its target, the machine and its software, and in which states of
    the caches it can time calls. ``server`` names this very process: it changes when the device is restarted. ``gpu``:
    the one that it measures on."""
    return {
        "id": _id_of(options),
        "key": options.key,
        "server": server,
        "target": (gpu.target if gpu else native()).to_json(),
        "description": {
            "host": socket.gethostname(),
            "cpu": _cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "tvm": version("apache-tvm"),
            **(gpu.description() if gpu else {}),
        },
        "caches": list(CACHES),
    }


def serve(options: DeviceOptions, ready: Ready, should_stop: Callable[[], bool]) -> None:
    """Serve sessions, one after another, until ``should_stop``. TVM's server gives up when a session's process
    crashes, so it is started again on the same socket: whoever gives its port up may find it taken. Raises
    InvalidInput, and OSError where it cannot listen."""
    # Sessions may be unable to read it. Not with the module: it changes the environment that ``main`` looks at.
    import threadpoolctl  # noqa: F401, PLC0415

    options = placed(options)
    gpu = None if options.gpu is None else _held_gpu(options.gpu)
    if options.cores:
        os.sched_setaffinity(0, options.cores)
    if problem := check(options.limits):
        log.warning("%s", problem)
    home = Path.cwd()
    server = uuid.uuid4().hex
    sessions = Sessions()
    # Told before there are sessions: they may be unable to read what it is read from.
    about = describe(options, server, gpu)
    signer = Signer.inherited()
    signer.claim(Claim(about["id"], about["key"], server, Target.from_json(about["target"]).fingerprint))
    functions.register(lambda: {**about, "killed": sessions.killed}, signer, _place_of(gpu))
    os.register_at_fork(after_in_child=lambda: _begin_session(options))
    threading.excepthook = sessions.ended
    base.connect_with_retry = unhurried(base.connect_with_retry)
    rpc_server.logger.setLevel(logging.ERROR)
    with _listen(options) as listener:
        port = listener.getsockname()[1]
        thread = _serve_on(listener, port, options)
        watch = FolderWatch(home, sessions.asked)
        _say_where(options, port)
        ready(options, port)
        while not should_stop():
            thread.join(LOOK_S)
            with _logged("looking at the folder of a session"):
                watch.look(thread)
            if not thread.is_alive():
                with _logged("leaving the folder of a session"):
                    watch.clear()
                thread = _serve_on(listener, port, options)


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """A device outlives whatever candidates leave behind."""
    try:
        yield
    except Exception:
        log.exception("%s failed", what)


def serve_until_stopped(options: DeviceOptions, ready: Ready) -> NoReturn:
    """Serve a device until SIGTERM or SIGINT, or until the parent is gone; ends this process.

    ``ready`` is called once the device listens. NumPy must have been loaded in ``device_environment``.
    """
    stop = threading.Event()
    set_on_signals(stop)
    serve(options, ready, lambda: stop.is_set() or orphaned(options.parent))
    sys.stdout.flush()
    # The server's thread waits for a connection that will not come.
    os._exit(0)


def _listen(options: DeviceOptions) -> socket.socket:
    first, ports = (options.port, 1) if options.port else (FIRST_PORT, PORTS)
    listener = listen(HERE if options.host is None else options.host, range(first, first + ports))
    # Connections inherit it: one that does not say what it wants is dropped, and keeps nobody else away.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SILENT_S, 0))
    return listener


def _serve_on(listener: socket.socket, port: int, options: DeviceOptions) -> threading.Thread:
    """TVM's server, in a thread of its own: it registers with the tracker, and ends with the first session that
    crashes."""
    key = device_key(options.key, _id_of(options)) if options.tracker else options.key
    arguments = (listener, port, key, options.tracker, None, options.address)
    # TVM's own way to it binds a socket of its own.
    thread = threading.Thread(target=rpc_server._listen_loop, args=arguments, name="server", daemon=True)
    thread.start()
    return thread


def _say_where(options: DeviceOptions, port: int) -> None:
    known = "no tracker"
    if options.tracker is not None:
        known = f"tracker {address_text(options.tracker)} as {address_text((str(options.address), port))}"
    log.info("device %s listens at %s:%d, known to %s", _id_of(options), options.host, port, known)
    if not is_loopback(options.host or HERE):
        log.warning("whoever reaches %s:%d can run code here: private networks only", options.host, port)


def _id_of(options: DeviceOptions) -> str:
    which = "" if options.gpu is None else f":gpu{options.gpu}"
    return options.device_id or f"{socket.gethostname()}:{options.key or 'local'}{which}"


def _held_gpu(number: int) -> GpuFacts:
    """A GPU that no other device of this machine measures on, from now on. Raises InvalidInput."""
    try:
        facts = facts_of_gpu(number)
        log.info("GPU %d is %s: %s", number, facts.target.fingerprint, facts.description())
        hold_gpu(facts)
    except GpuFailed as error:
        raise InvalidInput("--gpu", str(error), "leave it out to serve this CPU") from None
    return facts


def _place_of(gpu: GpuFacts | None) -> Callable[[SearchTask], Place]:
    """Where candidates run: made in the process of a session, which alone has a context of the GPU."""
    if gpu is None:
        return CpuPlace
    number, own = gpu.number, gpu.target.gpu
    assert own is not None
    return lambda task: GpuPlace(task, number, own)


def _begin_session(options: DeviceOptions) -> None:
    """Runs in the process of a session, before anything else, and ends it where that fails: Python would print the
    error and go on, unbound."""
    try:
        _bind_session(options)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(NOT_CONFINED)


def _bind_session(options: DeviceOptions) -> None:
    """A candidate has what it needs and no more; one that hangs outlives neither the server nor the client."""
    # SIGSEGV: TVM would print its own stack for every candidate that crashes.
    for number in (signal.SIGTERM, signal.SIGSEGV):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_sockets(lambda own: _is_client(own, options.tracker))
    clients = connections()
    # Before any thread: those that there were would not be bound.
    confine(options.limits)
    for connection in clients:
        # Between two requests a client may be silent for as long as it likes.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, FOREVER)
        threading.Thread(target=_end_with_client, args=(connection,), name="client", daemon=True).start()


def _is_client(own: socket.socket, tracker: Address | None) -> bool:
    """Whether it is a connection, and not the one to the tracker."""
    try:
        port = own.getpeername()[1]
    except OSError:  # it listens
        return False
    return tracker is None or port != tracker[1]


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


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s device %(levelname)s %(message)s", stream=sys.stderr)
    argv = sys.argv[1:] if argv is None else argv
    options = parse_options(argv)
    environment = with_signer(clean_environment(device_environment(options.gpu)), os.environ.get(TOKEN))
    if os.environ != environment:
        # NumPy and TVM read these when they are first imported, which has happened by now.
        again = [sys.executable, "-m", f"{__package__}.process", *argv]
        os.execve(sys.executable, again, environment)
    serve_until_stopped(options, lambda _, port: announce(port))


if __name__ == "__main__":
    main()
