"""The guide's examples: what it tells people to type exists, what it shows as a job is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.command_lines import parse
from tuner.errors import InvalidInput
from tuner.program.catalogue import OPS
from tuner.program.job.build import PROGRAM_FIELDS, make_workload
from tuner.program.job.jobspec import parse_job
from tuner.schedule import RULES

GUIDE = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()
HELD = ("libs.lock", "all.snapshot", "tuned", "libs/qkv", "new")
"""Files and directories that commands of the guide read."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


def test_every_command_line_of_the_guide_parses(tmp_path: Path) -> None:
    (tmp_path / "qkv.yaml").write_text(blocks("yaml")[0])
    for name in ("JOB.yaml", "ffn.yaml"):
        (tmp_path / name).write_text(blocks("yaml")[0])
    for name in HELD:
        held = tmp_path / name
        held.touch() if held.suffix else held.mkdir(parents=True)
    (tmp_path / "bert.onnx").touch()
    lines = re.findall(r"^(?:\S*/)?shapewright (.*)$", GUIDE, flags=re.MULTILINE)
    commands = {parse(["shapewright", *arguments(line, tmp_path)]) for line in lines}
    commands_told = ("up", "submit", "tune-model", "best", "pull", "promote", "history", "login-url", "db upgrade")
    builds_told = ("snapshot", "check")
    keys_told = ("keys create", "keys list", "keys revoke")
    tokens_told = ("device-tokens create", "device-tokens list", "device-tokens revoke")
    parts_told = ("serve", "device serve", "device calibrate", "worker")
    told = (*commands_told, *builds_told, *keys_told, *tokens_told, *parts_told)
    assert commands == {f"shapewright {name}" for name in told}


def arguments(line: str, directory: Path) -> list[str]:
    """The words of a command line, with its job files, and others that must exist, where the test has put them."""
    words = shlex.split(line, comments=True)
    is_there = [word.endswith((".yaml", ".onnx")) or word.rstrip("/") in HELD for word in words]
    return [str(directory / word) if there else word for word, there in zip(words, is_there, strict=True)]


def test_every_operator_of_the_catalogue_is_in_the_guide_with_its_operands() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([a-z ]+)` \| (.*) \|$", GUIDE, flags=re.MULTILINE)
    assert {name: tuple(args.split()) for name, args, _ in rows} == {name: op.args for name, op in OPS.items()}
    for name, args, told in rows:
        workload = make_workload(name, dict.fromkeys(args.split(), 6))
        if not told.startswith("as "):
            operands = re.findall(r"`(\w+)\[([^]]*)\]`(\*?)", told)
            assert [(each, bool(star)) for each, _, star in operands] == [
                (tensor.name, tensor.constant) for tensor in workload.operands
            ]
            assert [dims.count(",") + 1 for _, dims, _ in operands] == [len(t.dims) for t in workload.operands]


def test_every_rule_is_in_the_guide_and_every_field_of_a_program() -> None:
    section = GUIDE[GUIDE.index("## Programs") : GUIDE.index("## HTTP")]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, flags=re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"\w+", row)]
    assert {*PROGRAM_FIELDS, *(rule.name for rule in RULES)} <= set(told)


def test_the_other_jobs_of_the_guide_are_jobs_and_the_key_it_names_is_the_first_ones() -> None:
    first, *others = (parse_job(yaml.safe_load(block)) for block in blocks("yaml"))
    assert [len(job.tasks) for job in others] == [2, 1]
    operands = [tensor.name for tensor in others[1].tasks[0].workload.operands]
    assert operands == ["x", "up", "scale", "out", "total"]
    workload = first.tasks[0].workload
    assert set(re.findall(r"wl-[0-9a-f]+", GUIDE)) == {workload.key}
    assert workload.dims({"T": 37}) == {"m": 592}


def test_the_job_of_the_guide_is_one_and_its_refusal_is_the_real_one() -> None:
    job = yaml.safe_load(blocks("yaml")[0])
    assert parse_job(job).name == "bert-base qkv"
    job["workload"]["args"]["m"] = "16*S"
    with pytest.raises(InvalidInput) as refusal:
        parse_job(job)
    assert f"shapewright: {refusal.value}\n" in GUIDE
