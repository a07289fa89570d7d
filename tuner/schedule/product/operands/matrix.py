"""Matrices as they lie, or batches of them, each index one axis of the program."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.program.expr import Axis, Read
from tuner.program.notation import Stage
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.operand import Left, Place, Result, Right
from tuner.schedule.tir import TirExpr


@dataclass(frozen=True)
class MatrixRows(Left):
    """``tensor[(b,) m, k]``."""

    tensor: str
    dtype: str
    is_packed_ahead = False

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), row)


@dataclass(frozen=True)
class MatrixColumns(Right):
    """``tensor[(b,) k, n]`` if it lies along n, else ``tensor[(b,) n, k]``; or panels, if packed before all calls."""

    tensor: str
    dtype: str
    lies_along_n: bool
    is_packed_ahead: bool

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        return context.buffers[self.tensor], (*_batch(context), step)

    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.tensor]


@dataclass(frozen=True)
class MatrixResult(Result):
    """``tensor[(b,) m, n]``; ``axes``: the program's axis of each role."""

    tensor: str
    dtype: str
    computed: str
    epilogue: tuple[Stage, ...]
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
