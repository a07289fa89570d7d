"""`shapewright init`: job files to begin with, which are right as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.shapewright.conftest import Shapewright
from tuner.program.catalogue import OPS
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job


def uncommented(text: str) -> str:
    """The file with every field that stands in a comment in force."""
    lines = []
    for line in text.splitlines():
        bare = line.lstrip()
        field = bare.removeprefix("# ")
        is_field = bare.startswith("# ") and (field.split(":")[0].replace("_", "").isalnum() and ": " in field)
        is_field = is_field or bare.startswith(("# instances:", "#   - {"))
        lines.append(line.replace("# ", "", 1) if is_field else line)
    return "\n".join(lines)


@pytest.mark.parametrize("op", sorted(OPS))
def test_the_job_of_an_operator_is_right(op: str, shapewright: Shapewright, tmp_path: Path) -> None:
    ran = shapewright("init", tmp_path / "job.yaml", "--op", op, "--json")
    text = (tmp_path / "job.yaml").read_text()
    (task,) = parse_job(read_yaml(text.encode())).tasks
    assert (ran.code, ran.json["workload_keys"]) == (0, [task.workload.key])
    assert OPS[op].doc in text
    for name, setting in OPS[op].settings.items():
        assert f"{name}: " in text and setting.doc in text
    assert task.workload.variables, "something varies"


def test_what_stands_in_comments_is_right_too(shapewright: Shapewright, tmp_path: Path) -> None:
    shapewright("init", tmp_path / "job.yaml", "--op", "layer_norm")
    text = uncommented((tmp_path / "job.yaml").read_text())
    data = yaml.safe_load(text)
    assert {"instances", "device", "policy"} <= set(data)
    assert data["workload"]["args"]["eps"] == 1e-5
    data["workload"].pop("epilogue")
    assert len(parse_job(data).tasks[0].instances) == 1


def test_the_job_of_a_program_is_right(shapewright: Shapewright, tmp_path: Path) -> None:
    program = "e[m, n] = exp(x[m, n]); z[m] = sum(n) e[m, n]; out[m, n] = e[m, n] / z[m]"
    ran = shapewright("init", tmp_path / "own.yaml", "--program", program)
    assert ran.code == 0
    assert f"shapewright submit {tmp_path / 'own.yaml'} --wait" in ran.out
    (task,) = parse_job(read_yaml((tmp_path / "own.yaml").read_bytes())).tasks
    assert len(task.workload.program.stages) == 3
    assert task.workload.variables == {"T"}
    wrong = shapewright("init", tmp_path / "wrong.yaml", "--program", "out[m] = x[m", "--json")
    assert wrong.code == 2
    assert not (tmp_path / "wrong.yaml").exists()


def test_a_file_that_exists_is_left_as_it_is(
    shapewright: Shapewright, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shapewright("init").code == 0
    before = (tmp_path / "job.yaml").read_text()
    assert "op: dense" in before
    again = shapewright("init", "--op", "softmax", "--json")
    assert (again.code, again.error["field"]) == (2, "FILE")
    assert "job.yaml exists" in again.error["message"]
    assert (tmp_path / "job.yaml").read_text() == before
    unknown = shapewright("init", "x.yaml", "--op", "linear", "--json")
    assert (unknown.code, unknown.error["field"]) == (2, "op")
    assert unknown.error["remedy"].startswith("did you mean dense?")
    assert shapewright("init", "--op", "dense", "--program", "x").code == 2
    assert shapewright("init", "no/such/folder.yaml", "--json").code == 2


def test_a_name_of_a_file_writes_nothing_into_it(shapewright: Shapewright, tmp_path: Path) -> None:
    odd = tmp_path / "a\nseed: 7\n.yaml"
    assert shapewright("init", odd).code == 0
    assert yaml.safe_load(odd.read_text())["seed"] == 0
