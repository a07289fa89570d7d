"""The tutorials, followed from the first block to the last, by a search that measures as little as can be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, Block, blocks
from tests.docs.scenes import without_search
from tests.e2e.conftest import Up, environment
from tests.e2e.conftest import start as start_fixture

TUTORIAL = DOCS / "tutorial"
STEP_S = 200
SHORT = "{trials: 8, seconds: 90}"
start = start_fixture


def file_of(block: Block) -> str | None:
    """What the text above a block says to write it to, as in: Write this to `layer.yaml`:"""
    above = "\n".join(block.page.read_text().splitlines()[: block.line - 1])
    found = re.search(r"[Ww]rite this to `([^`]+)`[^`]*:\s*$", above)
    return found[1] if found else None


def with_short_budget(text: str, budget: str) -> str:
    result, count = re.subn(r"^budget: .*$", f"budget: {budget}", text, flags=re.MULTILINE)
    assert count == 1
    return result


def shell(text: str, directory: Path, variables: Mapping[str, str]) -> str:
    """What a block prints; fails with the first of its commands that fails."""
    (directory / "bin").mkdir(exist_ok=True)
    command = directory / "bin" / "shapewright"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m shapewright "$@"\n')
    command.chmod(0o755)
    own = {**environment(directory / "data"), "PATH": f"{directory / 'bin'}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", text],
        check=False, cwd=directory, env=own, capture_output=True, text=True, timeout=STEP_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.soak
def test_a_pytorch_model_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHAPEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    names: dict[str, Any] = {}
    for block in blocks(TUTORIAL / "pytorch-model.md"):
        assert block.language == "python"
        exec(compile(without_search(block.text), str(block), "exec"), names)
    report = names["sw"].torch.report().to_json()
    assert [each["workload"].split("(")[0] for each in report["replaced"]] == ["dense", "dense", "layer_norm"]


@pytest.fixture
def service(start: Callable[..., Up]) -> Up:
    return start("--devices", "1")


def followed(page: Path, up: Up, directory: Path) -> tuple[str, dict[str, Any]]:
    """What the last command of a tutorial prints, and the names of its Python, with ``up`` as its service."""
    printed, key, names = "", "", dict[str, Any]()
    given = {"SHAPEWRIGHT_URL": up.url, "SHAPEWRIGHT_DATA_DIR": str(up.data_dir)}
    for block in blocks(page):
        name = file_of(block)
        if name:
            short = with_short_budget(block.text, SHORT) if block.language == "yaml" else block.text
            (directory / name).write_text(short)
        elif block.language == "python":
            exec(compile(block.text, str(block), "exec"), names)
        elif block.text != "shapewright up\n":  # that one is running, at a port of its own
            text = block.text.replace("http://127.0.0.1:8321", up.url.rstrip("/"))
            text = text.replace("~/.shapewright", str(up.data_dir))
            key += "".join(re.findall(r"^key=.*\n", text, re.MULTILINE))
            printed = shell(key + text.replace("curl ", "curl --silent --fail "), directory, given)
    return printed, names


@pytest.mark.soak
def test_a_first_job(service: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed, names = followed(TUTORIAL / "first-job.md", service, tmp_path)
    assert names["out"].any()
    assert [job["name"] for job in json.loads(printed)["items"]] == ["my dense layer"] * 2


@pytest.mark.soak
@pytest.mark.skipif(not all(map(shutil.which, ("cmake", "pkg-config"))), reason="cmake or pkg-config is not here")
def test_a_build_in_c(service: Up, tmp_path: Path) -> None:
    printed, _ = followed(TUTORIAL / "c-build.md", service, tmp_path)
    assert printed == "6\n"
