"""TensorIR for products of rows with the matrices of their groups: the engine's loops, group by group.

    sort the rows by group                          their numbers alone: a counting sort
    for t in parallel(threads):
      for group in groups:
        for block in row blocks of mb tiles:        of the rows of this group; the last one may be ragged
          pack the block's rows                     gathered from where they stand
          for panel of the group's matrix:
            tiles                                   written to where their rows belong

Tiles never hold rows of two groups, and nothing is computed for a group without rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.program.expr import Read
from tuner.program.task import SearchTask
from tuner.schedule.access import axes_of_read
from tuner.schedule.function import kernel_function
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import on_threads
from tuner.schedule.product.atom import imported
from tuner.schedule.product.context import EmitContext, context_of
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import Place
from tuner.schedule.rules.moe.pattern import Grouped, grouped_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import workspace


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    grouped = grouped_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        context = context_of(task, grouped.product, kernel, function)
        with imported(context.words.atom), _sorted_rows(grouped, context) as (order, ends):
            on_threads(task.threads, lambda thread: _groups(grouped, context, order, ends, thread))
    return function.get()


@dataclass(frozen=True)
class _Group:
    """The rows of one group: those that ``order`` names from ``first`` on."""

    number: TirExpr
    order: TirExpr
    first: TirExpr

    def row(self, row: TirExpr) -> TirExpr:
        """Where a row of the group stands among all."""
        return I.Bind(self.order[self.first + row])


@dataclass(frozen=True)
class _Rows(MatrixRows):
    group: _Group = field(kw_only=True)

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return super().row(context, self.group.row(row))


@dataclass(frozen=True)
class _Columns(MatrixColumns):
    """The matrix of a group."""

    group: _Group = field(kw_only=True)

    def first_panel(self, context: EmitContext) -> TirExpr:
        return self.group.number * context.panels


@dataclass(frozen=True)
class _Result(MatrixResult):
    """Results in the rows of a group. Stages behind them may read what the group has."""

    group: _Group = field(kw_only=True)

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return super().row(context, self.group.row(row))

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        if read.indices and isinstance(read.indices[0], Read):
            return context.buffers[read.tensor], (self.group.number,), len(read.indices) > 1
        return super().read(context, read, self.group.row(row) if self.m in axes_of_read(read) else row)


def _groups(grouped: Grouped, context: EmitContext, order: TirExpr, ends: TirExpr, thread: TirExpr) -> None:
    """What one thread does of all groups."""
    with I.serial(i64(0), i64(grouped.groups)) as number:
        before = ends[tirx.max(number - i64(1), i64(0))]
        first = I.Bind(tirx.Select(number > i64(0), before, i64(0)))
        count = I.Bind(ends[number] - first)
        with I.If(count > i64(0)), I.Then():
            Nest(_of_group(context, _Group(number, order, first), count)).share(thread)


def _of_group(context: EmitContext, group: _Group, count: TirExpr) -> EmitContext:
    left, right, result = (vars(part) for part in (context.left, context.right, context.result))
    return replace(
        context,
        extent={**context.extent, "m": count},
        left=_Rows(**left, group=group),
        right=_Columns(**right, group=group),
        result=_Result(**result, group=group),
    )


@contextmanager
def _sorted_rows(grouped: Grouped, context: EmitContext) -> Iterator[tuple[TirExpr, TirExpr]]:
    """The numbers of all rows, those of one group together and in order; and by group where its rows end."""
    rows, groups = context.extent["m"], grouped.groups
    index = context.buffers[grouped.index]

    def group_of(row: TirExpr) -> TirExpr:
        element = tirx.Cast("int64", index[(row,)])
        return I.Bind(tirx.max(tirx.min(element, i64(groups - 1)), i64(0)))

    with workspace((rows + i64(1),), "int64") as order, workspace((i64(groups),), "int64") as ends:
        with I.serial(i64(0), i64(groups)) as group:
            I.buffer_store(ends, i64(0), [group])
        with I.serial(i64(0), rows) as row:
            group = group_of(row)
            I.buffer_store(ends, ends[group] + i64(1), [group])
        # Where each group begins, from how many rows the groups before it have.
        total = I.alloc_buffer((1,), "int64")
        I.buffer_store(total, i64(0), [i64(0)])
        with I.serial(i64(0), i64(groups)) as group:
            count = I.alloc_buffer((1,), "int64")
            I.buffer_store(count, ends[group], [i64(0)])
            I.buffer_store(ends, total[i64(0)], [group])
            I.buffer_store(total, total[i64(0)] + count[i64(0)], [i64(0)])
        with I.serial(i64(0), rows) as row:
            group = group_of(row)
            I.buffer_store(order, row, [ends[group]])
            I.buffer_store(ends, ends[group] + i64(1), [group])
        yield order, ends
