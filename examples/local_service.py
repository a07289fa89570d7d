"""A service of a script's own: `shapewright up` on embedded defaults, stopped at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from tuner.measure.network.addresses import free_port

READY_S, STOP_S = 120.0, 30.0
say = partial(print, flush=True)
"""To the user of an example, on stdout."""


@contextmanager
def local_service(data_dir: Path, url: str | None = None) -> Iterator[dict[str, str]]:
    """The environment of clients of the service at ``url``; without one, of `shapewright up`, stopped at the end."""
    if url is not None:
        yield {**os.environ, "SHAPEWRIGHT_URL": url}
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "SHAPEWRIGHT_URL": url, "SHAPEWRIGHT_DATA_DIR": str(data_dir)}
    # The minute of a calibration pays over many searches; this is one.
    environment["SHAPEWRIGHT_CALIBRATION"] = "off"
    say(f"$ shapewright up --port {port}")
    command = [sys.executable, "-m", "shapewright", "up", "--port", str(port), "--data-dir", str(data_dir)]
    process = subprocess.Popen(command, env=environment)
    try:
        # Ready is a service that answers so: a job can be submitted, and will run.
        deadline = time.monotonic() + READY_S
        while not _answers(f"{url}/readyz"):
            if process.poll() == 0:
                # Somebody told it to stop, and us with it, whether we have heard of it or not.
                raise KeyboardInterrupt
            if process.returncode is not None:
                raise SystemExit(f"`shapewright up` ended with exit code {process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise SystemExit(f"the service at {url} was not ready within {READY_S:g} s")
            time.sleep(0.3)
        yield environment
    finally:
        # A second Ctrl-C must not leave it running, nor take its directory away from under it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            signal.signal(signal.SIGINT, before)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == httpx.codes.OK
    except httpx.TransportError:  # not listening yet
        return False
