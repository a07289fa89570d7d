"""What `up` refuses before it starts anything. That it works stands in tests/e2e."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shapewright.cli.exclusive import exclusive
from shapewright.cli.supervise import MAX_DEATHS, Part, Supervisor
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


def test_a_data_directory_that_is_open_to_others_is_closed(shapewright: Shapewright, tmp_path: Path) -> None:
    for name in ("tuning.db", "libraries", "lost+found", ""):
        place = tmp_path / f"with {name}"
        (place / name).mkdir(parents=True) if name != "tuning.db" else place.mkdir()
        place.chmod(0o755)
        ran = shapewright("db", "upgrade", "--data-dir", place)
        assert (ran.code, stat.S_IMODE(place.stat().st_mode)) == (0, 0o700)
        assert "is closed to them now" in ran.err
        assert shapewright("db", "upgrade", "--data-dir", place).err == ""


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_directory_of_other_things_that_is_open_to_others_is_refused(
    mode: int, shapewright: Shapewright, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / ("tuning.db" if mode & stat.S_ISVTX else "thesis.tex")).touch()
    (tmp_path / "open").chmod(mode)
    ran = shapewright("db", "upgrade", "--data-dir", tmp_path / "open", "--json")
    assert (ran.code, ran.error["field"]) == (2, "--data-dir")
    assert "chmod 700" in ran.error["message"]
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == mode


def supervised(tmp_path: Path, program: str, settled: bool = False) -> tuple[str | None, list[str]]:
    """What a supervisor of a part that ends at once says in the end, and on the way."""
    said: list[str] = []
    hours = iter(range(0, 10**9, 30))
    with Supervisor(tmp_path / "logs", said.append, lambda: float(next(hours))) as supervisor:
        supervisor.settled = settled
        supervisor.start(Part("worker", (sys.executable, "-c", program)))
        message = None
        while message is None and len(said) < 10:
            time.sleep(0.01)
            message = supervisor.check()
    return message, said


def test_a_part_that_dies_each_time_ends_up_with_the_reason(tmp_path: Path) -> None:
    message, said = supervised(tmp_path, "import sys; sys.exit('TMPDIR is too long')")
    assert len(said) == MAX_DEATHS
    assert "worker ended with exit code 1 (TMPDIR is too long); starting it again in 0.5 s" in said[0]
    assert message is not None
    assert "TMPDIR is too long" in message


def test_a_part_that_can_never_start_ends_up_at_once(tmp_path: Path) -> None:
    message, said = supervised(tmp_path, "import sys; print('TMPDIR is too long'); sys.exit(2)")
    assert said == []
    assert message is not None
    assert "TMPDIR is too long" in message


def test_a_part_of_a_service_that_runs_is_started_again_with_the_reason_told(tmp_path: Path) -> None:
    message, said = supervised(tmp_path, "import sys; sys.exit('the disk is full')", settled=True)
    assert message is None
    assert all("the disk is full" in line for line in said)


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
