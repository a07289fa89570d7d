"""TensorIR for products of rows with the matrices of their groups: the loops of x86_contraction, group by group.

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

from tuner.program.expr import Axis, Read
from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.intrinsics import FMA
from tuner.schedule.layout import Layout
from tuner.schedule.product.frame import Frame
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.words import Words
from tuner.schedule.rules.moe.pattern import Grouped, grouped_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.memory import Vectors, workspace


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    grouped = grouped_of(task.workload)
    with kernel_function(task.workload, layouts, name) as function:
        extent = {role: function.extents[axis] for axis, role in grouped.roles.items()}
        vectors = Vectors(task.known_target.hardware.lanes())
        frame = GroupFrame(task, grouped, kernel, extent, function.buffers, vectors)
        with _sorted_rows(frame) as (order, ends):
            if task.threads == 1:
                _groups(replace(frame, order=order), ends, i64(0))
            else:
                with I.parallel(i64(0), i64(task.threads)) as thread:
                    _groups(replace(frame, order=order), ends, thread)
    return function.get()


@dataclass(frozen=True)
class GroupFrame(Frame):
    """The rows of one group: those that ``order`` names from ``first`` on, as many as the extent of m."""

    contraction: Grouped
    order: TirExpr = field(kw_only=True, default=None)
    first: TirExpr = field(kw_only=True, default=None)
    group: TirExpr = field(kw_only=True, default=None)

    @property
    def words(self) -> Words:
        return Words(FMA, self.contraction.left_dtype, self.contraction.right_dtype, self.vectors)

    @property
    def out_dtype(self) -> str:
        return self.contraction.out_dtype

    def _row(self, row: TirExpr) -> TirExpr:
        """Where a row of the group stands among all."""
        return I.Bind(self.order[self.first + row])

    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.left], (self._row(row),)

    def right_step(self, step: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        raise NotImplementedError("the right operand is packed")

    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.out], (self._row(row),)

    def further(self, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        axes = [axis.name for axis in read.indices if isinstance(axis, Axis)]
        if read.indices and isinstance(read.indices[0], Read):
            return self.buffers[read.tensor], (self.group,), self.contraction.n in axes
        outer = (self._row(row),) if self.contraction.m in axes else ()
        return self.buffers[read.tensor], outer, self.contraction.n in axes

    @property
    def packed_right(self) -> TirExpr:
        return self.buffers[self.contraction.right]

    @property
    def first_panel(self) -> TirExpr:
        return self.group * tirx.floordiv(self.extent["n"] + i64(self.nr - 1), i64(self.nr))


def _groups(frame: GroupFrame, ends: TirExpr, thread: TirExpr) -> None:
    """What one thread does of all groups."""
    with I.serial(i64(0), i64(frame.contraction.groups)) as group:
        before = ends[tirx.max(group - i64(1), i64(0))]
        first = I.Bind(tirx.Select(group > i64(0), before, i64(0)))
        count = I.Bind(ends[group] - first)
        with I.If(count > i64(0)), I.Then():
            own = replace(frame, first=first, group=group, extent={**frame.extent, "m": count})
            Nest(own).share(thread)


@contextmanager
def _sorted_rows(frame: GroupFrame) -> Iterator[tuple[TirExpr, TirExpr]]:
    """The numbers of all rows, those of one group together and in order; and by group where its rows end."""
    rows, groups = frame.extent["m"], frame.contraction.groups
    index = frame.buffers[frame.contraction.index]

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
