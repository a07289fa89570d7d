"""What `up` refuses before it starts anything. That it works stands in tests/e2e."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shapewright.cli.exclusive import exclusive
from shapewright.cli.up import next_step, scratch
from shapewright.cli.up_parts import Plan
from tests.shapewright.conftest import Shapewright


def test_a_port_in_use_is_named_with_the_option_for_another(shapewright: Shapewright, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = shapewright("up", "--port", port, "--json")
    assert ran.code == 2
    assert str(port) in ran.error["message"]
    assert "--port" in ran.error["message"]
    assert not (data_dir / "tuning.db").exists(), "nothing was started"


def test_a_data_directory_in_use_is_named_with_who_uses_it(
    shapewright: Shapewright, data_dir: Path, free_port: int
) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from shapewright.cli.exclusive import exclusive\n"
        "with exclusive(Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(300)\n"
    )
    line = [sys.executable, "-c", code, str(data_dir)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        ran = shapewright("up", "--port", free_port, "--json")
        other.kill()
    assert ran.code == 2
    says = f"data directory {data_dir} is in use by pid {other.pid} (another up); stop it, or choose another with"
    assert says in ran.error["message"]
    with exclusive(data_dir):
        """A lock ends with the process that held it."""


def test_what_comes_next_names_the_settings_that_clients_would_not_find(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(8321, data_dir, "sqlite://", 1, 9190, tmp_path)
    assert next_step(plan) == "shapewright submit JOB.yaml --wait"
    other = replace(plan, port=8000, data_dir=tmp_path / "a b")
    settings = f"SHAPEWRIGHT_URL=http://127.0.0.1:8000/ SHAPEWRIGHT_DATA_DIR='{tmp_path / 'a b'}'"
    assert next_step(other) == f"{settings} shapewright submit JOB.yaml --wait"


def test_a_data_directory_that_is_made_is_for_its_owner_alone(
    shapewright: Shapewright, tmp_path: Path, free_port: int
) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        assert shapewright("up", "--port", free_port, "--data-dir", tmp_path / "a" / "b").code == 2
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


@pytest.mark.parametrize("line", [["up"], ["serve"], ["db", "upgrade"], ["keys", "list"]])
def test_an_empty_data_directory_name_is_refused(shapewright: Shapewright, line: list[str]) -> None:
    ran = shapewright(*line, "--data-dir", "", "--json")
    assert (ran.code, ran.error["field"]) == (2, "--data-dir")


def test_a_data_directory_that_cannot_be_written_to_is_named(shapewright: Shapewright, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = shapewright("up", "--data-dir", tmp_path / "file" / "data", "--json")
    assert ran.code == 2
    assert str(tmp_path / "file" / "data") in ran.error["message"]
    assert "--data-dir" in ran.error["message"]


def test_a_database_that_does_not_answer_is_named(shapewright: Shapewright, free_port: int) -> None:
    url = "postgresql://someone:secret@127.0.0.1:9/none"
    ran = shapewright("up", "--port", free_port, "--database-url", url, "--json")
    assert ran.code == 3
    assert "127.0.0.1:9/none" in ran.error["message"]
    assert "secret" not in ran.error["message"]


def test_what_killed_workers_left_goes_when_up_ends(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait(20)
    with scratch(tmp_path) as own:
        (own / "of a device").mkdir()
        (tmp_path / f"ray-{killed.pid}" / "builds").mkdir(parents=True)
    assert list(tmp_path.iterdir()) == []
