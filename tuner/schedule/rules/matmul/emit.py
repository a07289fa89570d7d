"""TensorIR for products of two matrices, or of batches of them, by the loops of tuner/schedule/product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.program.expr import Axis, Read
from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.product.frame import Frame
from tuner.schedule.product.match.plain import Contraction, contraction_of
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.product import group_of
from tuner.schedule.product.words import Words
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.dot_products import imported
from tuner.schedule.vector.memory import Vectors


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    contraction = contraction_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        vectors = Vectors(task.known_target.hardware.lanes())
        extent = contraction.by_role(function.extents)
        frame = MatrixFrame(task, contraction, kernel, extent, function.buffers, vectors, depth=extent["k"])
        dot = frame.words.dot
        if dot.group > 1:
            steps = tirx.floordiv(frame.depth + i64(dot.group - 1), i64(dot.group))
            frame = replace(frame, extent={**extent, "k": steps})
        with imported(dot):
            Nest(frame).body()
    return function.get()


@dataclass(frozen=True)
class MatrixFrame(Frame):
    """Operands that are matrices as they lie."""

    contraction: Contraction
    depth: TirExpr = None
    """The extent of k in elements."""

    @property
    def words(self) -> Words:
        dot = self.contraction.dots(self.task.known_target.hardware)[group_of(self.kernel)]
        return Words(dot, self.contraction.left_dtype, self.contraction.right_dtype, self.vectors)

    @property
    def ragged_k(self) -> TirExpr | None:
        depth, group = self.contraction.depth, self.words.dot.group
        is_whole = group == 1 if depth is None else depth % group == 0
        return None if is_whole else self.depth

    @property
    def out_dtype(self) -> str:
        return self.task.workload.tensors[self.contraction.out].dtype

    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.left], (*self.batch, row)

    def right_step(self, step: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.right], (*self.batch, step)

    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.out], (*self.batch, row)

    def further(self, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        index = {self.contraction.m: row} | ({self.contraction.batch: self.batch[0]} if self.contraction.batch else {})
        axes = [axis.name for axis in read.indices if isinstance(axis, Axis)]
        outer = tuple(index[axis] for axis in axes if axis != self.contraction.n)
        return self.buffers[read.tensor], outer, self.contraction.n in axes

    @property
    def packed_right(self) -> TirExpr:
        return self.buffers[self.contraction.right]
