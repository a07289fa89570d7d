"""Reductions that leave the contiguous axis: sums of columns, products with a vector from the left, middle axes.

``out[.., n] = reduce(k, ..) f(x[.., k, .., n], ...)``, and elementwise stages on the result. Rows are read as they lie
in memory, several at a time, and added to a strip of accumulators that stays in the first cache. Axes of a
micro-kernel:

==========  ==========================================================================================================
``rows``    rows that are added at a time: as many streams from memory, and accumulators are loaded and stored once
            for all of them
``strip``   vectors of accumulators: the columns of a tile
==========  ==========================================================================================================

Threads share the strips. No choice depends on a shape that is dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Read, axes_of, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import lies_along, looked_up, one_reduction, reduced_order, stride, values
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.estimates import Floats, LoopRule, bytes_at, lanes_for, roofline, thread_speedup, volume
from tuner.schedule.loops.reading import Index, Known, Nest, Reader, addition, start_value, write_outputs
from tuner.schedule.loops.shares import Share, in_groups_to, in_shares, over, position_of, product_of
from tuner.schedule.rule import Extents, need, pattern
from tuner.schedule.space import Axis, MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import workspace

ROWS, STRIPS = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)
GROUP_CYCLES = 12.0
"""Cycles of a group of rows: its loop, and a masked vector at the end."""
TURN_CYCLES = 2.0
"""Cycles of a vector of accumulators: loaded and stored once for each group."""


@dataclass(frozen=True)
class ColumnProgram:
    """``rows``: the reduced axes as they lie in the tensor that has most of them, outermost first; ``after``:
    elementwise stages on the result of ``stage``."""

    stage: Stage
    after: tuple[Stage, ...]
    rows: tuple[str, ...]

    @property
    def column(self) -> str:
        return self.stage.axes[-1]

    @property
    def reads(self) -> list[Read]:
        """Every distinct read."""
        return list(dict.fromkeys(read for stage in (self.stage, *self.after) for read in reads(stage.body)))

    def lanes(self, task: SearchTask) -> int:
        """Elements of a vector."""
        types = task.workload.element_types
        return lanes_for(task, [types.reduced_type(self.stage), *(types.type_of(each.body) for each in self.after)])


@pattern
def match(workload: Workload) -> ColumnProgram:
    """The reduction of a workload along columns."""
    stage, after = one_reduction(workload)
    program = ColumnProgram(stage, after, reduced_order(stage))
    need(not workload.padding, "a tensor is padded")
    every, column = {*stage.axes, *program.rows}, program.column
    has_all = any(every <= axes_of(read) and stride(read, column) == 1 for read in reads(stage.body))
    need(has_all, f"no tensor lies along {column} and has all axes: it is of rows, or a product")
    for read in program.reads:
        need(lies_along(read, column), f"{read.tensor} does not lie along {column}")
    return program


class ColumnReduction(LoopRule[ColumnProgram]):
    """See the module's text for the axes."""

    name = "column_reduction"
    find = staticmethod(match)

    def named(self, workload: Workload, found: ColumnProgram) -> Mapping[str, str]:
        outer = dict.fromkeys(workload.program.axes, "outer")
        return outer | dict.fromkeys(found.rows, "row") | {found.column: "column"}

    def workspace_bytes(self, task: SearchTask) -> int:
        return task.threads * STRIPS[-1] * task.known_target.hardware.vector_bytes

    def axes(self, task: SearchTask, found: ColumnProgram) -> tuple[Axis, ...]:
        columns, lanes = task.workload.sizes[found.column].constant, found.lanes(task)
        strips = tuple(strip for strip in STRIPS if columns is None or strip == 1 or strip * lanes < 4 * columns)
        return Axis("rows", "rows that are added at a time", ROWS), Axis("strip", "vectors of accumulators", strips)

    def wanted(self, task: SearchTask, found: ColumnProgram) -> Iterable[Mapping[str, int]]:
        # The longer the streams, the better; but each thread needs strips of its own.
        return ({"rows": 8, "strip": STRIPS[-1] if task.threads == 1 else 16},)

    def cycles(self, task: SearchTask, found: ColumnProgram, kernel: MicroKernel, extents: Extents) -> Floats:
        lanes, (*outer_axes, column) = found.lanes(task), found.stage.axes
        columns, outer, rows = (volume(axes, extents) for axes in ((column,), outer_axes, found.rows))
        strips = outer * np.ceil(columns / (lanes * kernel["strip"]))
        each = 1.0 + task.rates.operation * (len(list(values(found.stage.body))) - 1)
        vectors = outer * np.ceil(columns / lanes)
        work = vectors * rows * (each + TURN_CYCLES / kernel["rows"]) + strips * rows / kernel["rows"] * GROUP_CYCLES
        # A strip that is narrower than a page leaves the prefetchers of memory little to go by.
        narrow = 1.0 + 8.0 / kernel["strip"] * (columns > lanes * kernel["strip"])
        return roofline(task, work, _moved(task, found, extents), thread_speedup(strips, task.threads), narrow)

    def sizes(self, task: SearchTask, found: ColumnProgram, extents: Extents) -> list[Floats]:
        columns, elements = (volume(axes, extents) for axes in ((found.column,), (*found.stage.axes, *found.rows)))
        logarithms = [np.log2(size + 1) for size in (elements, _moved(task, found, extents), columns)]
        return [*logarithms, columns % found.lanes(task)]

    def write(self, task: SearchTask, found: ColumnProgram, kernel: MicroKernel, function: KernelFunction) -> None:
        _Strips(task, found, kernel, function).emit()


