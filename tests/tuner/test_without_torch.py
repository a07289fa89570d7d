"""TVM without PyTorch, shown on a module of that name which tells that it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shares import every
from tuner.measure.processes import device_environment
from tuner.without_torch import COLLECT_AFTER, ENVIRONMENT

ROOT = Path(__file__).parents[2]
TORCH = "import pathlib; pathlib.Path(__file__).with_name('asked').touch(); raise ImportError('only pretended')"
UNSET = dict.fromkeys(ENVIRONMENT, "")
COMMAND = """
from shapewright.cli import main
try:
    main(["serve", "--help"])
except SystemExit:
    import tvm
"""
BUILDER = """
from tuner.measure.builders.local import _ready, _Worker
worker = _Worker(maximum_uses=1)
worker.send(_ready)
worker.recv()
"""
LATER = "import contextlib\nwith contextlib.suppress(ImportError): import torch"


def torch_is_imported_by(statements: str, folder: Path, environment: dict[str, str]) -> bool:
    """Whether a process tries to import ``torch``."""
    (folder / "torch.py").write_text(TORCH)
    environment = {**os.environ, **environment, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", statements], env=environment, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return (folder / "asked").exists()


@pytest.mark.parametrize("environment", every(2, [ENVIRONMENT, device_environment(None)]), ids=["own", "device"])
def test_processes_that_are_asked_to_import_tvm_alone(environment: dict[str, str], tmp_path: Path) -> None:
    """And it can be imported later."""
    alone = f"import pathlib, tuner, tvm; assert not pathlib.Path({str(tmp_path / 'asked')!r}).exists()"
    assert torch_is_imported_by(f"{alone}\n{LATER}", tmp_path, environment)


@pytest.mark.parametrize("program", every(2, [COMMAND, "import worker, tvm"]), ids=["command line", "worker"])
def test_our_own_programs_import_tvm_alone(program: str, tmp_path: Path) -> None:
    assert not torch_is_imported_by(program, tmp_path, UNSET)


def test_processes_that_build_import_tvm_alone(tmp_path: Path) -> None:
    assert not torch_is_imported_by(BUILDER, tmp_path, ENVIRONMENT)


def test_a_process_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    assert torch_is_imported_by("import shapewright, tvm", tmp_path, UNSET)


@pytest.mark.parametrize("environment", [ENVIRONMENT, UNSET], ids=["own", "somebody else's"])
def test_garbage_is_looked_for_less_often_in_our_own_processes(environment: dict[str, str]) -> None:
    statements = "import gc; before = gc.get_threshold()[0]; import tuner; print(before, gc.get_threshold()[0])"
    done = subprocess.run(
        [sys.executable, "-c", statements], env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True, timeout=120, check=True,
    )  # fmt: skip
    before, after = map(int, done.stdout.split())
    assert after == (COLLECT_AFTER if environment is ENVIRONMENT else before)
    assert before < COLLECT_AFTER
