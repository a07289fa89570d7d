"""Calls that contenders make: the same inputs for all, in aligned memory; and the call of a library of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapewright.download import write
from shapewright.library import Library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.measure.tensors import tensor_of
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.task import SearchTask
from tuner.program.language.arrays import NUMPY
from tuner.program.language.expr import Read
from tuner.program.language.workload import Workload
from tuner.schedule.packing import aligned
from tuner.schedule.space import MicroKernel

Array = NDArray[Any]
Shape = Mapping[str, int]
Call = Callable[[], object]
Contender = Callable[[Shape], Call]
"""The call at a shape. Raises DoesNotApply for a shape that is not served."""


class DoesNotApply(Exception):
    """A contender has no routine for the workload, or for the shape; the message says why."""


def inputs_of(workload: Workload, shape: Shape) -> list[Array]:
    """The inputs of a call at ``shape``: the same ones in every process, a constant the same at every shape."""
    dims = workload.dims(shape)
    # Aligned as PyTorch's own allocator does it: NumPy's arrays begin anywhere.
    made = map(aligned, random_inputs(workload, dims))
    arrays = {tensor.name: array for tensor, array in zip(workload.inputs, made, strict=True)}
    for read in workload.program.reads:
        sizes = workload.tensors[read.tensor].shape(dims)
        for index, size in zip(read.indices, sizes, strict=True):
            if isinstance(index, Read) and index.tensor in arrays:
                # Drawn to lie out of bounds, too, which ours clamps and others refuse.
                np.clip(arrays[index.tensor], 0, max(size - 1, 0), out=arrays[index.tensor])
    return list(arrays.values())


def outputs_of(workload: Workload, shape: Shape) -> list[Array]:
    """Room for the outputs of a call at ``shape``, aligned as the inputs are."""
    dims = workload.dims(shape)
    return [aligned(np.zeros(tensor.shape(dims), NUMPY[tensor.dtype])) for tensor in workload.outputs]


def stream_bytes(workload: Workload, shape: Shape) -> tuple[int, int]:
    dims = workload.dims(shape)
    read, written = (sum(tensor.bytes(dims) for tensor in tensors) for tensors in (workload.inputs, workload.outputs))
    return read, written


def library_call(library: Library, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
    """The call of a library of ours, constants packed for it."""
    operands: list[object] = []
    for tensor, array in zip(library.workload.operands, (*inputs, *outputs), strict=True):
        # As a user hands them over: NumPy's own arrays as they are, those of bfloat16 as tensors.
        given = tensor_of(array) if array.dtype.name == "bfloat16" else array
        operands.append(library.pack(tensor.name, array) if tensor.constant else given)
    return lambda: library(*operands)


def library_of_one(task: SearchTask, kernel: MicroKernel, folder: Path) -> Path:
    """A library of one kernel, written into ``folder``: it is right, and as fast as the kernel."""
    from tuner.library.build import build_library  # noqa: PLC0415 - TVM, once the threads are limited

    write(build_library(Dispatcher(task, (kernel,), 0, Leaf(0)), None).files, folder)
    return folder
