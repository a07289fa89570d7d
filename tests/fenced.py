"""Kernels called on arrays between pages that may not be touched: a read outside an array ends the process.

Run as ``python -m tests.fenced RULE``: the default kernel and some random ones of every sample of a rule, each named
before it is called, on arrays that begin right behind such a page, then on arrays that end right before one.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from tests.compiled import loaded
from tests.contract.rule_samples import SAMPLES, sample_task
from tuner.library.codegen import compile_candidate
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.verify import difference
from tuner.program.job.task import SearchTask
from tuner.program.language.arrays import NUMPY
from tuner.program.reference import expected
from tuner.program.target import native
from tuner.schedule import RULES, layouts_of
from tuner.schedule.packing import row_major
from tuner.schedule.space import MicroKernel

Array = NDArray[Any]
Place = Callable[[Array], Array]
KERNELS = 3
"""Random ones, beside the default."""
SMALL: Sequence[Mapping[str, int]] = (
    {},
    {"T": 0, "S": 0, "U": 0},
    {"T": 1, "S": 1, "U": 1},
    {"T": 7, "S": 5, "U": 2},
    {"T": 33, "S": 18, "U": 3},
)
_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _fenced(values: Array, at_end: bool) -> Array:
    """A copy of ``values`` right before a page without access, or right behind one."""
    pages = -(-max(values.nbytes, 1) // _PAGE)
    memory = np.frombuffer(mmap.mmap(-1, (pages + 2) * _PAGE), np.uint8)
    for page in (0, pages + 1):
        if _mprotect(memory.ctypes.data + page * _PAGE, _PAGE, _NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")
    start = (pages + 1) * _PAGE - values.nbytes if at_end else _PAGE
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return row_major(copy)


def before_the_fence(values: Array) -> Array:
    return _fenced(values, at_end=True)


def behind_the_fence(values: Array) -> Array:
    return _fenced(values, at_end=False)


def check(task: SearchTask, kernel: MicroKernel, binary: bytes, shapes: Sequence[Mapping[str, int]]) -> None:
    """Raises AssertionError for a wrong result."""
    call, layouts, workload = loaded(binary), layouts_of(task, kernel), task.workload
    for dims in shapes:
        inputs = random_inputs(workload, dims)
        wanted = expected(workload, inputs, dims)
        packed = [
            layouts[tensor.name].pack(array) if tensor.name in layouts else array
            for tensor, array in zip(workload.inputs, inputs, strict=True)
        ]
        for place in (before_the_fence, behind_the_fence):
            results = [np.zeros(each.value.shape, NUMPY[tensor.dtype]) for tensor, each in
                       zip(workload.outputs, wanted, strict=True)]  # fmt: skip
            outputs = [place(result) for result in results]
            call([*map(place, packed), *outputs])
            problems = [difference(output, each) for output, each in zip(outputs, wanted, strict=True)]
            assert not any(problems), (place.__name__, dict(dims), problems)


def main(name: str) -> None:
    (rule,) = (rule for rule in RULES if rule.name == name)
    for title, sample in SAMPLES[name].items():
        task = sample_task(sample, native(), threads=1)
        space, rng = rule.space(task), np.random.default_rng(0)
        default = rule.default_kernel(task)
        kernels = dict.fromkeys([default, *(space.sample(rng) for _ in range(KERNELS))])
        every = [task.workload.dims(small) for small in SMALL if set(task.workload.variables) <= set(small)]
        shapes = [dims for dims in every if min(dims.values(), default=0) >= 0 and task.workload.is_consistent(dims)]
        for kernel in kernels:
            print(f"{title}: {kernel}", flush=True)
            try:
                binary = compile_candidate(task, kernel).binary
            except tvm.error.InternalError as error:
                # TVM's simplifier fails over some kernels, which a search takes for what they are: not built.
                assert kernel != default, error
                continue
            check(task, kernel, binary, shapes)


if __name__ == "__main__":
    main(sys.argv[1])