def _moved(task: SearchTask, found: ColumnProgram, extents: Extents) -> Floats:
    places = [(read.tensor, axes_of(read)) for read in found.reads]
    places += [(output.name, frozenset(found.stage.axes)) for output in task.workload.outputs]
    return bytes_at(places, task.workload, extents)


class _Strips(Nest):
    """Writes the loop over strips of columns; each thread has a contiguous share of them."""

    def __init__(
        self, task: SearchTask, found: ColumnProgram, kernel: MicroKernel, function: KernelFunction
    ) -> None:  # fmt: skip
        super().__init__(task, kernel, function, found.lanes(task))
        self.program, self.stage, self.column = found, found.stage, found.column
        self.computed, self.width = self.types.reduced_type(self.stage), i64(kernel["strip"] * self.lanes)

    def emit(self) -> None:
        counts = {axis: self.extents[axis] for axis in self.stage.axes}
        counts[self.column] = tirx.truncdiv(counts[self.column] + self.width - i64(1), self.width)

        def strips(share: Share) -> None:
            with workspace([self.width], self.computed) as totals, I.serial(*share) as number:
                index = position_of(number, counts)
                self._strip(totals, {**index, self.column: I.Bind(index[self.column] * self.width)})

        in_shares(product_of(counts), self.threads, strips)

    def _strip(self, totals: TirExpr, index: Index) -> None:
        """``totals``: what is accumulated of the columns from ``index`` on."""
        zero = start_value(self.stage, self.computed, self.lanes)

        def clear(column: TirExpr, limit: TirExpr | None) -> None:
            I.buffer_store(totals, zero, [self.vectors.ramp(column)])

        def finish(column: TirExpr, limit: TirExpr | None) -> None:
            total = totals[self.vectors.ramp(column)]
            write_outputs((self.stage, *self.program.after), total, self._at(index, column, limit))

        self._columns(index, clear)
        *outer, last = self.program.rows
        over(outer, self.spans, lambda at: self._rows(totals, last, at), index)
        self._columns(index, finish)

    def _columns(self, index: Index, visit: Callable[[TirExpr, TirExpr | None], None]) -> None:
        """The vectors of a strip, by their offset from its start; the last one may reach past the columns."""
        extent, lanes = self.extents[self.column], i64(self.lanes)
        size = tirx.min(extent - index[self.column], self.width)
        whole = I.Bind(tirx.truncdiv(size, lanes))
        with I.serial(i64(0), whole) as number:
            visit(number * lanes, None)
        with I.If(whole * lanes < size), I.Then():
            visit(whole * lanes, extent)

    def _rows(self, totals: TirExpr, axis: str, index: Index) -> None:
        def rows(start: TirExpr, count: int) -> None:
            self._add(totals, [{**index, axis: start + i64(row)} for row in range(count)])

        in_groups_to(self.extents[axis], self.kernel["rows"], rows)

    def _add(self, totals: TirExpr, rows: Sequence[Index]) -> None:
        known = [self._known(row) for row in rows]

        def add(column: TirExpr, limit: TirExpr | None) -> None:
            total = bound(totals[self.vectors.ramp(column)])
            for row, held in zip(rows, known, strict=True):
                evaluator = self._at(row, column, limit).evaluator(held)
                total = bound(addition(self.stage, self.computed, evaluator)(total))
            I.buffer_store(totals, total, [self.vectors.ramp(column)])

        self._columns(rows[0], add)

    def _known(self, row: Index) -> Known:
        """The reads that are the same for all columns."""
        chosen = [read for read in reads(self.stage.body) if self.column not in axes_of(read)]
        inner = {read for outer in chosen for read in looked_up(outer)}
        reader = self.reader(row)
        return {read: reader.read(read) for read in dict.fromkeys(chosen) if read not in inner}

    def _at(self, index: Index, column: TirExpr, limit: TirExpr | None) -> Reader:
        """A vector of columns, at an offset from the strip's start."""
        return self.reader({**index, self.column: index[self.column] + column}, self.lanes, self.column, limit)
