"""The rule for rows that are multiplied by the matrix of their group on vector units, as in mixtures of experts:
``out[m, n] = sum(k) left[m, k] * right[index[m], n, k]``, then elementwise stages.

    sort the rows by group                          their numbers alone: a counting sort
    for t in parallel(threads):
      for group in groups:
        for block in row blocks of mb tiles:        of the rows of this group; the last one may be ragged
          pack the block's rows                     gathered from where they stand
          for panel of the group's matrix:
            tiles                                   written to where their rows belong

Tiles never hold rows of two groups, and nothing is computed for a group without rows. Micro-kernels have the axes of
the engine, of which ``rows`` is always 1: rows are gathered as they are packed. ``tb`` is 1: threads share the rows and
the panels of each group, not the groups, which differ in size. The theory is that of a batch of equal groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Axis, Read
from tuner.program.language.workload import Workload
from tuner.schedule.access import axes_of_read
from tuner.schedule.layout import Layout
from tuner.schedule.loops.shares import on_threads
from tuner.schedule.product.atoms import atoms_of
from tuner.schedule.product.axes import ROWS_PACKED
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.match import plain
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.operands.matrix import MatrixColumns, MatrixResult, MatrixRows
from tuner.schedule.product.product import DTYPE, Place
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import Extents, Mismatch, NoMatch, need, pattern
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.memory import workspace

GROUP, FIRST, ORDER = "group", "first", "order"
"""What a context has as ``outer`` while a group is multiplied: its number, and where its rows begin in the order of all
of them."""
ROW_BYTES = 8
"""The number of a row, while rows are sorted."""


# -- operands ---------------------------------------------------------------------------------------------------------
def _row(context: EmitContext, row: TirExpr) -> TirExpr:
    """Where a row of the group stands among all."""
    return I.Bind(context.outer[ORDER][context.outer[FIRST] + row])


@dataclass(frozen=True)
class GroupRows(MatrixRows):
    """The rows of a group."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return super().row(context, _row(context, row))


@dataclass(frozen=True)
class GroupColumns(MatrixColumns):
    """The matrix of a group."""

    def first_panel(self, context: EmitContext) -> TirExpr:
        return context.outer[GROUP] * context.packed_panels


@dataclass(frozen=True)
class GroupResult(MatrixResult):
    """Results in the rows of a group. Stages behind them may read what the group has."""

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return super().row(context, _row(context, row))

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        if read.indices and isinstance(read.indices[0], Read):
            return context.buffers[read.tensor], (context.outer[GROUP],), len(read.indices) > 1
        return super().read(context, read, _row(context, row) if self.m in axes_of_read(read) else row)


# -- the pattern ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True, eq=False)
class Grouped(plain.MatrixProduct[GroupColumns]):
    """The product of one group. The right operand holds a matrix for each of ``groups``; ``index`` gives each row its
    group."""

    index: str
    groups: int

    def by_role(self, extents: Extents) -> Extents:
        """Extents by role, as if all groups that there are rows for were of one size: a batch of them."""
        sizes = super().by_role(extents)
        rows = np.asarray(sizes["m"], np.float64)
        groups = np.maximum(np.minimum(rows, self.groups), 1)
        return {"b": groups, **sizes, "m": rows / groups}

    def is_of_group(self, workload: Workload, read: Read) -> bool:
        """Whether it reads what a row's group has: ``tensor[index[m], n]``, or ``tensor[index[m]]``."""
        first, *rest = read.indices or (None,)
        dims = tuple(dim.constant for dim in workload.tensors[read.tensor].dims)
        shape = (self.groups, workload.sizes[self.axes["n"]].constant)
        is_plain = first == Read(self.index, (Axis(self.axes["m"]),)) and rest in ([], [Axis(self.axes["n"])])
        return is_plain and dims == shape[: len(dims)] and read.tensor not in workload.program.stage


@pattern
def match(workload: Workload) -> Grouped:
    """The product that a workload is."""
    first, *rest = workload.program.stages
    for left, right in plain.operands_of(first, "the first stage"):
        (m, n), (k,) = map(Axis, first.axes), map(Axis, first.reduce_axes)
        match right.indices:
            case (Read(tensor=index, indices=(row,)), *others) if row == m and others == [n, k]:
                if left.indices == (m, k):
                    break
    else:
        raise Mismatch("the operands are not [m, k] and [index[m], n, k]")
    x, y = left.tensor, right.tensor
    dims = [dim.constant for dim in workload.tensors[y].dims]
    is_weight = y in workload.constants and x not in workload.constants and x != y
    need(is_weight, f"{y} is not constant, or {x} is")
    need(None not in dims, f"the dims of {y} depend on shape variables")
    plain.need_whole(workload, {x: (m.name, k.name), y: (n.name, k.name), index: (m.name,)})
    need(not workload.padding, "a tensor is padded")
    plain.need_dtypes(tensor for name, tensor in workload.tensors.items() if name != index)
    dtypes = workload.tensors[x].dtype, workload.tensors[y].dtype
    columns = GroupColumns(y, dtypes[1], lies_along_n=False, is_packed_ahead=True)
    product = plain.matrix_product(workload, first, x, columns, rest, partial(atoms_of, *dtypes, DTYPE))
    own = {"left": GroupRows(**vars(product.left)), "result": GroupResult(**vars(product.result))}
    grouped = Grouped(**{**vars(product), **own}, index=index, groups=dims[0] or 0)
    plain.need_fma(grouped)
    plain.need_chain(workload, first, rest, (x, y), lambda read: grouped.is_of_group(workload, read))
    return grouped


# -- the rule ---------------------------------------------------------------------------------------------------------
class Moe(ProductRule[Grouped]):
    """See the module's text."""

    name = "x86_grouped"
    rows = (ROWS_PACKED,)
    splits_k = False

    def find(self, workload: Workload) -> Grouped | NoMatch:
        return match(workload)

    def workspace_bytes(self, task: SearchTask) -> int:
        rows = task.workload.axis_sizes(task.largest_dims)[self.product(task.workload).axes["m"]]
        return ROW_BYTES * (rows + 1)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        right = self.product(task.workload).right.tensor
        dims = tuple((dim.constant or 0,) for dim in task.workload.tensors[right].dims)
        return {right: replace(self.panels(task, kernel), dims=dims, batch=(0,), rows=(1,), steps=(2,))}

    def write(self, context: EmitContext) -> None:
        grouped = self.product(context.task.workload)
        with _sorted_rows(grouped, context) as (order, ends):

            def share(thread: TirExpr) -> None:
                with I.serial(i64(0), i64(grouped.groups)) as number:
                    before = ends[tirx.max(number - i64(1), i64(0))]
                    first = I.Bind(tirx.Select(number > i64(0), before, i64(0)))
                    count = I.Bind(ends[number] - first)
                    with I.If(count > i64(0)), I.Then():
                        outer, extent = {GROUP: number, FIRST: first, ORDER: order}, {**context.extent, "m": count}
                        Nest(replace(context, extent=extent, outer=outer)).share(thread)

            on_threads(context.task.threads, share)


# -- code -------------------------------------------------------------------------------------------------------------
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
