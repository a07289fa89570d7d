"""TensorIR for row reductions: loops over blocks of rows, by threads that share the rows or the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.reading import Index
from tuner.schedule.loops.shares import Share, in_groups, in_split, number_of, on_threads, over, product_of, share_of
from tuner.schedule.rules.rows.block import RowBlock, RowContext
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.memory import workspace
from tuner.schedule.vector.reducers import COMBINE

WriteRows = Callable[[Sequence[Index]], None]
"""Writes the code of a block of rows, given the index of each."""


class RowLoops:
    """Writes the loops over rows."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        self.threads, self.kernel, self.context = task.threads, kernel, RowContext(task, kernel, function)
        self.program, self.frame, self.extents = (
            self.context.program, self.context.frame, self.context.function.extents,
        )  # fmt: skip
        self.counts = {axis: self.extents[axis] for axis in self.frame.rows}

    def emit(self) -> None:
        if self.threads > 1 and self.kernel["split"] == self.program.columns_choice:
            self._split_columns()
        else:
            in_split(self.frame.rows, self.extents, self.kernel["split"], self.threads, self._share)

    def _share(self, spans: Mapping[str, Share]) -> None:
        """What one thread does of the rows."""
        columns = [self.extents[axis] for axis in self.frame.columns]
        with ExitStack() as stack:
            for tensor in (tensor for tensor, home in self.program.homes.items() if home is None):
                dtype = stored_type(self.program.types.of[tensor])
                buffer = workspace([i64(self.kernel["rows"]), *columns], dtype)
                self.context.scratch[tensor] = stack.enter_context(buffer)
            self._rows(lambda rows: RowBlock(self.context, rows).emit(), spans)

    def _rows(self, write: WriteRows, spans: Mapping[str, Share]) -> None:
        """Loops over the row axes; the last one in blocks, then row by row."""
        if not self.frame.rows:
            write([{}])
            return
        *outer, axis = self.frame.rows
        count, (first, last) = self.kernel["rows"], spans[axis]

        def blocks(index: Index) -> None:
            def block(start: TirExpr) -> None:
                row = I.Bind(start)
                write([{**index, axis: row + i64(number)} for number in range(count)])

            rest = first + in_groups((first, last), count, block) * i64(count) if count > 1 else first
            over((axis,), {axis: (rest, last)}, lambda row: write([row]), index)

        over(outer, spans, blocks, {})

    # -- columns shared by threads ----------------------------------------------------------------------------------
    def _split_columns(self) -> None:
        """A program with a single pass that only reduces: threads reduce their columns of all rows into a workspace."""
        shape, types = [i64(self.threads), product_of(self.counts)], self.program.types
        with ExitStack() as stack:
            partial = {
                stage.tensor: stack.enter_context(workspace(shape, types.reduced_type(stage)))
                for stage in self.program.passes[0].reductions
            }

            def reduce_share(thread: TirExpr) -> None:
                span = self._span(thread)
                self._rows(lambda rows: self._reduce(rows, span, partial, thread), self.context.spans)

            on_threads(self.threads, reduce_share)
            self._rows(lambda rows: self._combine(rows, partial), self.context.spans)

    def _span(self, thread: TirExpr) -> Share:
        """The share of a thread of the outermost column axis, in whole vectors if it is the one that vectors run
        along."""
        axis, lanes = self.frame.columns[0], i64(self.context.vectors.lanes)
        size = self.extents[axis]
        if axis != self.frame.vector:
            return share_of(size, thread, self.threads)
        first, last = share_of(tirx.floordiv(size + lanes - i64(1), lanes), thread, self.threads)
        return I.Bind(first * lanes), I.Bind(tirx.min(last * lanes, size))

    def _reduce(self, rows: Sequence[Index], span: Share, partial: Mapping[str, TirExpr], thread: TirExpr) -> None:
        """The columns of a share, into its place of the workspace."""
        block = RowBlock(self.context, rows, span)
        block.start()
        for row, stage, total in block.reduced(0):
            I.buffer_store(partial[stage.tensor], total, [thread, number_of(row.index, self.counts)])

    def _combine(self, rows: Sequence[Index], partial: Mapping[str, TirExpr]) -> None:
        """The totals of whole rows, and what follows from them."""
        block = RowBlock(self.context, rows)
        block.start()
        for row in block.rows:
            number = I.Bind(number_of(row.index, self.counts))
            for stage in self.program.passes[0].reductions:
                shares = [bound(partial[stage.tensor][i64(thread), number]) for thread in range(self.threads)]
                block.know(row, stage, reduce(COMBINE[str(stage.reducer)], shares))
        block.finish(0)
