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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.program.expr import Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import lies_along, looked_up, reduced_order, stride, values
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.estimates import Floats, LoopRule, bytes_at, lanes_for, roofline, thread_speedup, volume
from tuner.schedule.loops.reading import Index, Known, Nest, Reader, write_outputs
from tuner.schedule.loops.reductions import accumulated, one_reduction, start_value
from tuner.schedule.loops.shares import Share, in_shares, over, position_of, product_of
from tuner.schedule.rule import Extents, NoMatch, matched
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import workspace

ROWS, STRIPS = (1, 2, 4, 8, 16), (1, 4, 16, 64, 256)
GROUP_CYCLES = 12.0
"""Of a group of rows: its loop, and a masked vector at the end."""
TURN_CYCLES = 2.0
"""Of a vector of accumulators: loaded and stored once for each group."""


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


@lru_cache(maxsize=1024)
def match(workload: Workload) -> ColumnProgram | NoMatch:
    """The reduction of a workload, or why it is none of columns."""
    parts = one_reduction(workload)
    if isinstance(parts, NoMatch):
        return parts
    program = ColumnProgram(*parts, reduced_order(parts[0]))
    problem = next(_problems(workload, program), None)
    return NoMatch(problem) if problem else program


def _problems(workload: Workload, program: ColumnProgram) -> Iterator[str]:
    if workload.padding:
        yield "a tensor is padded"
    every, column = {*program.stage.axes, *program.rows}, program.column
    if not any(every <= axes_of(read) and stride(read, column) == 1 for read in reads(program.stage.body)):
        yield f"no tensor lies along {column} and has all axes: it is of rows, or a product"
    yield from (f"{read.tensor} does not lie along {column}" for read in program.reads if not lies_along(read, column))


def _program_of(task: SearchTask) -> ColumnProgram:
    return matched(task.workload, match(task.workload))


def _lanes(task: SearchTask) -> int:
    program, types = _program_of(task), task.workload.element_types
    return lanes_for(task, [types.reduced_type(program.stage), *(types.type_of(stage.body) for stage in program.after)])


class ColumnReduction(LoopRule):
    """See the module's text for the axes."""

    name = "column_reduction"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        roles = dict.fromkeys(answer.rows, "row") | {answer.column: "column"}
        return {axis: roles.get(axis, "outer") for axis in workload.program.axes}

    def workspace_bytes(self, task: SearchTask) -> int:
        return task.threads * STRIPS[-1] * task.known_target.hardware.vector_bytes

    def space(self, task: SearchTask) -> SearchSpace:
        columns, lanes = task.workload.sizes[_program_of(task).column].constant, _lanes(task)
        strips = tuple(strip for strip in STRIPS if columns is None or strip == 1 or strip * lanes < 4 * columns)
        axes = (Axis("rows", "rows that are added at a time", ROWS), Axis("strip", "vectors of accumulators", strips))
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: None)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        space = self.space(task)
        # The longer the streams, the better; but each thread needs strips of its own.
        wanted = STRIPS[-1] if task.threads == 1 else 16
        strip = max(choice for choice in space.axes[1].choices if choice <= wanted)
        return space.kernel({"rows": 8, "strip": strip})

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        program, lanes = _program_of(task), _lanes(task)
        columns, outer = (volume(axes, extents) for axes in (program.stage.axes[-1:], program.stage.axes[:-1]))
        rows = volume(program.rows, extents)
        strips = outer * np.ceil(columns / (lanes * kernel["strip"]))
        each = 1.0 + task.rates.operation * (len(list(values(program.stage.body))) - 1)
        vectors = outer * np.ceil(columns / lanes)
        work = vectors * rows * (each + TURN_CYCLES / kernel["rows"]) + strips * rows / kernel["rows"] * GROUP_CYCLES
        # A strip that is narrower than a page leaves the prefetchers of memory little to go by.
        narrow = 1.0 + 8.0 / kernel["strip"] * (columns > lanes * kernel["strip"])
        return roofline(task, work, _moved(task, extents), thread_speedup(strips, task.threads), narrow)

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        program = _program_of(task)
        columns = volume((program.column,), extents)
        elements = volume((*program.stage.axes, *program.rows), extents)
        sizes = [np.log2(elements + 1), np.log2(_moved(task, extents) + 1), np.log2(columns + 1)]
        return [*sizes, columns % _lanes(task)]

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        with kernel_function(task.workload, {}, name) as function:
            _Strips(task, kernel, function).emit()
        return function.get()


def _moved(task: SearchTask, extents: Extents) -> Floats:
    program = _program_of(task)
    places = [(read.tensor, axes_of(read)) for read in program.reads]
    places += [(output.name, frozenset(program.stage.axes)) for output in task.workload.outputs]
    return bytes_at(places, task.workload, extents)


class _Strips(Nest):
    """Writes the loop over strips of columns; each thread has a contiguous share of them."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        super().__init__(task, kernel, function, _lanes(task))
        self.program = _program_of(task)
        self.stage, self.column = self.program.stage, self.program.column
        self.computed, self.width = self.types.reduced_type(self.stage), i64(kernel["strip"] * self.lanes)

    def emit(self) -> None:
        counts = {axis: self.function.extents[axis] for axis in self.stage.axes}
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
        extent, lanes = self.function.extents[self.column], i64(self.lanes)
        size = tirx.min(extent - index[self.column], self.width)
        whole = I.Bind(tirx.truncdiv(size, lanes))
        with I.serial(i64(0), whole) as number:
            visit(number * lanes, None)
        with I.If(whole * lanes < size), I.Then():
            visit(whole * lanes, extent)

    def _rows(self, totals: TirExpr, axis: str, index: Index) -> None:
        size, count = self.function.extents[axis], self.kernel["rows"]
        groups = I.Bind(tirx.truncdiv(size, i64(count)))
        with I.serial(i64(0), groups) as group:
            self._add(totals, [{**index, axis: group * i64(count) + i64(row)} for row in range(count)])
        if count > 1:
            with I.serial(groups * i64(count), size) as value:
                self._add(totals, [{**index, axis: value}])

    def _add(self, totals: TirExpr, rows: Sequence[Index]) -> None:
        known = [self._known(row) for row in rows]

        def add(column: TirExpr, limit: TirExpr | None) -> None:
            total = bound(totals[self.vectors.ramp(column)])
            for row, held in zip(rows, known, strict=True):
                evaluator = self._at(row, column, limit).evaluator(held)
                total = bound(accumulated(self.stage, self.computed, evaluator, total))
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
