"""Real libraries, each of the one kernel that is right everywhere: nothing is searched."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import shapewright as sw
from shapewright.download import write
from shapewright.torch import finder
from tests.shapewright.torch.models import CLASSES, HEADS, INNER, WIDTH, Encoder, words
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import MANIFEST
from tuner.program.target import native
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar
from tuner.rules import safe_kernel

M, N, B, S = (ShapeVar(name, range(1, 33)) for name in "MNBS")


def _dense(n: int, k: int, *epilogue: str) -> tuple[Any, ...]:
    return "dense", {"m": M, "n": n, "k": k}, (M,), epilogue


TASKS: dict[str, tuple[Any, ...]] = {
    "square": _dense(WIDTH, WIDTH, "bias"),
    "in-proj": _dense(3 * WIDTH, WIDTH, "bias"),
    "up": _dense(INNER, WIDTH, "bias"),
    "up-gelu": _dense(INNER, WIDTH, "bias", "gelu"),
    "down": _dense(WIDTH, INNER, "bias"),
    "head": _dense(CLASSES, WIDTH, "bias"),
    "layer-norm": ("layer_norm", {"m": M, "n": WIDTH}, (M,), ()),
    "softmax": ("softmax", {"m": M, "n": N}, (M, N), ()),
    "attention": ("attention", {"b": B, "h": HEADS, "i": S, "j": S, "d": WIDTH // HEADS}, (B, S), ()),
}


def save_library(directory: Path, op: str, args: Any, variables: Any, epilogue: Any = (), **task: Any) -> Path:
    """A library of the safe kernel, written to ``directory``."""
    save(directory, SearchTask(op, args, variables, target=native(), epilogue=epilogue, **task))
    return directory


def save(directory: Path, task: SearchTask) -> None:
    write(build_library(Dispatcher(task, (safe_kernel(task),), 0, Leaf(0)), None).files, directory)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of libraries for the models of these tests, as `pull JOB_ID -o DIR` makes one."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, task in TASKS.items():
        save_library(folder / name, *task)
    return folder


@pytest.fixture(scope="session")
def encoder_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for each workload that ``sw.extract`` finds in the encoder."""
    folder = tmp_path_factory.mktemp("encoder")
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=1, max=64)}
    for task in sw.extract(Encoder().eval(), (words(2, 7),), (dims,)):
        save(folder / task.workload.key, SearchTask(task.workload, None, task.shape_vars, target=native()))
    return folder


@pytest.fixture(autouse=True)
def quiet_process(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A data directory of the test's own, no memory of sources, one thread, and PyTorch's compiler as it starts."""
    monkeypatch.setattr(finder, "_away", {})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield
    torch.set_num_threads(threads)


def altered(library: Path, directory: Path, **manifest: Any) -> Path:
    """A copy of a library whose manifest says something else."""
    shutil.copytree(library, directory)
    data = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**data, **manifest}))
    return directory
