"""The options of ``python -m benchmarks.gpu`` are command lines of ``shapewright bundle``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as command
from tests.command_lines import parse
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What is given to the command, and not run."""
    given = list[Sequence[str]]()
    monkeypatch.setattr(command, "shapewright", given.append)
    return given


def test_a_bundle_is_packed_and_read_back_by_the_command(lines: list[Sequence[str]], tmp_path: Path) -> None:
    folder = str(tmp_path)
    others = ["--arch", "sm_80", "--arch", "sm_90", "--choices", "2", "--others", "1", "--seed", "3"]
    command.main(["--bundle", folder, "--job", __file__, *others])
    command.main(["--import", folder])
    assert lines == [["bundle", "pack", __file__, folder, *others], ["bundle", "import", folder]]
    assert [parse(["shapewright", *line]) for line in lines] == ["shapewright bundle pack", "shapewright bundle import"]


def test_without_a_job_dietcodes_products_are_packed(lines: list[Sequence[str]]) -> None:
    command.main(["--bundle", "new"])
    ((*_, job, _),) = lines
    assert len(parse_job(read_yaml(Path(job).read_bytes())).tasks) == 12


def test_one_of_both_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([])
    assert "--bundle --import is required" in capsys.readouterr().err
