"""The parts of a service on their own, as `up` and containers start them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from shapewright import defaults, extras
from shapewright.cli import options
from shapewright.cli.calibrate import device_calibrate
from shapewright.cli.device_tokens import token_of, without_token
from shapewright.cli.output import CommandFailed, ExitCode, as_json, emit, emit_last
from tuner import logs
from tuner.errors import InvalidInput

SHOWN_CORES = 16


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=defaults.DEFAULT_PORT,
    show_default=True,
    help="0 takes a free port.",
)
@click.option("--root-path", default="", metavar="PREFIX", help="The path that a proxy serves this under, if any.")
@options.processes
@click.option(
    "--ready-file", type=click.Path(path_type=Path), metavar="FILE", help="/readyz says no while this does not exist."
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the parts of this machine log to, a file each, for the logs of a job.",
)
@options.database_url
@options.data_dir
@options.log_format
@as_json
def serve(
    *,
    host: str,
    port: int,
    root_path: str,
    processes: int,
    ready_file: Path | None,
    log_dir: Path | None,
    database_url: str | None,
    data_dir: Path | None,
    log_format: str,
    json_output: bool,
) -> None:
    """Serve the HTTP API until it is stopped."""
    extras.require("server")
    from service.processes import Plan, serve_together  # noqa: PLC0415  (FastAPI, for this command alone)
    from service.settings import Settings  # noqa: PLC0415

    logs.set_up(log_format)
    url = options.database(database_url, data_dir)

    def ready(at: str) -> None:
        emit({"url": at}, json_output, f"serving at {at}")

    settings = Settings(
        ready_file=str(ready_file) if ready_file else None, log_dir=str(log_dir.resolve()) if log_dir else None
    )
    serve_together(Plan(url, host, port, settings, root_path, log_format=log_format), processes, ready)


@click.command()
@click.option("--tracker", required=True, metavar="HOST:PORT", help="The tracker that hands out devices.")
@click.option("--ray-address", metavar="ADDRESS", help="A Ray cluster to build on [default: one of its own, here].")
@click.option("--device-key", "device_keys", multiple=True, help="Only jobs for devices of this key; may be repeated.")
@click.option("--name", help="Names this worker in the database [default: HOSTNAME:PID].")
@click.option(
    "--device-tokens",
    type=click.Choice(("auto", "required", "off")),
    default="auto",
    show_default=True,
    envvar="SHAPEWRIGHT_DEVICE_TOKENS",
    help="Which devices need a join token: those of keys that one was ever made for, all, or none.",
)
@options.calibration("Whether a device is measured, for up to a minute, before the first search on it.")
@options.database_url
@options.data_dir
@options.log_format
@as_json
def worker(
    *,
    tracker: str,
    ray_address: str | None,
    device_keys: tuple[str, ...],
    name: str | None,
    device_tokens: str,
    calibration: str,
    database_url: str | None,
    data_dir: Path | None,
    log_format: str,
    json_output: bool,
) -> None:
    """Run jobs until it is stopped.

    Candidates are built on Ray and measured on the tracker's devices.
    """
    extras.require("server")
    address = _tracker_address(tracker)
    from worker.devices.admission import TokenRule  # noqa: PLC0415  (Ray and TVM, for this command alone)
    from worker.run import run_worker  # noqa: PLC0415

    logs.set_up(log_format)
    run_worker(
        options.database(database_url, data_dir),
        address,
        data_dir=options.private(data_dir or defaults.data_dir()),
        device_keys=device_keys or None,
        ray_address=ray_address,
        name=name,
        tokens=TokenRule(device_tokens),
        calibration=calibration == "on",
        on_ready=lambda at: emit_last({"name": at, "tracker": tracker}, json_output, f"worker {at} waits for jobs"),
    )


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=defaults.TRACKER_PORT,
    show_default=True,
    help="0 takes a free port.",
)
@options.log_format
@as_json
def tracker(*, host: str, port: int, log_format: str, json_output: bool) -> None:
    """Hand out devices to workers until it is stopped.

    Nothing is authenticated: this machine or private networks only.
    """
    from worker.tracker import serve_until_stopped as track  # noqa: PLC0415  (TVM, for this command alone)

    logs.set_up(log_format)

    def ready(at: int) -> None:
        emit_last({"host": host, "port": at, "pid": os.getpid()}, json_output, f"tracking devices at {host}:{at}")

    try:
        track(host, port, ready)
    except (OSError, ValueError) as error:
        message = f"cannot track devices at {host}:{port}: {error}; choose another --port, or another --host"
        raise CommandFailed(ExitCode.REFUSED, message, field="--port") from error


@click.group()
def device() -> None:
    """Devices: the machines that candidates are measured on."""


@device.command("serve")
@click.option("--tracker", required=True, metavar="HOST:PORT", help="The tracker to register with.")
@click.option("--key", default="local", show_default=True, help="What a job's `device` names.")
@click.option("--id", "device_id", help="Names this device, the same after a restart [default: HOSTNAME:KEY].")
@click.option("--host", help="The address to listen at [default: this machine's on its route to the tracker].")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0 takes a free one.")
@click.option("--address", help="The address that workers reach this machine by, if it is another.")
@click.option(
    "--cores",
    default="",
    metavar="LIST",
    help="The cores to measure on, as in 0,2-3 [default: all]. One of several devices of a machine has its own.",
)
@click.option(
    "--gpu",
    type=click.IntRange(min=0),
    metavar="N",
    help="Measure on this NVIDIA GPU, as its driver counts them, in place of the CPU.",
)
@click.option("--tunnel", metavar="URL", help="The workers' host, ssh://[USER@]HOST[:PORT]: all goes through SSH.")
@click.option(
    "--ssh-config", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="In place of ~/.ssh/config."
)
@click.option("--user", metavar="NAME", help="Whom candidates run as, where this is started as root.")
@click.option(
    "--token", envvar="SHAPEWRIGHT_DEVICE_TOKEN", help="What it joins by. Users of this machine see command lines."
)
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A file that holds the token."
)
@click.option("--memory", metavar="SIZE", help="What a candidate may map, as in 8G; 0: no limit [default: 3/4 of all].")
@options.log_format
@as_json
def device_serve(
    *,
    tracker: str,
    key: str,
    device_id: str | None,
    host: str | None,
    port: int,
    address: str | None,
    cores: str,
    gpu: int | None,
    tunnel: str | None,
    ssh_config: Path | None,
    user: str | None,
    token: str | None,
    token_file: Path | None,
    memory: str | None,
    log_format: str,
    json_output: bool,
) -> None:
    """Serve this machine or a GPU as a device until it is stopped.

    It runs what workers send it: private networks only.
    """
    at_tracker = _tracker_address(tracker)
    from tuner.measure.device.signer import with_signer  # noqa: PLC0415
    from tuner.measure.processes import device_environment  # noqa: PLC0415  (keeps --help fast)
    from tuner.measure.sandbox.confinement import Limits, clean_environment, parse_memory  # noqa: PLC0415

    limits = Limits(None if memory is None else parse_memory(memory), user, of_data=gpu is not None)
    environment = with_signer(clean_environment(device_environment(gpu)), token_of(token, token_file))
    if os.environ != environment:
        # Of candidates nothing can be kept that this process was started with.
        os.execve(sys.executable, [sys.executable, *without_token(sys.orig_argv[1:])], environment)
    from tuner.measure.device.options import DeviceOptions, parse_cores, placed  # noqa: PLC0415
    from tuner.measure.device.process import serve_until_stopped  # noqa: PLC0415  (TVM, for this command alone)
    from tuner.measure.network.tunnel import DEVICE_AT, HERE, Gate, Tunnel  # noqa: PLC0415

    logs.set_up(log_format)
    try:
        own = parse_cores(cores)
    except ValueError as error:
        raise InvalidInput("--cores", str(error), f"some of {_shown(sorted(os.sched_getaffinity(0)))}") from None
    opened = None
    if tunnel is not None:
        if host or address:
            raise InvalidInput(
                "--tunnel", "a device behind a tunnel listens on loopback", "leave out --host and --address"
            )
        opened = Tunnel.open(Gate.parse(tunnel, ssh_config), at_tracker, port)
        at_tracker, port, host, address = opened.tracker, opened.port, DEVICE_AT, HERE
    served = placed(
        DeviceOptions(host, port, key, at_tracker, device_id or "", address, cores=own, gpu=gpu, limits=limits)
    )

    def ready(options: DeviceOptions, at: int) -> None:
        what = "this machine" if gpu is None else f"GPU {gpu} of this machine"
        text = f"serving {what} as a device {key!r} of {tracker}, on port {at} of {options.host}"
        where = {"host": options.host, "port": at, "address": options.address}
        emit_last({**where, "pid": os.getpid(), "key": key, "tracker": tracker}, json_output, text)

    try:
        serve_until_stopped(served, ready)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        message = f"cannot serve a device at {served.host}:{port}: {error}; choose another --port, or another --host"
        raise CommandFailed(ExitCode.REFUSED, message, field="--port") from error


def _tracker_address(text: str) -> tuple[str, int]:
    """The option --tracker. Raises InvalidInput."""
    from tuner.measure.network.addresses import parse_address  # noqa: PLC0415  (keeps --help fast)

    return parse_address(text, "--tracker")


def _shown(cores: list[int]) -> str:
    return ",".join(map(str, cores[:SHOWN_CORES])) + (",..." if len(cores) > SHOWN_CORES else "")


device.add_command(device_calibrate)
COMMANDS = (serve, worker, tracker, device)
