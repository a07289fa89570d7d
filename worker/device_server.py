"""Serving this machine as a device of a tracker, in a child process."""

from __future__ import annotations

from pathlib import Path

from tuner.measure import device
from tuner.measure.child import Child
from tuner.measure.device.signer import TOKEN
from tuner.measure.network.addresses import Address
from tuner.measure.processes import device_environment
from tuner.measure.runners.local_device import gpu_options
from tuner.measure.sandbox.confinement import clean_environment

MODULE = f"{device.__name__}.process"
"""Not one of this package, which sets variables of Ray's: a device that has them starts itself again without."""


def start_device(
    tracker: Address,
    key: str = "local",
    *,
    device_id: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    data_dir: Path | None = None,
    token: str | None = None,
    gpu: int | None = None,
) -> Child:
    """Serve this machine, or a GPU of it, as a device in a child process, and wait until it listens.

    ``device_id`` names the device in the database, the same after every restart; several devices of one machine need
    one each. ``token``: what it joins by. The child ends with ``stop``, or when this process is gone; a session that
    crashes or hangs costs only itself. Raises ChildFailed.
    """
    args = ["--tracker", f"{tracker[0]}:{tracker[1]}", "--key", key, "--host", host, "--port", str(port)]
    joined_by = {} if token is None else {TOKEN: token}
    environment = clean_environment(device_environment(gpu) | joined_by)
    return Child(MODULE, [*args, "--id", device_id, *gpu_options(gpu)], data_dir=data_dir, environment=environment)
