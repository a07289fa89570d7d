"""`device serve` as a board runs it: with what a device needs installed, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import gpu_measuring
from tests.compiled import small_kernel
from tests.measuring import CRASH, RIGHT, TASK, request
from tests.shapewright import bare
from tests.shares import chosen
from tuner.device_auth import Claim, credential_of, is_proof, new_nonce, new_token, stored_key_of
from tuner.library.codegen import compile_candidate
from tuner.measure import BuildResult, RunRequest
from tuner.measure._base import never
from tuner.measure.device.signer import TOKEN
from tuner.measure.network.connecting import Tracker
from tuner.measure.rpc_names import DESCRIBE, JOIN, device_key
from tuner.measure.runners.rpc import RpcRunner
from tuner.program.job.task import SearchTask
from tuner.program.target import Target, native
from tuner.records import ErrorKind
from worker.tracker import start_tracker


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    with start_tracker(data_dir=tmp_path) as served:
        yield Tracker("127.0.0.1", served.port)


@pytest.fixture
def board(tracker: Tracker, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a device says when it is ready."""
    line = bare.shapewright("device", "serve", "--tracker", f"127.0.0.1:{tracker.port}", "--id", "board", "--json")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.read())
        process.terminate()
        assert process.wait(10) == 0


@pytest.mark.parametrize("how", chosen([TOKEN], ["--token", "--token-file", TOKEN]))
def test_a_board_proves_that_it_has_its_token_and_shows_it_nowhere(tracker: Tracker, tmp_path: Path, how: str) -> None:
    _, text = new_token()
    (tmp_path / "token").write_text(text + "\n")
    options = {"--token": ["--token", text], "--token-file": ["--token-file", "token"]}.get(how, [])
    environment = os.environ | ({TOKEN: text} if how == TOKEN else {})
    where = ("--tracker", f"127.0.0.1:{tracker.port}", "--id", "board", *options)
    line = [sys.executable, "-m", "shapewright", "device", "serve", *where, "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.read()
            connected = tracker.request(device_key("local", "board"), 20.0, 20.0)
            nonce = new_nonce()
            told = json.loads(connected.call(JOIN, nonce))
            connected.hang_up()
            shown = [Path(f"/proc/{process.pid}/{name}").read_text() for name in ("cmdline", "environ")]
        finally:
            process.terminate()
    assert process.returncode == 0
    assert told["token"] == credential_of(text).token_id
    assert is_proof(stored_key_of(text), Claim(**told["claim"]), nonce, told["proof"])
    assert (told["claim"]["id"], told["claim"]["key"]) == ("board", "local")
    assert [text in each for each in shown] == [False, False]


def runner_of(tracker: Tracker, device: str) -> RpcRunner:
    key = device_key("local", device)
    return RpcRunner(lambda life_s, interrupted: tracker.request(key, life_s, 20.0, interrupted), timeout_s=30.0)


def test_a_board_measures_without_a_compiler_and_with_nothing_else_installed(
    tracker: Tracker, board: dict[str, Any]
) -> None:
    maps = Path(f"/proc/{board['pid']}/maps").read_text()
    assert "libtvm_runtime" in maps
    assert "libtvm_compiler" not in maps
    runner = runner_of(tracker, "board")
    results = runner.run(TASK, [request(RIGHT, 1, 5, 64), request(CRASH, 2), request(RIGHT, 3)])
    assert [result.error_kind for result in results] == [None, None, ErrorKind.CRASH, None]
    baselines = runner.baselines(TASK, TASK.instances)
    assert baselines.roof is not None and len(baselines.points) == 2
    runner.close()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("op", "args", "threads"),
    [
        ("dense", {"m": 33, "n": 48, "k": 20}, 1),
        ("softmax", {"m": 9, "n": 70}, 1),
        ("dense", {"m": 64, "n": 64, "k": 64}, 2),
    ],
)
def test_kernels_of_every_kind_run_on_a_board(
    tracker: Tracker, board: dict[str, Any], op: str, args: dict[str, int], threads: int
) -> None:
    task = SearchTask(op, args, instances=[{}], target=native(), threads=threads)
    kernel = small_kernel(task)
    build = BuildResult(kernel, compile_candidate(task, kernel).binary, 0.0)
    runner = runner_of(tracker, "board")
    (result,) = runner.run(task, [RunRequest(build, task.instances)])
    assert result.error == ""
    assert runner.verify(task, build, [{}]) == []
    runner.close()


@pytest.fixture
def gpu_board(tracker: Tracker, tmp_path: Path, fake_cuda: Path) -> Iterator[dict[str, Any]]:
    """A board with a GPU, as a stand-in for its driver pretends."""
    where = ("--tracker", f"127.0.0.1:{tracker.port}", "--key", "h100", "--id", "board", "--gpu", "0")
    line = bare.shapewright("device", "serve", *where, "--json")
    with (
        gpu_measuring.gpu_host(fake_cuda, tmp_path),
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process,
    ):
        assert process.stdout is not None
        yield json.loads(process.stdout.read())
        process.terminate()
        assert process.wait(10) == 0


def test_a_gpu_is_served_as_a_device_of_a_key(tracker: Tracker, gpu_board: dict[str, Any]) -> None:
    assert gpu_board["key"] == "h100"
    on, key = gpu_measuring, device_key("h100", "board")
    runner = RpcRunner(lambda life_s, interrupted: tracker.request(key, life_s, 20.0, interrupted), timeout_s=30.0)
    results = runner.run(on.TASK, [on.request(RIGHT, 1, 5, 64), on.request(CRASH, 2), on.request(RIGHT, 3)])
    assert [result.error_kind for result in results] == [None, None, ErrorKind.CRASH, None]
    assert runner.baselines(on.TASK, on.TASK.instances).roof is not None
    runner.close()
    about = json.loads(tracker.request(key, 20.0, 20.0, never).call(DESCRIBE))
    assert Target.from_json(about["target"]).is_measured_on(gpu_measuring.H100)
    assert (about["description"]["gpu"], about["description"]["cuda"]) == ("Fake 0", "12.8")


def test_where_there_is_no_driver_a_gpu_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    line = bare.shapewright("device", "serve", "--tracker", "127.0.0.1:9", "--gpu", "0", "--json")
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2, ran.stderr
    error = json.loads(ran.stdout)["error"]
    assert error["field"] == "--gpu"
    assert error["message"].startswith("--gpu: no NVIDIA driver is here (")
    assert "leave it out to serve this CPU" in error["message"]


def test_what_is_blocked_is_what_a_device_does_not_need() -> None:
    assert {"ray", "fastapi", "sqlalchemy", "xgboost", "httpx", "yaml", "plotly", "pytest", "tornado"} <= bare.blocked()
    assert not {"tvm", "tvm_ffi", "numpy", "click", "psutil", "shapewright", "tuner"} & bare.blocked()


@pytest.mark.parametrize("line", [["jobs"], ["up"], ["db", "upgrade"]])
def test_a_command_that_needs_more_says_what_to_install(tmp_path: Path, line: list[str]) -> None:
    environment = {"SHAPEWRIGHT_DATA_DIR": str(tmp_path), "SHAPEWRIGHT_API_KEY": "swk_x"}
    command = bare.shapewright(*line, "--json")
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert ran.returncode == 2, ran.stderr
    message = json.loads(ran.stdout)["error"]["message"]
    assert "which is not installed: pip install shapewright, " in message or "pip install 'shapewright[" in message


def test_the_helps_of_all_commands_need_nothing_more() -> None:
    ran = subprocess.run(bare.shapewright("--help"), capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "device" in ran.stdout
