"""Machine code under test: loaded into this process, and compared with the reference between guard regions."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tvm

from tuner.library import codegen
from tuner.library.codegen import compile_candidate
from tuner.library.package import ENTRY
from tuner.measure.tensors import tensor_of
from tuner.measure.verification.verify import Case
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target, native
from tuner.schedule import default_kernel, layouts_of, rule_of
from tuner.schedule.space import MicroKernel

Call = Callable[[Sequence[Any]], object]
SPILL = re.compile(r"vmov[au]ps\s+%zmm\d+,.*\(%rsp\)")


@cache
def _use_two_threads() -> None:
    """Have parallel loops of this process run on two threads; TVM's own choice is half of the machine's."""
    with mock.patch.dict(os.environ, {"TVM_NUM_THREADS": "2"}):
        tvm.get_global_func("runtime.config_threadpool")(1, 2)


def loaded(binary: bytes) -> Call:
    """The entry of a binary, called with NumPy arrays."""
    _use_two_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.so"
        path.write_bytes(binary)
        module = tvm.runtime.load_module(str(path))
    entry = module[ENTRY]
    return lambda operands: entry(*map(tensor_of, operands))


# Half of what a small library costs is to optimise its dispatcher: twenty checks and messages for each operand. That
# of libraries that builders make, in processes of their own, is as it is served.
codegen.ENTRY_LEVEL = 0

MXCSR, DENORMAL = 7, 2
"""The word of an x86-64 environment of floating point, and its bit, that say that an operand was denormal."""
UNROLLED = ("mr", "nv", "ev", "ku", "acc", "rows")
"""Axes of spaces whose values are how often code is repeated, or at most 1."""


def shortest(kernels: Iterable[MicroKernel]) -> MicroKernel:
    """That of the least code: it is compiled in a fraction of the time."""
    return min(kernels, key=lambda kernel: math.prod(kernel.get(axis, 1) or 1 for axis in UNROLLED))


def small_kernel(task: SearchTask) -> MicroKernel:
    """The default kernel with as little code as its space has: for tests that need some kernel that is right.

    It is compiled in a third of the time, or less."""
    kernel = default_kernel(task)
    space = rule_of(kernel).space(task)
    values = space.values_of(kernel)
    for axis in values:
        if axis.rpartition(".")[2] in UNROLLED and values[axis] > 1:
            shorter = space.legal({**values, axis: 1})
            values = values if shorter is None else space.values_of(shorter)
    return space.kernel(values)


@lru_cache(maxsize=64)
def _case(workload: Workload, dims: tuple[tuple[str, int], ...]) -> Case:
    """Several kernels of one workload are compared with one reference."""
    return Case.of(workload, dict(dims))


def problems(task: SearchTask, kernel: MicroKernel, call: Call, shapes: Sequence[Mapping[str, int]]) -> list[str]:
    """What is wrong at these values of the symbols, on skewed arrays with a guard region around each."""
    # A stand-in for a kernel of no rule has no layouts.
    layouts = layouts_of(task, kernel) if task.workload.constants else {}
    result = []
    for dims in shapes:
        case = _case(task.workload, tuple(dims.items()))
        inputs = [
            layouts[tensor.name].pack(array) if tensor.name in layouts else array
            for tensor, array in zip(task.workload.inputs, case.inputs, strict=True)
        ]
        problem = case.check(inputs, call)
        result += [problem] if problem else []
    return result


def built_problems(task: SearchTask, kernel: MicroKernel, shapes: Sequence[Mapping[str, int]]) -> list[str]:
    """The same of a library of this one kernel."""
    return problems(task, kernel, loaded(compile_candidate(task, kernel).binary), shapes)


def computes_with_denormals(task: SearchTask, kernel: MicroKernel, dims: Mapping[str, int]) -> bool:
    """Whether a call on normal numbers computes with denormal ones: it does if it takes those that a workspace holds
    that nobody wrote. Skips where the CPU does not tell."""
    if platform.machine() != "x86_64":
        pytest.skip("only x86-64 has a flag of denormal operands that can be read")
    call, told = loaded(compile_candidate(task, kernel).binary), []

    def watched(operands: Sequence[Any]) -> object:
        _fill_workspaces_with_denormals()
        _denormal_flag(clear=True)
        answer = call(operands)
        told.append(_denormal_flag())
        return answer

    assert problems(task, kernel, watched, [dims]) == []
    return told == [True]


def _denormal_flag(*, clear: bool = False) -> bool:
    """Whether this thread computed with a denormal operand since the flag was cleared."""
    state, libm = (ctypes.c_uint32 * 8)(), ctypes.CDLL("libm.so.6")
    libm.fegetenv(state)
    is_set = bool(state[MXCSR] & DENORMAL)
    if clear:
        state[MXCSR] &= ~DENORMAL
        libm.fesetenv(state)
    return is_set


def _fill_workspaces_with_denormals(count: int = 6, size: int = 2**22) -> None:
    """TVM's pool of a thread gives out again what it got back."""
    runtime = ctypes.CDLL(str(next(Path(tvm.__file__).parent.glob("lib/libtvm_runtime.*"))))
    runtime.TVMBackendAllocWorkspace.restype = ctypes.c_void_p
    runtime.TVMBackendAllocWorkspace.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_int,
        ctypes.c_int,
    ]
    runtime.TVMBackendFreeWorkspace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
    pages = [runtime.TVMBackendAllocWorkspace(1, 0, size, 2, 32) for _ in range(count)]
    for page in pages:
        np.ctypeslib.as_array((ctypes.c_uint32 * (size // 4)).from_address(page))[:] = 1
    for page in pages:
        runtime.TVMBackendFreeWorkspace(1, 0, page)


def runnable(mcpu: str) -> Target:
    """That target; skips where this CPU lacks any of its features."""
    target = Target.from_json({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    missing = set(target.hardware.features) - set(native().hardware.features)
    if missing:
        pytest.skip(f"this CPU cannot run code for {mcpu}: it lacks {', '.join(sorted(missing))}")
    return target


def assembly(task: SearchTask, kernel: MicroKernel) -> str:
    """All of the code of a kernel."""
    (module,) = codegen.compiled(task, codegen.kernel_module(task, kernel)).mod._collect_dso_modules()
    return str(module.inspect_source("asm"))


def innermost_loops(text: str) -> Iterator[list[str]]:
    """The instructions of each loop without another one in it, in code of x86-64 or AArch64."""
    lines = _lines(text)
    for first, last in _loops(lines):
        if not any(line.startswith(".LBB") for line in lines[first:last]):
            yield lines[first:last]


def loops_over(text: str, instruction: str) -> list[list[str]]:
    """The loops that have the instruction and no smaller loop that has it, whatever other loops are in them."""
    lines = _lines(text)
    has = [each for each in _loops(lines) if any(line.startswith(instruction) for line in lines[slice(*each)])]
    inner = [each for each in has if not any(each[0] <= of[0] and of[1] <= each[1] and of != each for of in has)]
    return [lines[slice(*each)] for each in inner]


def _lines(text: str) -> list[str]:
    """Labels of blocks, and instructions."""
    return [line.strip() for line in text.splitlines() if re.match(r"\.LBB|\t[a-z]", line)]


def _loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """From behind a label to behind the last jump back to it."""
    begins, ends = dict[str, int](), dict[str, int]()
    for number, line in enumerate(lines):
        if line.startswith(".LBB"):
            begins[line.partition(":")[0]] = number
        elif (back := re.match(r"(?:b(?:\.\w+)?|cbn?z|tbn?z|j\w+)\t.*?(\.LBB\w+)$", line)) and back[1] in begins:
            ends[back[1]] = number
    for label, last in ends.items():
        yield begins[label] + 1, last + 1


def spills(task: SearchTask, kernel: MicroKernel) -> int:
    """Stores of whole vectors to the stack, in all of the code of a kernel for AVX-512."""
    return len(SPILL.findall(assembly(task, kernel)))
