"""The examples, each run as its text says, at small sizes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from shapewright.c_library.project import write_project
from tests.shapewright.c_library.calling import files_of
from tuner.program.job.documents import read_yaml
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_S, TUNE_S = 250, 280


def run(*line: object, timeout: float = RUN_S, **environment: str) -> str:
    root = {"PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))}
    command = [str(part) for part in line]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=timeout, env=os.environ | root | environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.soak
def test_a_program_of_ones_own(tmp_path: Path) -> None:
    line = (sys.executable, "-m", "examples.own_program", "--width", 65, "--rows", 9, "--trials", 2)
    printed = run(*line, SHAPEWRIGHT_DATA_DIR=str(tmp_path))
    assert printed.count("largest difference to NumPy") == 4
    assert "19 rows" in printed


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pull layer.yaml --format c` writes, of the kernel that is right everywhere."""
    directory = tmp_path_factory.mktemp("c") / "layer"
    job = parse_job(read_yaml((EXAMPLES / "c_program" / "layer.yaml").read_bytes()))
    (task,) = job.tasks
    files: Mapping[str, bytes] = files_of(SearchTask(task.workload, None, task.shape_vars, target=native()))
    write_project(files, directory, "layer")
    return directory


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not here")
def test_a_c_program_with_cmake(layer: Path, tmp_path: Path) -> None:
    run("cmake", "-S", EXAMPLES / "c_program", "-B", tmp_path / "build", f"-DLAYER={layer}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build" / "program", 1, 37, 200).count("largest difference") == 3


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("pkg-config") is None or shutil.which("make") is None, reason="make is not here")
def test_a_c_program_with_make(layer: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "c_program", tmp_path / "program")
    run("make", "-C", tmp_path / "program", f"LAYER={layer}", "CFLAGS=-O2 -Wall -Wextra -Werror")
    assert "37 rows" in run(tmp_path / "program" / "program")


@pytest.mark.soak
@pytest.mark.timeout(2 * TUNE_S)
def test_bert_from_end_to_end(tmp_path: Path) -> None:
    line = (sys.executable, "-m", "examples.bert_end_to_end", "--trials", 0, "--seconds", 60, "--rest", "eager")
    printed = run(*line, timeout=2 * TUNE_S, SHAPEWRIGHT_DATA_DIR=str(tmp_path))
    assert "length  eager ms  tuned ms" in printed
    assert "0 parts" not in printed


@pytest.mark.soak
@pytest.mark.timeout(4 * TUNE_S)
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not here: the extra zoo")
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_gpt2_generates(cache: str, tmp_path: Path) -> None:
    line = (sys.executable, "-m", "examples.gpt2_generates", "--cache", cache, "--trials", 0, "--rest", "eager")
    printed = run(*line, timeout=2 * TUNE_S, SHAPEWRIGHT_DATA_DIR=str(tmp_path))
    assert "the same words" in printed
    assert "100.0% of the floating-point operations are replaced" in printed
    assert "attention(b=1, h=2, i=1," in printed, "the graph of single words"
