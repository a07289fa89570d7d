"""The command line for a user without a name and a home."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shapewright import defaults
from tests.shapewright.unprivileged import UID, run_unprivileged


def test_commands_have_a_folder_of_the_users_own(tmp_path: Path, job_file: Path) -> None:
    def run_line(*line: str) -> tuple[int, str]:
        ran = run_unprivileged([sys.executable, "-m", "shapewright", *line], tmp_path)
        return ran.returncode, ran.stdout + ran.stderr

    assert run_line("db", "upgrade")[0] == 0
    folder = tmp_path / f"shapewright-home-{UID}"
    assert (folder / ".shapewright" / "tuning.db").is_file()
    assert folder.stat().st_mode & 0o777 == 0o700
    code, said = run_line("jobs", "--url", "http://127.0.0.1:1")
    assert (code, "no service answers" in said) == (3, True)
    assert run_line("keys", "create", "ci")[0] == 0


@pytest.mark.parametrize("kind", ["open", "a link", "a file"])
def test_a_folder_that_somebody_else_may_have_made_is_not_used(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    there = tmp_path / f"shapewright-home-{os.geteuid()}"
    if kind == "open":
        there.mkdir()
        there.chmod(0o777)
    elif kind == "a link":
        there.symlink_to(tmp_path)
    else:
        there.touch()
    defaults.without_home.cache_clear()
    found = defaults.without_home()
    defaults.without_home.cache_clear()
    assert found != there
    assert found.stat().st_mode & 0o777 == 0o700
