"""How the demo ends when it does not come to its end. That it does stands with `make demo`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import COMMAND_S, JOB, STOP_S, environment, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path, because Ray's sockets go below the directory for temporary files."""
    result = Path(tempfile.mkdtemp(prefix="sw", dir="/tmp"))
    yield result
    shutil.rmtree(result)


def demo(directory: Path, *arguments: object) -> tuple[subprocess.Popen[str], Path]:
    """A running demo that has ``directory`` for its temporary files, and the file that takes what it prints."""
    output = directory / "output"
    temporary = directory / "t"
    temporary.mkdir()
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.demo", *map(str, arguments)],
            cwd=ROOT,
            env=environment(directory, TMPDIR=str(temporary)),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    return process, output


def test_an_interrupted_demo_leaves_nothing(short: Path) -> None:
    process, output = demo(short)
    until(lambda: "starting; logs are in" in output.read_text())
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    assert process.wait(STOP_S) == 130, output.read_text()
    assert "Traceback" not in output.read_text()
    assert "interrupted" in output.read_text()
    assert not [path for path in (short / "t").iterdir() if "demo" in path.name]


@pytest.mark.soak
def test_a_demo_that_fails_says_why_and_keeps_the_logs(short: Path) -> None:
    job = short / "job.yaml"
    job.write_text(JOB.replace("16*T", "16*S"))
    process, output = demo(short, "--job", job)
    assert process.wait(COMMAND_S) == 1, output.read_text()
    text = output.read_text()
    assert "Traceback" not in text
    assert "workload.args.m: S is not declared" in text
    (logs,) = (path for path in (short / "t").iterdir() if "demo" in path.name)
    assert f"logs are kept in {logs}" in text
    assert {"api.log", "worker.log"} <= {path.name for path in logs.iterdir()}
