"""What theory asks of every kind of segment: sizes, bytes and operations over the shapes of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import TRANSCENDENTAL, Binary, Call, Expr, axes_of, walk
from tuner.program.language.workload import Workload
from tuner.program.target.cuda import Gpu
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.work import Floats
from tuner.schedule.rule import Extents

FUNCTION_OPERATIONS = 16.0
"""Operations that a transcendental function counts as."""
Dims = Mapping[str, Any]
"""[shapes] of each symbol."""


class Priced(ABC):
    """A segment of a program, as theory sees it."""

    kind: ClassVar[str]

    @abstractmethod
    def seconds(
        self, gpu: Gpu, choices: Sequence[Choices], dims: Dims, extents: Extents, is_flushed: bool
    ) -> Floats:  # fmt: skip
        """[kernels, shapes], or what is broadcast to it; inf for what does not fit."""

    @abstractmethod
    def needs(self, choices: Choices, gpu: Gpu) -> str | None:
        """What a kernel needs and the hardware does not have; None where it is expected to fit."""

    @abstractmethod
    def tiles(self, choices: Choices) -> Mapping[tuple[str, ...], tuple[int, ...]]:
        """See Rule.tiles."""


def size_of(parts: Iterable[DimExpr], dims: Dims) -> Any:
    """[shapes] or a number: the product of extents."""
    total: Any = 1.0
    for part in parts:
        total = total * np.maximum(part.evaluate(dims), 0)
    return total


def operand_bytes(workload: Workload, dims: Dims) -> Any:
    """[shapes] bytes of all operands, once. Of a tensor that is longer than any axis, as a table is, as many elements
    as are read."""
    total: Any = 0.0
    for each in workload.operands:
        sizes: Iterable[DimExpr] = each.dims
        if not {name for dim in each.dims for name in dim.variables} <= dims.keys():
            read = next(read for read in workload.program.reads if read.tensor == each.name)
            sizes = (workload.sizes[axis] for axis in axes_of(read))
        total = total + size_of(sizes, dims) * DTYPES[each.dtype].bytes
    return total


def column(values: Iterable[float]) -> Floats:
    """[kernels, 1]"""
    return np.array(list(values), np.float64)[:, None]


def operations(expr: Expr) -> float:
    """Operations of an expression at one element."""
    nodes = list(walk(expr))
    called = sum(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in nodes)
    return sum(isinstance(node, Binary | Call) for node in nodes) + (FUNCTION_OPERATIONS - 1) * called


def seconds_of(gpu: Gpu, operations: Any) -> Any:
    """What an SM takes for so many operations, one on each lane in a cycle."""
    return operations / (gpu.architecture.fma_lanes * gpu.clock_mhz * 1e6)
