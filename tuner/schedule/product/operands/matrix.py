"""Operands and results that lie as matrices, or in tensors whose dims are merged to such: nothing is moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tuner.program.language.expr import Axis, Read
from tuner.program.language.workload import Workload
from tuner.schedule.layout import PackLayout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.context import Chunk, EmitContext, by_role
from tuner.schedule.product.match.factors import Factors
from tuner.schedule.product.product import Left, Place, Result, Right, ceil_div
from tuner.schedule.product.readers import PackedRows, RowReader
from tuner.schedule.product.sources import Extent
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import constant

if TYPE_CHECKING:
    from tuner.schedule.product.estimate import Estimate


@dataclass(frozen=True)
class MatrixRows(Left):
    """``tensor[(b,) m, k]``."""

    tensor: str
    dtype: str
    is_packed_ahead = False

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), row)


@dataclass(frozen=True)
class KeptRows(MatrixRows):
    """Rows that the call itself keeps in memory of its own, as the elements of words. There is room for whole
    multiplications, behind a row and behind the rows."""

    lies_in_words = True

    def reader(self, context: EmitContext, extent: Extent, chunk: Chunk) -> RowReader:
        atom = context.words.atom
        if atom.group == 1:
            return RowReader()
        first, count = extent()
        buffer, begin = context.buffers[self.tensor], I.Bind(chunk.first * i64(atom.group))
        if context.ragged_k is not None or context.surplus(chunk):
            end = tirx.min(begin + chunk.length * i64(atom.group), context.depth)
            whole = begin + ceil_div(chunk.length, atom.steps) * i64(atom.depth)
            with I.serial(i64(0), count) as r, I.serial(end, whole) as p:
                I.buffer_store(buffer, constant(0, str(buffer.dtype), 1), [first + r, p])
        if atom.unit is None:
            return RowReader()
        # From the first row and step on.
        before = buffer.elem_offset + first * buffer.shape[-1] + begin
        own = I.decl_buffer(tuple(buffer.shape), buffer.dtype, data=buffer.data, elem_offset=bound(before))
        return PackedRows(own, first)

    def word_elements(self, context: EmitContext) -> int:
        return context.words.atom.group

    def row_stride(self, of: Estimate) -> Floats:
        return np.where(of.words.is_unit, 0.0, super().row_stride(of))


@dataclass(frozen=True)
class MatrixColumns(Right):
    """``tensor[(b,) k, n]`` if it lies along n, else ``tensor[(b,) n, k]``; or panels, if packed before all calls."""

    tensor: str
    dtype: str
    lies_along_n: bool
    is_packed_ahead: bool

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), step)

    def layouts(self, workload: Workload, panels: PackLayout) -> Mapping[str, PackLayout]:
        if not self.is_packed_ahead:
            return {}
        dims = tuple((dim.constant or 0,) for dim in workload.tensors[self.tensor].dims)
        return {self.tensor: replace(panels, dims=dims, rows=(1,), steps=(0,)) if self.lies_along_n else panels}

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]


@dataclass(frozen=True)
class MatrixResult(Result):
    """``tensor[(b,) m, n]``; ``axes``: the program's axis of each role."""

    tensor: str
    m: str
    n: str
    batch: str | None = None

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), row)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        index = {self.m: row} | ({self.batch: context.batch} if self.batch else {})
        axes = [axis.name for axis in read.indices if isinstance(axis, Axis)]
        return context.buffers[read.tensor], tuple(index[axis] for axis in axes if axis != self.n), self.n in axes


def _batch(context: EmitContext) -> tuple[TirExpr, ...]:
    return () if context.batch is None else (context.batch,)


@dataclass(frozen=True)
class ViewedRows(Factors, Left):
    """Rows of a tensor that lies along k."""

    is_packed_ahead = False
    is_viewed = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.in_view(f"{self.tensor} left", m=row)


@dataclass(frozen=True)
class ViewedColumns(Factors, Right):
    """Columns of a tensor whose last dims are k and n, in either order."""

    is_packed_ahead = False
    is_viewed = True

    @property
    def lies_along_n(self) -> bool:  # type: ignore[override]
        return self.roles[-1] == "n"

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        return context.in_view(f"{self.tensor} right", k=step, n=step)


@dataclass(frozen=True)
class ViewedResult(Result):
    """Results that are written where they belong, vector by vector."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.in_view("out", m=row)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        view, values = context.parts.views[read.tensor], by_role(context.outer, m=row)
        return view.buffer, tuple(values[role] for role in view.roles if role != "n"), "n" in view.roles
