"""A block of rows, walked pass by pass in vectors along the columns, one masked at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul

from tuner.program.dtypes import DTYPES
from tuner.program.expr import Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.task import SearchTask
from tuner.program.workload import Tensor
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import LINE_BYTES
from tuner.schedule.loops.reading import Index, Reader
from tuner.schedule.loops.reductions import accumulated, start_value
from tuner.schedule.loops.shares import Share, in_groups, over
from tuner.schedule.rules.rows.passes import lanes_of, row_program_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, loaded, stored, stored_type
from tuner.schedule.vector.memory import Vectors, prefetch, rotated
from tuner.schedule.vector.reducers import COMBINE


class RowContext:
    """What is the same for every block of rows. ``buffers``: operands by name, with merged dims; ``scratch``: by stage
    a workspace for its columns of one block."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        self.workload, self.kernel, self.program = task.workload, kernel, row_program_of(task.workload)
        self.frame, self.types, self.vectors = self.program.frame, self.program.types, Vectors(lanes_of(task))
        parts = self.frame.parts.items()
        merged = {axis: reduce(mul, [function.extents[part] for part in names]) for axis, names in parts}
        self.function = replace(function, extents={**function.extents, **merged})
        self.spans = {axis: (i64(0), extent) for axis, extent in self.function.extents.items()}
        self.buffers = {operand.name: self._merged(operand) for operand in task.workload.operands}
        self.scratch: dict[str, TirExpr] = {}

    def _merged(self, tensor: Tensor) -> TirExpr:
        """The buffer of an operand with the dims that are walked together as one."""
        buffer, groups = self.function.buffers[tensor.name], self.frame.groups[tensor.name]
        if all(len(group) == 1 for group in groups):
            return buffer
        shape = [reduce(mul, [buffer.shape[dim] for dim in group]) for group in groups]
        return I.decl_buffer(shape, stored_type(tensor.dtype), data=buffer.data, align=DTYPES[tensor.dtype].bytes)

    def reader(self, index: Index, lanes: int, limit: TirExpr | None = None) -> Reader:
        """Of one element, or of a vector along the columns."""
        along = self.frame.vector if lanes > 1 else None
        return Reader(self.workload, self.function, self.buffers, index, lanes, along, limit)

    def in_register(self, tensor: str, value: TirExpr) -> TirExpr:
        """A stage's value in its tensor's dtype."""
        return bound(cast(bound(value), self.types.of[tensor]))


@dataclass
class Row:
    """One row of a block: its index, its number in the block, and the values that are known of it."""

    index: Index
    number: int
    known: dict[str | Read, TirExpr] = field(default_factory=dict)


