"""`shapewright up`: database, API, worker, tracker and devices in one, and nothing left when it ends."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shapewright import defaults, extras
from shapewright.cli import options
from shapewright.cli.exclusive import exclusive
from shapewright.cli.logins import login_link
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, say
from shapewright.cli.supervise import Part, Supervisor, wait_until
from shapewright.cli.up_parts import DEVICE_KEY, HOST, Plan, api_part, device_parts, tracker_part, worker_part

if TYPE_CHECKING:
    from tuner.storage.sql import DeviceStorage, OperatorStorage, Storage

START_S = 90.0
"""Each part's time to start: Ray and the compiler need seconds, more on a busy machine."""
READY_ANSWER_S = 2.0
HTTP_OK = 200
LOOK_S = 0.25
"""How often the parts are checked."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop `up`. SIGHUP comes when its terminal is closed."""


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=defaults.DEFAULT_PORT, show_default=True)
@options.data_dir
@options.database_url
@click.option("--devices", type=click.IntRange(0, 64), default=1, show_default=True, help="Local devices to serve.")
@options.processes
@options.log_format
@as_json
def up(
    *,
    port: int,
    data_dir: Path | None,
    database_url: str | None,
    devices: int,
    processes: int,
    log_format: str,
    json_output: bool,
) -> None:
    """Run a whole service on this machine; Ctrl-C ends all of it.

    It has a database, the API, a worker, a tracker and devices.
    """
    extras.require("server")
    from tuner.measure.network.addresses import free_port  # noqa: PLC0415  (keeps --help fast)
    from tuner.measure.processes import stop_on_signals  # noqa: PLC0415

    directory = options.private(data_dir or defaults.data_dir()).resolve()
    with exclusive(directory), stop_on_signals(STOPS) as stop, scratch(directory) as own:
        check_free(port)
        url = options.database(database_url, directory)
        plan = Plan(port, directory, url, devices, free_port(), own, processes, log_format)
        say(f"starting; logs are in {directory / 'logs'}")
        storage = _prepared(plan)
        try:
            with _device_token(storage) as token, Supervisor(directory / "logs", say) as supervisor:
                _run(replace(plan, device_token=token), supervisor, storage, stop, json_output)
        finally:
            storage.close()
    say("stopped; nothing is left running")


def _prepared(plan: Plan) -> Storage:
    """The migrated database; its first key is in the key file."""
    from tuner.storage.sql import open_storage, upgrade  # noqa: PLC0415  (keeps --help fast)

    upgrade(plan.database_url)
    storage = open_storage(plan.database_url)
    ensure_key(storage, defaults.key_file(plan.data_dir))
    return storage


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A directory for temporary files; those of a run that was killed are removed, and at the end those of workers that
    were killed."""
    from tuner.measure.processes import process_directory, remove_left  # noqa: PLC0415  (keeps --help fast)

    own = process_directory(directory, "up")
    own.mkdir(exist_ok=True)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
        remove_left(directory, "ray")


def ensure_key(storage: OperatorStorage, path: Path) -> None:
    """Write a valid key to ``path``, readable by its owner alone, unless it holds one."""
    if path.exists() and storage.find_key(path.read_text(errors="replace").strip()) is not None:
        path.chmod(0o600)
        return
    from tuner.storage import NewKey, Scope  # noqa: PLC0415  (keeps --help fast)

    _, secret = storage.create_key("up", made=NewKey((Scope.ADMIN,)), actor="up")
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secret + "\n")
    fresh.replace(path)


@contextmanager
def _device_token(storage: DeviceStorage) -> Iterator[str]:
    """What the devices of this `up` join by, so that no other process of the machine becomes one of them.

    It closes the key to no other worker's devices, and is revoked at the end.
    """
    from tuner.storage import StorageUnavailable  # noqa: PLC0415  (keeps --help fast)
    from tuner.storage.device_tokens import LONGEST_TOKEN_S  # noqa: PLC0415

    note = f"up on {socket.gethostname()}"
    token, text = storage.create_device_token(DEVICE_KEY, LONGEST_TOKEN_S, note, "up", required=False)
    try:
        yield text
    finally:
        try:
            storage.revoke_device_token(token.id, "up")
        except StorageUnavailable as error:
            say(f"the token {token.id} of the local devices was not revoked: {error}")


def check_free(port: int) -> None:
    """Raise CommandFailed if the port is in use."""
    from tuner.measure.network.addresses import check_port  # noqa: PLC0415  (keeps --help fast)

    try:
        check_port(port, HOST)
    except OSError as error:
        what = f"port {port} of {HOST} cannot be used: {error.strerror}"
        message = f"{what}; stop what listens there, or choose another with --port"
        raise CommandFailed(ExitCode.REFUSED, message, field="port") from None


def _run(plan: Plan, supervisor: Supervisor, storage: Storage, stop: threading.Event, json_output: bool) -> None:
    """Start the parts, announce the URL once they are ready, supervise them until ``stop``."""
    seen_before = {device.id: device.seen_at for device in storage.list_devices()}

    def registered() -> bool:
        # A worker registers devices as it looks for its first job, so this says that a worker works, too.
        now = [device for device in storage.list_devices() if seen_before.get(device.id) != device.seen_at]
        return len(now) >= plan.devices

    def answers() -> bool:
        plan.ready_file.touch()
        return _is_ready(plan.port)

    # Parts to start, the name of the one to wait for, and whether it is ready.
    steps: tuple[tuple[tuple[Part, ...], str, Callable[[], bool]], ...] = (
        ((tracker_part(plan),), "tracker", lambda: _listens(plan.tracker_port)),
        ((api_part(plan), *device_parts(plan), worker_part(plan)), "api", lambda: _listens(plan.port)),
        ((), "worker", registered),
        ((), "api", answers),
    )
    for parts, awaited, ready in steps:
        for part in parts:
            supervisor.start(part)
        try:
            message = wait_until(ready, START_S, supervisor.check, stop.wait)
        except TimeoutError as error:
            message = f"{awaited} is {error}; {supervisor.tail(awaited)}"
        if message == "":
            return
        if message is not None:
            raise CommandFailed(ExitCode.UNREACHABLE, message)
    supervisor.settled = True
    announce_ready(plan, login_link(storage, plan.url), json_output)
    say(f"next, in another terminal: {next_step(plan)}")
    while not stop.wait(LOOK_S):
        supervisor.check()


def announce_ready(plan: Plan, dashboard_url: str, json_output: bool) -> None:
    """Print the ready line: ``url`` is for scripts, the link that signs a browser in for people."""
    facts = {"url": plan.url, "dashboard_url": dashboard_url, "data_dir": str(plan.data_dir), "pid": os.getpid()}
    emit(facts, json_output, f"ready: {dashboard_url}")
    sys.stdout.flush()


def next_step(plan: Plan) -> str:
    """The command line that submits a job here, with the settings that differ from the defaults."""
    settings = []
    if plan.url.rstrip("/") != defaults.service_url().rstrip("/"):
        settings.append(f"SHAPEWRIGHT_URL={plan.url}")
    if plan.data_dir != defaults.data_dir().resolve():
        settings.append(f"SHAPEWRIGHT_DATA_DIR={shlex.quote(str(plan.data_dir))}")
    return " ".join([*settings, "shapewright submit JOB.yaml --wait"])


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _is_ready(port: int) -> bool:
    """Whether the API says that all is ready."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415  (keeps --help fast)

    connection = HTTPConnection(HOST, port, timeout=READY_ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == HTTP_OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


COMMANDS = (up,)
