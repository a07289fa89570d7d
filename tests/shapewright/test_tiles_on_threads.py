"""Each thread configures the tiles that it multiplies in, and gives them back, whoever's it is: TVM's, PyTorch's, a C
library's, with several callers, in a process that was forked. Tiles that a thread has not configured are wrong
(emulated_amx.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shapewright.c_library import build
from shapewright.library import library_of
from shapewright.torch import native as torchs
from tests.compiled import loaded, shortest
from tests.shapewright.c_library.calling import CLibrary
from tests.shares import diagonal
from tests.tuner.schedule.product.emulated_amx import emulated
from tuner.library.build import build_library
from tuner.library.codegen import compile_candidate
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.measure.tensors import tensor_of
from tuner.measure.verification.verify import Case
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.schedule import emit, rules_of
from tuner.schedule.product import atoms
from tuner.schedule.space import MicroKernel

THREADS = 2
CALLS = 10
CALLERS = 3
Call = Callable[[Sequence[Any]], object]
PRODUCT = {"op": "batch_matmul_nt", "args": {"b": 3, "m": "T", "n": 37, "k": 71}, "dtype": "bfloat16"}
ATTENTION = {"op": "attention", "args": {"b": 2, "h": 1, "i": "T", "j": "T", "d": 20}, "dtype": "bfloat16"}
PROGRAMS = {"product": PRODUCT, "attention": ATTENTION}


@pytest.fixture(autouse=True)
def _with_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = [atom for atom in atoms.ATOMS if atom.unit is None]
    monkeypatch.setattr(atoms, "ATOMS", [*vectors, *emulated(native().hardware.lanes())])


def searched(program: str) -> tuple[SearchTask, MicroKernel]:
    workload = workload_from_json(PROGRAMS[program])
    variables = tuple(ShapeVar(name, range(1, 129)) for name in sorted(workload.variables))
    task = SearchTask(workload, shape_vars=variables, target=native(), threads=THREADS)
    space, random = rules_of(task)[0].space(task), np.random.default_rng(0)
    depth = max(atom.depth for atom in atoms.atoms_of("bfloat16", "bfloat16", "float32", native().hardware).values())
    drawn = (space.sample(random) for _ in range(4000))
    return task, shortest(kernel for kernel in drawn if kernel.get("group") == depth)


def tvms(task: SearchTask, kernel: MicroKernel, _: Path) -> Call:
    return loaded(compile_candidate(task, kernel).binary)


def pytorchs(task: SearchTask, kernel: MicroKernel, folder: Path) -> Call:
    library = library_of(build_library(Dispatcher(task, (kernel,), 0, Leaf(0)), "job-1").files, folder)
    if not torchs.share_threads(library):
        pytest.skip("there is no compiler here, or PyTorch has other threads than OpenMP's")
    return lambda operands: library(*map(tensor_of, operands))


def of_c(task: SearchTask, kernel: MicroKernel, folder: Path) -> Call:
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("there is no C compiler here")
    library = CLibrary(build_library(Dispatcher(task, (kernel,), 0, Leaf(0)), "job-1").files, folder / "c")

    def call(operands: Sequence[Any]) -> None:
        rows = operands[0].shape[-2]
        assert library.call(operands, dict.fromkeys(task.workload.symbols, rows)) == 0, library.error()

    return call


@pytest.mark.parametrize("program", PROGRAMS)
def test_tiles_are_configured_in_the_loop_over_threads(program: str) -> None:
    """Whichever thread takes its parts."""
    task, kernel = searched(program)
    text = str(emit(task, kernel, "kernel_0").script())
    loop, begin, end = (text.index(each) for each in ("T.parallel(", "emulated_begin", "emulated_end"))
    assert loop < begin < end
    assert text.count("emulated_begin") == text.count("emulated_end") == text.count("T.parallel(") == 1


POOLS = {"TVM's": tvms, "OpenMP's": pytorchs, "a C library's": of_c}


@pytest.mark.parametrize(("pool", "program"), diagonal(POOLS, PROGRAMS, every=2))
def test_every_thread_has_tiles(pool: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "verify", lambda *_: None)  # by a device, whose process has no such instructions
    task, kernel = searched(program)
    call = POOLS[pool](task, kernel, tmp_path)
    case = Case.of(task.workload, dict.fromkeys(task.workload.symbols, 97))

    def problem(_: int = 0) -> str | None:
        return case.check(list(case.inputs), call)

    assert {problem() for _ in range(CALLS)} == {None}
    with ThreadPoolExecutor(CALLERS) as callers:
        assert list(callers.map(problem, range(2 * CALLERS))) == [None] * 2 * CALLERS
    # PyTorch's and TVM's own threads are gone in a process that was forked.
    if pool == "a C library's":
        child = os.fork()
        if child == 0:
            os._exit(0 if problem() is None else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert problem() is None
