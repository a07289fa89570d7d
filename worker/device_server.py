"""Serving this machine as a device of a tracker: ``python -m worker.device_server --tracker HOST:PORT --key local``."""

from __future__ import annotations

import sys
from pathlib import Path

from tuner.measure.child import Child
from tuner.measure.device import options as device_options
from tuner.measure.device import process as device_process
from tuner.measure.device.signer import TOKEN
from tuner.measure.network.addresses import Address
from tuner.measure.processes import DEVICE
from tuner.measure.sandbox.confinement import clean_environment

MODULE = f"{__package__}.device_server"


def start_device(
    tracker: Address,
    key: str = "local",
    *,
    device_id: str = "",
    host: str = "127.0.0.1",
    port: int = 0,
    data_dir: Path | None = None,
    token: str | None = None,
) -> Child:
    """Serve this machine as a device in a child process, and wait until it listens.

    ``device_id`` names the device in the database, the same after every restart; several devices of one machine need
    one each. ``token``: what it joins by. The child ends with ``stop``, or when this process is gone; a session that
    crashes or hangs costs only itself. Raises ChildFailed.
    """
    args = ["--tracker", f"{tracker[0]}:{tracker[1]}", "--key", key, "--host", host, "--port", str(port)]
    environment = clean_environment(DEVICE if token is None else {**DEVICE, TOKEN: token})
    return Child(MODULE, [*args, "--id", device_id], data_dir=data_dir, environment=environment)


def main(argv: list[str] | None = None) -> None:
    """Run ``tuner.measure.device.process`` with a tracker and a key required."""
    argv = sys.argv[1:] if argv is None else argv
    options = device_options.parse_options(argv)
    if options.tracker is None or not options.key:
        sys.exit(f"{MODULE}: give --tracker HOST:PORT and --key KEY")
    device_process.main(argv)


if __name__ == "__main__":
    main()