class RowBlock:
    """Writes the code of a few rows that are walked together, over a ``span`` of the outermost column axis or over all
    of it."""

    def __init__(self, context: RowContext, rows: Sequence[Index], span: Share | None = None) -> None:
        self.context, self.frame, self.passes = context, context.frame, context.program.passes
        self.rows = [Row(index, number) for number, index in enumerate(rows)]
        self.spans = context.spans if span is None else {**context.spans, self.frame.columns[0]: span}

    def emit(self) -> None:
        self.start()
        for number in range(len(self.passes)):
            for row, stage, total in self.reduced(number):
                self.know(row, stage, total)
            self.finish(number)

    def start(self) -> None:
        """What is known of the rows before the first pass."""
        for row in self.rows:
            for read in self.frame.input_reads:
                if not axes_of(read) & set(self.frame.columns):
                    row.known[read] = self.context.reader(row.index, 1).read(read)
            self._evaluate(row, self.context.program.before)

    def finish(self, number: int) -> None:
        """What is known of the rows after pass ``number``, its reductions being known."""
        for row in self.rows:
            self._evaluate(row, self.passes[number].after)

    def _evaluate(self, row: Row, stages: Sequence[Stage]) -> None:
        evaluator = self.context.reader(row.index, 1).evaluator(row.known, self.context.types)
        for stage in stages:
            self.know(row, stage, evaluator.value(stage.body))

    def know(self, row: Row, stage: Stage, value: TirExpr) -> None:
        """Keep a row's value of a stage, and store it if it is an output."""
        row.known[stage.tensor] = self.context.in_register(stage.tensor, value)
        if stage.tensor in self.context.buffers:
            self.context.reader(row.index, 1).write(stage, row.known[stage.tensor])

    # -- passes ---------------------------------------------------------------------------------------------------
    def reduced(self, number: int) -> Iterator[tuple[Row, Stage, TirExpr]]:
        """Write the loop over the columns of pass ``number``; then the total of each reduction of each row."""
        each = self.passes[number]
        unroll = self.context.kernel["unroll" if each.is_heavy else "acc"]
        sums = [(row, stage, _Totals(self.context, stage, unroll)) for row in self.rows for stage in each.reductions]
        earlier = {stage.tensor for before in self.passes[:number] for stage in before.written}
        needed = sorted(earlier & {read.tensor for stage in each.evaluated for read in reads(stage.body)})
        fetched = self._prefetched(number)

        def visit(columns: Index, limit: TirExpr | None, turn: int) -> None:
            shared: dict[Read, TirExpr] = {}
            points = [_Point(self.context, row, columns, limit, shared) for row in self.rows]
            for read in fetched if limit is None else ():
                self._prefetch(points, read, turn)
            for point in points:
                for tensor in needed:
                    point.load(tensor)
            for row, _, totals in sums:
                totals.add(points[row.number], turn)
            # What is written over a value that is kept there comes after all values.
            results = [(point, stage, point.value(stage)) for point in points for stage in each.written]
            for point, stage, value in results:
                point.store(stage, value)

        over(self.frame.columns[:-1], self.spans, lambda index: self._vectors(index, unroll, visit), {})
        for row, stage, totals in sums:
            yield row, stage, totals.total()

    def _vectors(self, index: Index, unroll: int, visit: Callable[[Index, TirExpr | None, int], None]) -> None:
        """Groups of ``unroll`` vectors, single ones, and one that is masked."""
        lanes, axis = self.context.vectors.lanes, self.frame.vector
        first, last = self.spans[axis]
        step, size = lanes * unroll, last - first
        constant_size = int(size) if isinstance(size, tirx.IntImm) else None

        def at(column: TirExpr, limit: TirExpr | None = None, turn: int = 0) -> None:
            visit({**index, axis: I.Bind(column)}, limit, turn)

        def group(start: TirExpr) -> None:
            for turn in range(unroll):
                at(start + i64(turn * lanes), None, turn)

        groups = in_groups((first, last), step, group)
        if constant_size is not None and constant_size % step == 0:
            return
        whole = I.Bind(tirx.floordiv(size, i64(lanes)))
        if unroll > 1 and (constant_size is None or constant_size // lanes % unroll):
            with I.serial(groups * i64(unroll), whole) as vector:
                at(first + vector * i64(lanes))
        if constant_size is None or constant_size % lanes:
            with I.If(whole * i64(lanes) < size), I.Then():
                at(first + whole * i64(lanes), last)

    # -- prefetches -----------------------------------------------------------------------------------------------
    def _prefetched(self, number: int) -> list[Read]:
        """The reads that pass ``number`` prefetches: those along rows and columns, in the first costly pass."""
        if not self.context.kernel["ahead"] or len(self.passes) == 1 or not self.frame.rows:
            return []
        heavy = [place for place, each in enumerate(self.passes) if each.is_heavy and place]
        if number != (heavy[0] if heavy else len(self.passes) - 1):
            return []
        streams = [read for read in self.frame.input_reads if not any(reads(index) for index in read.indices)]
        return [read for read in streams if {self.frame.rows[-1], self.frame.vector} <= axes_of(read)]

    def _prefetch(self, points: Sequence[_Point], read: Read, turn: int) -> None:
        """One request for each cache line of the next block of rows."""
        vector_bytes = self.context.vectors.lanes * DTYPES[self.context.types.of[read.tensor]].bytes
        if turn % max(1, LINE_BYTES // vector_bytes) == 0:
            for point in points:
                index, row = dict(point.reader.index), self.frame.rows[-1]
                index[row] = index[row] + i64(len(self.rows))
                prefetch(self.context.buffers[read.tensor], replace(point.reader, index=index).indices(read))


class _Point:
    """One vector of columns of one row. ``columns``: the index of its first element; ``shared``: what is the same for
    all rows of the block; ``limit``: where the row ends, if that is within the vector."""

    def __init__(
        self, context: RowContext, row: Row, columns: Index, limit: TirExpr | None, shared: dict[Read, TirExpr]
    ) -> None:
        self.context, self.row, self.columns, self.shared = context, row, columns, shared
        self.reader = context.reader({**row.index, **columns}, context.vectors.lanes, limit)
        self.evaluator = replace(self.reader.evaluator({}, context.types), read=self._read)
        self.column, self.limit = columns[context.frame.vector], limit
        self.own: dict[Read, TirExpr] = {}
        self.values: dict[str, TirExpr] = {}

    def value(self, stage: Stage) -> TirExpr:
        """A stage over columns, in its tensor's dtype: from memory if an earlier pass wrote it, else computed once."""
        if stage.tensor not in self.values:
            self.values[stage.tensor] = self.context.in_register(stage.tensor, self.evaluator.value(stage.body))
        return self.values[stage.tensor]

    def _read(self, read: Read) -> TirExpr:
        for key in (read.tensor, read):
            if key in self.row.known:
                return self.row.known[key]
        frame = self.context.frame
        stage = next((stage for stage in frame.stages if stage.tensor == read.tensor), None)
        if stage is not None:
            return self.value(stage)
        memory = self.own if axes_of(read) & set(frame.rows) else self.shared
        if read not in memory:
            memory[read] = self.reader.read(read)
        return memory[read]

    def _home(self, tensor: str) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer that holds a stage's columns, and the index of this vector in it without its last axis."""
        home, frame = self.context.program.homes[tensor], self.context.frame
        prefix = [self.columns[axis] for axis in frame.columns[:-1]]
        if home is None:
            return self.context.scratch[tensor], [i64(self.row.number), *prefix]
        return self.context.buffers[home], [*(self.row.index[axis] for axis in frame.rows), *prefix]

    def within(self, value: TirExpr, otherwise: TirExpr) -> TirExpr:
        """``value`` before the end of the row, ``otherwise`` in the lanes past it."""
        if self.limit is None:
            return value
        return bound(tirx.Select(self.context.vectors.mask(self.column, self.limit), value, otherwise))

    def load(self, tensor: str) -> None:
        """Take a stage's value from where an earlier pass left it."""
        value = I.Bind(self.context.vectors.load(*self._home(tensor), self.column, self.limit))
        self.values[tensor] = bound(loaded(value, self.context.types.of[tensor]))

    def store(self, stage: Stage, value: TirExpr) -> None:
        buffer, prefix = self._home(stage.tensor)
        result = stored(value, self.context.types.of[stage.tensor])
        self.context.vectors.store(buffer, result, prefix, self.column, self.limit)


class _Totals:
    """The vectors in which one reduction of one row is accumulated."""

    def __init__(self, context: RowContext, stage: Stage, count: int) -> None:
        self.vectors, self.stage, self.dtype = context.vectors, stage, context.types.reduced_type(stage)
        self.combine = COMBINE[str(stage.reducer)]
        self.buffers = [I.alloc_buffer((self.vectors.lanes,), self.dtype) for _ in range(count)]
        for number in range(count):
            self._put(number, start_value(stage, self.dtype, self.vectors.lanes))

    def add(self, point: _Point, number: int) -> None:
        """Combine the value at a point with accumulator ``number``."""
        before = bound(self._get(number))
        self._put(number, accumulated(self.stage, self.dtype, point.evaluator, before, point.within))

    def total(self) -> TirExpr:
        """One scalar: pairs of accumulators, then halves of the last one.

        By way of the buffers, which LLVM turns into registers: the simplifier takes exponential time over a chain of
        names that are used several times each.
        """
        count = len(self.buffers)
        while count > 1:
            for number in range(count // 2):
                self._put(number, self.combine(bound(self._get(2 * number)), bound(self._get(2 * number + 1))))
            if count % 2:
                self._put(count // 2, self._get(count - 1))
            count -= count // 2
        span = self.vectors.lanes // 2
        while span:
            whole = bound(self._get(0))
            self._put(0, self.combine(bound(rotated(whole, span)), whole))
            span //= 2
        return bound(tirx.Shuffle([bound(self._get(0))], [tirx.IntImm("int32", 0)]))

    def _put(self, number: int, value: TirExpr) -> None:
        I.buffer_store(self.buffers[number], value, [self.vectors.ramp(0)])

    def _get(self, number: int) -> TirExpr:
        return self.buffers[number][self.vectors.ramp(0)]
