"""TensorIR for row reductions: loops over blocks of rows, each walked pass by pass in vectors along the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import mul

from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Read, axes_of, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Tensor
from tuner.schedule.access import looked_up
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import LINE_BYTES
from tuner.schedule.loops.reading import NOTHING, Accumulators, Index, Nest, in_register, kept_as
from tuner.schedule.loops.shares import (
    Share,
    in_groups,
    in_groups_and_rest,
    in_split,
    number_of,
    on_threads,
    over,
    product_of,
    share_of,
)
from tuner.schedule.rules.rows.passes import RowProgram, lanes_of
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded, stored, stored_type
from tuner.schedule.vector.functions import COMBINE
from tuner.schedule.vector.memory import prefetch, workspace


class RowNest(Nest):
    """Writes the loops over rows, for operands with merged dims. ``scratch``: a stage's columns of one block."""

    def __init__(self, task: SearchTask, program: RowProgram, kernel: MicroKernel, function: KernelFunction) -> None:
        self.program, self.frame = program, program.frame
        parts = self.frame.parts.items()
        merged = {axis: reduce(mul, [function.extents[part] for part in names]) for axis, names in parts}
        buffers = {operand.name: self._merged(operand, function) for operand in task.workload.operands}
        function = replace(function, extents={**function.extents, **merged}, buffers=buffers)
        super().__init__(task, kernel, function, lanes_of(task))
        self.types, self.buffers = self.program.types, buffers
        self.counts, self.scratch = {axis: self.extents[axis] for axis in self.frame.rows}, dict[str, TirExpr]()

    def _merged(self, tensor: Tensor, function: KernelFunction) -> TirExpr:
        """The buffer of an operand with the dims that are walked together as one."""
        buffer, groups = function.buffers[tensor.name], self.frame.groups[tensor.name]
        if all(len(group) == 1 for group in groups):
            return buffer
        shape = [reduce(mul, [buffer.shape[dim] for dim in group]) for group in groups]
        return I.decl_buffer(shape, stored_type(tensor.dtype), data=buffer.data, align=DTYPES[tensor.dtype].bytes)

    def emit(self) -> None:
        if self.program.splits_columns(self.kernel["split"], self.threads):
            self._split_columns()
        else:
            in_split(self.frame.rows, self.extents, self.kernel["split"], self.threads, self._share)

    def _share(self, spans: Mapping[str, Share]) -> None:
        columns = [self.extents[axis] for axis in self.frame.columns]
        with ExitStack() as stack:
            for tensor in (tensor for tensor, home in self.program.homes.items() if home is None):
                buffer = workspace([i64(self.kernel["rows"]), *columns], stored_type(self.types.of[tensor]))
                self.scratch[tensor] = stack.enter_context(buffer)
            self._rows(lambda rows: _Block(self, rows).emit(), spans)

    def _rows(self, write: Callable[[Sequence[Index]], None], spans: Mapping[str, Share]) -> None:
        """Loops over the row axes; the last one in blocks, then row by row. ``write``: given the index of each row."""
        if not self.frame.rows:
            write([{}])
            return
        *outer, axis = self.frame.rows

        def blocks(index: Index) -> None:
            def block(start: TirExpr, count: int) -> None:
                row = I.Bind(start) if count > 1 else start
                write([{**index, axis: row + i64(number)} for number in range(count)])

            in_groups_and_rest(spans[axis], self.kernel["rows"], block)

        over(outer, spans, blocks, {})

    def _split_columns(self) -> None:
        """A program with a single pass that only reduces: threads reduce their columns of all rows into a workspace."""
        (only,) = self.program.passes
        shape, partial = [i64(self.threads), product_of(self.counts)], dict[str, TirExpr]()

        def reduce_share(thread: TirExpr) -> None:
            span = self._columns_of(thread)

            def block(rows: Sequence[Index]) -> None:
                for row, stage, total in _Block(self, rows, span).start().reduced(0):
                    I.buffer_store(partial[stage.tensor], total, [thread, number_of(row.index, self.counts)])

            self._rows(block, self.spans)

        def combine(rows: Sequence[Index]) -> None:
            block = _Block(self, rows).start()
            for row in block.rows:
                number = I.Bind(number_of(row.index, self.counts))
                for stage in only.reductions:
                    shares = [bound(partial[stage.tensor][i64(thread), number]) for thread in range(self.threads)]
                    block.know(row, stage, reduce(COMBINE[str(stage.reducer)], shares))
            block.evaluate(block.rows, only.after)

        with ExitStack() as stack:
            for stage in only.reductions:
                partial[stage.tensor] = stack.enter_context(workspace(shape, self.types.reduced_type(stage)))
            on_threads(self.threads, reduce_share)
            self._rows(combine, self.spans)

    def _columns_of(self, thread: TirExpr) -> Share:
        """A thread's share of the outermost column axis, in whole vectors if it is the one that vectors run along."""
        axis, lanes = self.frame.columns[0], i64(self.lanes)
        size = self.extents[axis]
        if axis != self.frame.vector:
            return share_of(size, thread, self.threads)
        first, last = share_of(tirx.floordiv(size + lanes - i64(1), lanes), thread, self.threads)
        return I.Bind(first * lanes), I.Bind(tirx.min(last * lanes, size))


