"""Real libraries, each of one small kernel that is right everywhere: nothing is searched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from shapewright.download import write
from shapewright.sources.libraries import load_library
from shapewright.sources.source import Match
from tests.compiled import small_kernel
from tests.conftest import MakeOnce
from tests.shapewright.torch.models import CLASSES, HEADS, INNER, WIDTH
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import MANIFEST, SEAL
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import native

SMALL = 24
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
    """A library of a small kernel, written to ``directory``."""
    save(directory, SearchTask(op, args, variables, target=native(), epilogue=epilogue, **task))
    return directory


def save_for_two_threads(directory: Path) -> Path:
    """A product of ``[M, SMALL]`` and ``[SMALL, SMALL]``, whose loops run on two threads."""
    return save_library(directory, "matmul", {"m": M, "n": SMALL, "k": SMALL}, (M,), threads=2)


def save(directory: Path, task: SearchTask) -> None:
    write(build_library(Dispatcher(task, (small_kernel(task),), 0, Leaf(0)), None).files, directory)


class OnDemand:
    """A source that has a library for every workload: built when it is first asked for, by a process of this run."""

    name = "on demand"

    def __init__(self, once: MakeOnce) -> None:
        self._once = once
        self.left_out: dict[str, str] = {}

    def folder(self, workload: Workload, threads: int = 1) -> Path:
        variables = tuple(ShapeVar(name, range(1, 33)) for name in sorted(workload.variables))
        task = SearchTask(workload, None, variables, target=native(), threads=threads)
        names = "-".join(sorted(workload.variables))
        return self._once(f"{workload.key}-{threads}-{names}", lambda folder: save(folder, task))

    def find(self, workload: Workload, threads: int) -> Match | str:
        return Match(load_library(self.folder(workload, threads)), "exact", self.name)


def altered(library: Path, directory: Path, **manifest: Any) -> Path:
    """A copy of a library whose manifest says something else, and is one of before manifests were sealed."""
    shutil.copytree(library, directory)
    data = json.loads((directory / MANIFEST).read_text())
    data.pop(SEAL, None)
    (directory / MANIFEST).write_text(json.dumps({**data, **manifest}))
    return directory
