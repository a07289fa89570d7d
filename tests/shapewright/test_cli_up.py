"""What `up` refuses before it starts anything. That it works stands in tests/e2e."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.shapewright.conftest import Shapewright


def test_a_port_in_use_is_named_with_the_option_for_another(shapewright: Shapewright, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = shapewright("up", "--port", port, "--json")
    assert ran.code == 2
    assert str(port) in ran.error["message"]
    assert "--port" in ran.error["message"]
    assert not (data_dir / "tuning.db").exists(), "nothing was started"


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
