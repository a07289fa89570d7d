"""`shapewright up` as a user starts it: real processes, a real database, a real search."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from shapewright.cli.options import CALIBRATION
from shapewright.watchdog import MARKER, marked
from tuner.measure.network.addresses import free_port

START_S = 120.0
STOP_S = 60.0
COMMAND_S = 280.0

JOB = """
name: e2e
workload:
  op: dense
  args: {m: 16*T, n: 64, k: 32}
shape_vars:
  T: {min: 1, max: 16}
instances: [{T: 1}, {T: 5}, {T: 16}]
budget: {trials: 8}
max_kernels: 2
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout; fails if there is anything else."""
        return json.loads(self.out)


@dataclass
class Up:
    """A running `shapewright up`."""

    process: subprocess.Popen[str]
    url: str
    data_dir: Path
    stderr: Path
    job: Path
    dashboard_url: str = ""

    @property
    def up_id(self) -> str:
        """What all of its processes carry."""
        return str(self.part("shapewright.watchdog").environ()[MARKER])

    def shapewright(self, *arguments: object) -> Ran:
        """Run another command in this `up`'s data directory."""
        done = subprocess.run(
            [sys.executable, "-m", "shapewright", *map(str, arguments)],
            env=environment(self.data_dir, SHAPEWRIGHT_URL=self.url),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def has(self, name: str) -> bool:
        """Whether it has started a part, by the name of its command; one that is being started has none yet."""
        with suppress(psutil.NoSuchProcess):
            return any(name in child.cmdline() for child in psutil.Process(self.process.pid).children())
        return False

    def part(self, name: str) -> psutil.Process:
        """The process of a part, by the name of its command."""
        children = psutil.Process(self.process.pid).children()
        (result,) = (child for child in children if name in child.cmdline())
        return result

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_S)

    def logs(self) -> str:
        texts = [self.stderr.read_text()]
        texts += [f"--- {path.name}\n{path.read_text()}" for path in sorted((self.data_dir / "logs").glob("*.log"))]
        return "\n".join(texts)


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    """This process's own, without what configures Shapewright; nothing is calibrated unless ``more`` says so."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHAPEWRIGHT_")}
    return {**kept, "SHAPEWRIGHT_DATA_DIR": str(data_dir), CALIBRATION: "off", **more}


def until(ready: Callable[[], bool], deadline_s: float = START_S) -> None:
    end = time.monotonic() + deadline_s
    while not ready():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain"
        time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts `shapewright up` with further options and variables; whatever a test leaves running is ended and told."""
    started: list[tuple[Up, str]] = []
    files: list[IO[str]] = []

    def start_up(*options: str, **variables: str) -> Up:
        data_dir = tmp_path / f"data-{len(started)}"
        data_dir.mkdir()
        job, stderr = tmp_path / "job.yaml", tmp_path / f"up-{len(started)}.log"
        job.write_text(JOB)
        files.append(stderr.open("w"))
        process = subprocess.Popen(
            [sys.executable, "-m", "shapewright", "up", "--port", str(free_port()), "--json", *options],
            env=environment(data_dir, **variables),
            stdout=subprocess.PIPE,
            stderr=files[-1],
            text=True,
        )
        up = Up(process, "", data_dir, stderr, job)
        until(lambda: up.has("shapewright.watchdog") or process.poll() is not None)
        started.append((up, up.up_id))
        ready = ready_document(up)
        up.url, up.dashboard_url = ready["url"], ready["dashboard_url"]
        return up

    yield start_up
    for up, up_id in started:
        if up.process.poll() is None:
            up.stop()
        if up.process.stdout is not None:
            up.process.stdout.close()
        for process in marked(up_id):
            process.kill()
        print(up.logs())
    for file in files:
        file.close()


def ready_document(up: Up) -> dict[str, Any]:
    """What `up` prints when it is ready."""
    assert up.process.stdout is not None
    text = ""
    while line := up.process.stdout.readline():
        text += line
        if line == "}\n":
            answer: dict[str, Any] = json.loads(text)
            return answer
    raise AssertionError(f"up ended with {up.process.wait(STOP_S)} before it was ready:\n{up.logs()}")
