"""The guide's examples: what it tells people to type exists, what it shows as a job is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from shapewright.cli.main import cli
from tests.test_packaging import parse
from tuner.errors import InvalidInput
from tuner.program.catalogue import OPS
from tuner.program.jobspec import parse_job

GUIDE = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


def test_every_command_line_of_the_guide_parses(tmp_path: Path) -> None:
    (tmp_path / "qkv.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "JOB.yaml").write_text(blocks("yaml")[0])
    lines = re.findall(r"^(?:\S*/)?shapewright (.*)$", GUIDE, flags=re.MULTILINE)
    commands = {parse(cli, "shapewright", arguments(line, tmp_path)) for line in lines}
    commands_told = ("up", "submit", "best", "pull", "login-url", "db upgrade", "keys create")
    parts_told = ("serve", "device serve", "worker")
    assert commands == {f"shapewright {name}" for name in (*commands_told, *parts_told)}


def arguments(line: str, directory: Path) -> list[str]:
    """The words of a command line, with its job file where the test has put it."""
    words = shlex.split(line, comments=True)
    return [str(directory / word) if word.endswith(".yaml") else word for word in words]


def test_every_operator_of_the_catalogue_is_in_the_guide_and_its_second_job_is_one() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([a-z ]+)` \|", GUIDE, flags=re.MULTILINE)
    assert {name: tuple(args.split()) for name, args in rows} == {name: op.args for name, op in OPS.items()}
    assert len(parse_job(yaml.safe_load(blocks("yaml")[1])).tasks) == 2


def test_the_job_of_the_guide_is_one_and_its_refusal_is_the_real_one() -> None:
    job = yaml.safe_load(blocks("yaml")[0])
    assert parse_job(job).name == "bert-base qkv"
    job["workload"]["args"]["m"] = "16*S"
    with pytest.raises(InvalidInput) as refusal:
        parse_job(job)
    assert f"shapewright: {refusal.value}\n" in GUIDE
