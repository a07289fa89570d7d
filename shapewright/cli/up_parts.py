"""The parts of `shapewright up`: what it runs, and the command lines of its processes."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from shapewright.cli.options import LOG_FORMAT
from shapewright.cli.supervise import Part, command

HOST = "127.0.0.1"
DEVICE_KEY = "local"
TOKEN, TOKENS = "SHAPEWRIGHT_DEVICE_TOKEN", "SHAPEWRIGHT_DEVICE_TOKENS"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one `up` runs: ports, directories, database, devices and what they join by, processes of the API."""

    port: int
    data_dir: Path
    database_url: str
    devices: int
    tracker_port: int
    scratch: Path
    processes: int = 1
    log_format: str = "text"
    device_token: str = ""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    @property
    def tracker(self) -> str:
        return f"{HOST}:{self.tracker_port}"

    @property
    def ready_file(self) -> Path:
        """Exists once a job can be submitted and will run; until then the API's /readyz says no."""
        return self.scratch / "ready"


def tracker_part(plan: Plan) -> Part:
    return Part("tracker", command("tracker", "--host", HOST, "--port", str(plan.tracker_port)))


def device_parts(plan: Plan) -> tuple[Part, ...]:
    where = ("--tracker", plan.tracker, "--key", DEVICE_KEY)
    name = f"{socket.gethostname()}:{DEVICE_KEY}"
    commands = (
        command("device", "serve", *where, "--id", f"{name}:{number}", *cores)
        for number, cores in enumerate(_cores_of_devices(plan.devices))
    )
    environment = {"TMPDIR": str(plan.scratch), LOG_FORMAT: plan.log_format, TOKEN: plan.device_token}
    return tuple(Part(f"device-{number}", argv, environment=environment) for number, argv in enumerate(commands))


def _cores_of_devices(devices: int) -> list[tuple[str, ...]]:
    """The option of each device that names its cores. Several share the machine's, each with its own; where there are
    fewer cores than devices, some have the same."""
    cores = sorted(os.sched_getaffinity(0))
    if devices < 2:
        return [()] * devices
    each = max(1, len(cores) // devices)
    shares = [cores[each * number % len(cores) :][:each] for number in range(devices)]
    return [("--cores", ",".join(map(str, share))) for share in shares]


def api_part(plan: Plan) -> Part:
    serving = ("--processes", str(plan.processes), "--ready-file", str(plan.ready_file))
    logs = ("--log-dir", str(plan.data_dir / "logs"))
    line = command("serve", "--host", HOST, "--port", str(plan.port), *serving, *logs)
    return Part("api", line, essential=True, environment=_settings(plan))


def worker_part(plan: Plan) -> Part:
    line = command("worker", "--tracker", plan.tracker, "--data-dir", str(plan.data_dir))
    return Part("worker", line, environment={**_settings(plan), TOKENS: "required"})


def _settings(plan: Plan) -> dict[str, str]:
    return {"SHAPEWRIGHT_DATABASE_URL": plan.database_url, LOG_FORMAT: plan.log_format}
