"""TensorIR for column reductions: a few rows at a time are added to a strip of accumulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.program.expr import Binary, Read, axes_of, reads
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.outputs import write_outputs
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share, in_shares, position_of, product_of
from tuner.schedule.rules.columns.pattern import ColumnProgram, column_program_of, lanes_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, multiply_add
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors, workspace
from tuner.schedule.vector.reducers import COMBINE, identity

Index = Mapping[str, TirExpr]


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    program = column_program_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        _Strips(task, kernel, function, program).emit()
    return function.get()


class _Strips:
    """Writes the loop over strips of columns; each thread has a contiguous share of them."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, program: ColumnProgram) -> None:
        self.task, self.workload, self.kernel, self.function, self.program = (
            task, task.workload, kernel, function, program,
        )  # fmt: skip
        self.lanes, self.vectors = lanes_of(task), Vectors(lanes_of(task))
        self.types = task.workload.element_types
        self.computed = self.types.reduced_type(program.stage)
        self.extents = function.extents

    def emit(self) -> None:
        width = i64(self.kernel["strip"] * self.lanes)
        counts = {axis: self.extents[axis] for axis in self.program.outer}
        counts[self.program.column] = tirx.truncdiv(self.extents[self.program.column] + width - i64(1), width)

        def strips(share: Share) -> None:
            with workspace([width], self.computed) as totals, I.serial(*share) as number:
                index = position_of(number, counts)
                strip = index.pop(self.program.column)
                self._strip(totals, index, I.Bind(strip * width))

        in_shares(product_of(counts), self.task.threads, strips)

    # -- one strip --------------------------------------------------------------------------------------------------
    def _strip(self, totals: TirExpr, index: Index, start: TirExpr) -> None:
        """``totals``: what is accumulated of the columns from ``start`` on."""
        zero = constant(identity(str(self.program.stage.reducer), self.computed), self.computed, self.lanes)

        def clear(column: TirExpr, limit: TirExpr | None) -> None:
            I.buffer_store(totals, zero, [self.vectors.ramp(column)])

        def finish(column: TirExpr, limit: TirExpr | None) -> None:
            reader = self._reader({**index, self.program.column: start + column}, self.lanes, limit)
            write_outputs((self.program.stage, *self.program.after), totals[self.vectors.ramp(column)], reader)

        self._columns(start, clear)
        self._rows(totals, self.program.rows, index, start)
        self._columns(start, finish)

    def _columns(self, start: TirExpr, visit: Callable[[TirExpr, TirExpr | None], None]) -> None:
        """The vectors of a strip, by their offset from ``start``; the last one may reach past the columns."""
        extent = self.extents[self.program.column]
        size = tirx.min(extent - start, i64(self.kernel["strip"] * self.lanes))
        whole = I.Bind(tirx.truncdiv(size, i64(self.lanes)))
        with I.serial(i64(0), whole) as number:
            visit(number * i64(self.lanes), None)
        with I.If(whole * i64(self.lanes) < size), I.Then():
            visit(whole * i64(self.lanes), extent)

    def _rows(self, totals: TirExpr, axes: Sequence[str], index: Index, start: TirExpr) -> None:
        """Loops over the reduced axes; the last one in groups of rows, then row by row."""
        axis, *rest = axes
        size, count = self.extents[axis], self.kernel["rows"]
        if rest:
            with I.serial(i64(0), size) as value:
                self._rows(totals, rest, {**index, axis: value}, start)
            return
        groups = I.Bind(tirx.truncdiv(size, i64(count)))
        with I.serial(i64(0), groups) as group:
            self._group(totals, [{**index, axis: group * i64(count) + i64(row)} for row in range(count)], start)
        if count > 1:
            with I.serial(groups * i64(count), size) as value:
                self._group(totals, [{**index, axis: value}], start)

    def _group(self, totals: TirExpr, rows: Sequence[Index], start: TirExpr) -> None:
        """Some rows, added to all columns of the strip."""
        known = [self._known(row) for row in rows]

        def add(column: TirExpr, limit: TirExpr | None) -> None:
            total = bound(totals[self.vectors.ramp(column)])
            for row, values in zip(rows, known, strict=True):
                total = bound(self._added(total, {**row, self.program.column: start + column}, values, limit))
            I.buffer_store(totals, total, [self.vectors.ramp(column)])

        self._columns(start, add)

    def _known(self, row: Index) -> Mapping[Read, TirExpr]:
        """The reads that are the same for all columns."""
        chosen = [read for read in reads(self.program.stage.body) if self.program.column not in axes_of(read)]
        outside = [
            read for read in chosen if not any(read in reads(index) for other in chosen for index in other.indices)
        ]
        return {read: self._reader(row, 1, None).read(read) for read in dict.fromkeys(outside)}

    def _added(self, total: TirExpr, index: Index, known: Mapping[Read, TirExpr], limit: TirExpr | None) -> TirExpr:
        stage, body = self.program.stage, self.program.stage.body
        reader = self._reader(index, self.lanes, limit)

        def read(node: Read) -> TirExpr:
            return known[node] if node in known else reader.read(node)

        evaluator = Evaluator(self.types, self.lanes, read, reader.axis, self.extents.__getitem__)
        is_float_sum = stage.reducer == "sum" and self.computed.startswith("float")
        if is_float_sum and isinstance(body, Binary) and body.operator == "*":
            left, right = (bound(evaluator.value(side, self.computed)) for side in (body.left, body.right))
            return multiply_add(left, right, total)
        return COMBINE[str(stage.reducer)](bound(evaluator.value(body, self.computed)), total)

    def _reader(self, index: Index, lanes: int, limit: TirExpr | None) -> Reader:
        along = self.program.column if lanes > 1 else None
        return Reader(self.workload, self.function, self.function.buffers, index, lanes, along, limit)