@dataclass
class _Row:
    """One row of a block: its index, its number in the block, and the values that are known of it."""

    index: Index
    number: int
    known: dict[str | Read, TirExpr] = field(default_factory=dict)


class _Block:
    """Writes the code of a few rows that are walked together, over a ``span`` of the outermost column axis, or all."""

    def __init__(self, nest: RowNest, rows: Sequence[Index], span: Share | None = None) -> None:
        self.nest, self.frame, self.passes = nest, nest.frame, nest.program.passes
        self.rows = [_Row(index, number) for number, index in enumerate(rows)]
        self.spans = nest.spans if span is None else {**nest.spans, self.frame.columns[0]: span}

    def emit(self) -> None:
        self.start()
        for number, each in enumerate(self.passes):
            for row, stage, total in self.reduced(number):
                self.know(row, stage, total)
            self.evaluate(self.rows, each.after)

    def start(self) -> _Block:
        """Write what is known of the rows before the first pass."""
        along = set(self.frame.columns)
        for row in self.rows:
            reader = self.nest.reader(row.index)
            row.known |= {read: reader.read(read) for read in self.frame.input_reads if not axes_of(read) & along}
            self.evaluate([row], self.nest.program.before)
        return self

    def evaluate(self, rows: Sequence[_Row], stages: Sequence[Stage]) -> None:
        for row in rows:
            evaluator = self.nest.reader(row.index).evaluator(row.known, self.nest.types)
            for stage in stages:
                self.know(row, stage, evaluator.value(stage.body))

    def know(self, row: _Row, stage: Stage, value: TirExpr) -> None:
        """Keep a row's value of a stage, and store it if it is an output."""
        row.known[stage.tensor] = kept_as(stage, value, self.nest.types.of[stage.tensor], self.nest.extents)
        if stage.tensor in self.nest.buffers:
            self.nest.reader(row.index).write(stage, row.known[stage.tensor])

    def reduced(self, number: int) -> Iterator[tuple[_Row, Stage, TirExpr]]:
        """Write the loop over the columns of pass ``number``; then the total of each reduction of each row."""
        each, nest = self.passes[number], self.nest
        unroll = each.turns(nest.kernel)
        pairs = [(row, stage) for row in self.rows for stage in each.reductions]
        sums = [(row, stage, Accumulators(stage, nest.types, nest.vectors, unroll)) for row, stage in pairs]
        earlier = {stage.tensor for before in self.passes[:number] for stage in before.written}
        needed = sorted(earlier & {read.tensor for stage in each.evaluated for read in reads(stage.body)})
        fetched = self._prefetched(number)

        def visit(columns: Index, limit: TirExpr | None, turn: int) -> None:
            shared: dict[str | Read, TirExpr] = {}
            points = [_Point(nest, row, columns, limit, shared) for row in self.rows]
            for read in fetched if limit is None else ():
                self._prefetch(points, read, turn)
            for point in points:
                for tensor in needed:
                    point.load(tensor)
            for row, _, accumulators in sums:
                accumulators.add(turn, points[row.number].evaluator, points[row.number].reader.within)
            # What is written over a value that is kept there comes after all values.
            results = [(point, stage, point.value(stage)) for point in points for stage in each.written]
            for point, stage, value in results:
                point.store(stage, value)

        over(self.frame.columns[:-1], self.spans, lambda index: self._vectors(index, unroll, visit), {})
        for row, stage, accumulators in sums:
            yield row, stage, accumulators.total()

    def _vectors(self, index: Index, unroll: int, visit: Callable[[Index, TirExpr | None, int], None]) -> None:
        """Groups of ``unroll`` vectors, single ones, and one that is masked."""
        lanes, (first, last) = self.nest.lanes, self.spans[self.frame.vector]
        step, size = lanes * unroll, last - first
        constant_size = int(size) if isinstance(size, tirx.IntImm) else None

        def at(column: TirExpr, limit: TirExpr | None = None, turn: int = 0) -> None:
            visit({**index, self.frame.vector: I.Bind(column)}, limit, turn)

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

    def _prefetched(self, number: int) -> list[Read]:
        """The reads that pass ``number`` prefetches: those along rows and columns, in the first costly pass."""
        if not self.nest.kernel["ahead"] or len(self.passes) == 1 or not self.frame.rows:
            return []
        heavy = [place for place, each in enumerate(self.passes) if each.is_heavy and place]
        if number != (heavy[0] if heavy else len(self.passes) - 1):
            return []
        streams = [read for read in self.frame.input_reads if not looked_up(read)]
        return [read for read in streams if {self.frame.rows[-1], self.frame.vector} <= axes_of(read)]

    def _prefetch(self, points: Sequence[_Point], read: Read, turn: int) -> None:
        """One request for each cache line of the next block of rows."""
        if turn % max(1, LINE_BYTES // (self.nest.lanes * DTYPES[self.nest.types.of[read.tensor]].bytes)) == 0:
            for point in points:
                index, row = dict(point.reader.index), self.frame.rows[-1]
                index[row] = index[row] + i64(len(self.rows))
                prefetch(self.nest.buffers[read.tensor], replace(point.reader, index=index).indices(read))


class _Point:
    """One vector of columns of one row. ``columns``: the index of its first element; ``shared``: what is the same for
    all rows of the block; ``limit``: where the row ends, if that is within the vector."""

    def __init__(
        self, nest: RowNest, row: _Row, columns: Index, limit: TirExpr | None, shared: dict[str | Read, TirExpr]
    ) -> None:
        self.nest, self.row, self.columns, self.shared, self.limit = nest, row, columns, shared, limit
        self.column = columns[nest.frame.vector]
        self.reader = nest.reader({**row.index, **columns}, nest.lanes, nest.frame.vector, limit)
        self.evaluator = replace(self.reader.evaluator(NOTHING, nest.types), read=self._read)
        self.known = dict(row.known)

    def value(self, stage: Stage) -> TirExpr:
        """A stage over columns, in its tensor's dtype: from memory if an earlier pass wrote it, else computed once."""
        if stage.tensor not in self.known:
            value = self.evaluator.value(stage.body)
            self.known[stage.tensor] = in_register(value, self.nest.types.of[stage.tensor])
        return self.known[stage.tensor]

    def _read(self, read: Read) -> TirExpr:
        frame = self.nest.frame
        for key in (read.tensor, read):
            if key in self.known:
                return self.known[key]
        stage = next((stage for stage in frame.stages if stage.tensor == read.tensor), None)
        if stage is not None:
            return self.value(stage)
        memory = self.known if axes_of(read) & set(frame.rows) else self.shared
        if read not in memory:
            memory[read] = self.reader.read(read)
        return memory[read]

    def load(self, tensor: str) -> None:
        """Take a stage's value from where an earlier pass left it."""
        value = I.Bind(self.nest.vectors.load(*self._home(tensor), self.column, self.limit))
        self.known[tensor] = bound(loaded(value, self.nest.types.of[tensor]))

    def store(self, stage: Stage, value: TirExpr) -> None:
        (buffer, prefix), result = self._home(stage.tensor), stored(value, self.nest.types.of[stage.tensor])
        self.nest.vectors.store(buffer, result, prefix, self.column, self.limit)

    def _home(self, tensor: str) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer that holds a stage's columns, and the index of this vector in it without its last axis."""
        home, frame = self.nest.program.homes[tensor], self.nest.frame
        prefix = [self.columns[axis] for axis in frame.columns[:-1]]
        if home is None:
            return self.nest.scratch[tensor], [i64(self.row.number), *prefix]
        return self.nest.buffers[home], [*(self.row.index[axis] for axis in frame.rows), *prefix]
