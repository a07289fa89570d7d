"""Passes over a block of rows: vectors along the columns, one masked at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from tuner.program.dtypes import DTYPES
from tuner.program.expr import Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.schedule.layout import LINE_BYTES
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share
from tuner.schedule.rules.rows.frame import input_reads
from tuner.schedule.rules.rows.points import Accumulators, Point, Row, Settings
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, stored
from tuner.schedule.vector.memory import prefetch


class RowBlock:
    """Writes the code of a few rows that are walked together, over a ``span`` of the outermost column axis or over all
    of it."""

    def __init__(self, settings: Settings, rows: Sequence[Mapping[str, TirExpr]], span: Share | None = None) -> None:
        self.settings, self.frame, self.span = settings, settings.program.frame, span
        self.rows = [Row(index, number) for number, index in enumerate(rows)]

    def emit(self) -> None:
        self.start()
        for number in range(len(self.settings.program.passes)):
            for row, stage, total in self.reduced(number):
                self.know(row, stage, total)
            self.finish(number)

    def start(self) -> None:
        """What is known of the rows before the first pass."""
        for row in self.rows:
            for read in input_reads(self.frame.stages):
                if not axes_of(read) & set(self.frame.columns):
                    row.known[read] = self._reader(row).read(read)
            self._row_stages(row, self.settings.program.before)

    def finish(self, number: int) -> None:
        """What is known of the rows after pass ``number``, its reductions being known."""
        for row in self.rows:
            self._row_stages(row, self.settings.program.passes[number].after)

    # -- values of a row ------------------------------------------------------------------------------------------
    def _reader(self, row: Row) -> Reader:
        settings = self.settings
        return Reader(settings.workload, settings.function, settings.buffers, row.index, 1, None)

    def _row_stages(self, row: Row, stages: Sequence[Stage]) -> None:
        def read(node: Read) -> TirExpr:
            return row.known[node.tensor] if node.tensor in row.known else row.known[node]

        for stage in stages:
            evaluator = self.settings.evaluator(1, read, row.index.__getitem__)
            self.know(row, stage, evaluator.value(stage.body))

    def know(self, row: Row, stage: Stage, value: TirExpr) -> None:
        """Keep a row's value of a stage, and store it if it is an output."""
        dtype = self.settings.dtype(stage.tensor)
        row.known[stage.tensor] = bound(cast(bound(value), dtype))
        if stage.tensor in self.settings.workload.program.outputs:
            at = [row.index[axis] for axis in self.frame.rows]
            I.buffer_store(self.settings.buffers[stage.tensor], stored(row.known[stage.tensor], dtype), at)

    # -- passes ---------------------------------------------------------------------------------------------------
    def reduced(self, number: int) -> Iterator[tuple[Row, Stage, TirExpr]]:
        """Write the loop over the columns of pass ``number``; then the total of each reduction of each row."""
        settings, each = self.settings, self.settings.program.passes[number]
        unroll = settings.unroll if each.is_heavy else settings.acc
        sums = [(row, stage, Accumulators(settings, stage, unroll)) for row in self.rows for stage in each.reductions]
        earlier = {stage.tensor for before in settings.program.passes[:number] for stage in before.written}
        needed = {read.tensor for stage in each.evaluated for read in reads(stage.body)}
        fetched = self._prefetched(number)

        def visit(columns: Mapping[str, TirExpr], limit: TirExpr | None, turn: int) -> None:
            shared: dict[Read, TirExpr] = {}
            points = [Point(settings, row, columns, limit, shared) for row in self.rows]
            if limit is None:
                self._prefetch(points, fetched, turn)
            for point in points:
                for tensor in sorted(earlier & needed):
                    point.load(tensor)
            for row, _, accumulators in sums:
                accumulators.add(points[row.number], turn)
            # What is written over a value that is kept there comes after all values.
            results = [(point, stage, point.value(stage)) for point in points for stage in each.written]
            for point, stage, value in results:
                point.store(stage, value)

        self._columns(self.frame.columns, {}, unroll, visit)
        for row, stage, accumulators in sums:
            yield row, stage, accumulators.total()

    def _columns(
        self,
        axes: Sequence[str],
        index: Mapping[str, TirExpr],
        unroll: int,
        visit: Callable[[Mapping[str, TirExpr], TirExpr | None, int], None],
    ) -> None:
        """Loops over the columns, of which the last axis goes by vectors."""
        axis, *rest = axes
        span = (i64(0), self.settings.function.extents[axis])
        if self.span is not None and axis == self.frame.columns[0]:
            span = self.span
        if not rest:
            self._vectors(span, unroll, lambda column, *given: visit({**index, axis: column}, *given))
            return
        with I.serial(*span) as value:
            self._columns(rest, {**index, axis: value}, unroll, visit)

    def _vectors(self, span: Share, unroll: int, visit: Callable[[TirExpr, TirExpr | None, int], None]) -> None:
        """Groups of ``unroll`` vectors, single ones, and one that is masked."""
        lanes, (first, last) = self.settings.lanes, span
        step, size = lanes * unroll, last - first
        constant_size = int(size) if isinstance(size, tirx.IntImm) else None
        groups = I.Bind(tirx.floordiv(size, i64(step)))
        with I.serial(i64(0), groups) as group:
            for turn in range(unroll):
                visit(I.Bind(first + group * i64(step) + i64(turn * lanes)), None, turn)
        if constant_size is not None and constant_size % step == 0:
            return
        whole = I.Bind(tirx.floordiv(size, i64(lanes)))
        if unroll > 1 and (constant_size is None or constant_size // lanes % unroll):
            with I.serial(groups * i64(unroll), whole) as vector:
                visit(I.Bind(first + vector * i64(lanes)), None, 0)
        if constant_size is None or constant_size % lanes:
            with I.If(whole * i64(lanes) < size), I.Then():
                visit(I.Bind(first + whole * i64(lanes)), last, 0)

    # -- prefetches -----------------------------------------------------------------------------------------------
    def _prefetched(self, number: int) -> tuple[Read, ...]:
        """The reads that pass ``number`` prefetches."""
        program = self.settings.program
        streams = [read for read in input_reads(self.frame.stages) if self._is_stream(read)]
        if not self.settings.ahead or len(program.passes) == 1:
            return ()
        heavy = [place for place, each in enumerate(program.passes) if each.is_heavy and place]
        chosen = heavy[0] if heavy else len(program.passes) - 1
        return tuple(streams) if number == chosen else ()

    def _is_stream(self, read: Read) -> bool:
        is_direct = not any(reads(index) for index in read.indices)
        return is_direct and bool(self.frame.rows) and {self.frame.rows[-1], self.frame.vector} <= axes_of(read)

    def _prefetch(self, points: Sequence[Point], streams: Sequence[Read], turn: int) -> None:
        """One request for each cache line of the next block of rows."""
        settings = self.settings
        for read in streams:
            element = max(1, LINE_BYTES // (settings.lanes * DTYPES[settings.dtype(read.tensor)].bytes))
            if turn % element:
                continue
            for point in points:
                index = {**point.row.index, **point.columns}
                index[self.frame.rows[-1]] = index[self.frame.rows[-1]] + i64(len(self.rows))
                prefetch(settings.buffers[read.tensor], replace(point.reader, index=index).indices(read))
