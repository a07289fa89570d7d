"""What the parts print when they are ready: with --json one document on stdout and nothing else, else a line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from shapewright.cli.main import cli
from tests.shares import chosen

END_S = 60.0


def ready(log: Path, *arguments: object) -> str:
    """Start a part, end it once it has printed its first line; all of its stdout. Its stderr goes to ``log``."""
    line = [sys.executable, "-m", "shapewright", *map(str, arguments)]
    with log.open("w") as stderr, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out += process.stdout.read()
        process.wait(END_S)
        return out


@pytest.mark.parametrize("json_output", chosen([True], [True, False]))
def test_a_tracker_tells_its_port(tmp_path: Path, json_output: bool) -> None:
    out = ready(tmp_path / "log", "tracker", "--port", "0", *(["--json"] if json_output else []))
    if json_output:
        answer = json.loads(out)
        assert (answer["host"], answer["port"] > 0) == ("127.0.0.1", True)
    else:
        assert out.startswith("tracking devices at 127.0.0.1:")


@pytest.mark.parametrize("json_output", chosen([False], [True, False]))
def test_a_device_tells_its_port(tracker: tuple[str, int], tmp_path: Path, json_output: bool) -> None:
    address = f"{tracker[0]}:{tracker[1]}"
    options = ["--json"] if json_output else []
    out = ready(tmp_path / "log", "device", "serve", "--tracker", address, "--key", "spare", *options)
    if json_output:
        answer = json.loads(out)
        assert answer["port"] > 0
        assert (answer["key"], answer["tracker"]) == ("spare", address)
    else:
        assert out.startswith(f"serving this machine as a device 'spare' of {address}, on port ")
        assert out.count("\n") == 1
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_device_whose_port_is_in_use_says_so(tracker: tuple[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--tracker", f"{tracker[0]}:{tracker[1]}", "--port", str(port), "--json")
        line = [sys.executable, "-m", "shapewright", "device", "serve", *options]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=END_S, check=False)
    assert ran.returncode == 2
    error = json.loads(ran.stdout)["error"]
    assert error["field"] == "--port"
    assert str(port) in error["message"]


def test_a_worker_that_is_ready_tells_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.run.run_worker", lambda *given, name, on_ready, **more: on_ready(name))
    monkeypatch.setattr("shapewright.cli.parts.logs.set_up", lambda log_format: None)
    options = ("--tracker", "board:9190", "--data-dir", str(tmp_path), "--name", "w1")
    for more, says in (("--json",), '{"name": "w1", "tracker": "board:9190"}'), ((), "worker w1 waits for jobs"):
        told = CliRunner().invoke(cli, ["worker", *options, *more])
        assert told.exit_code == 0, told.output
        assert json.loads(told.stdout) == json.loads(says) if more else told.stdout == f"{says}\n"


@pytest.mark.soak
@pytest.mark.usefixtures("sqlite_url")
def test_a_worker_tells_its_name(tracker: tuple[str, int], tmp_path: Path) -> None:
    address = f"{tracker[0]}:{tracker[1]}"
    options = ("--tracker", address, "--data-dir", tmp_path, "--device-key", "none", "--name", "w1", "--json")
    out = ready(tmp_path / "log", "worker", *options)
    assert json.loads(out) == {"name": "w1", "tracker": address}


@pytest.mark.parametrize("json_output", chosen([True], [True, False]))
@pytest.mark.usefixtures("sqlite_url")
def test_an_api_tells_its_url(tmp_path: Path, json_output: bool) -> None:
    options = ("--port", 0, "--data-dir", tmp_path, *(["--json"] if json_output else []))
    out = ready(tmp_path / "log", "serve", *options)
    if json_output:
        assert json.loads(out)["url"].startswith("http://127.0.0.1:")
    else:
        assert out.startswith("serving at http://127.0.0.1:")
        assert out.count("\n") == 1
