"""Reductions whose columns are divided among the threads: few long rows, or one.

Each thread reduces its share of the columns of every row into a workspace; one thread then combines the shares of each
row, and goes on as after a pass over whole rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce

from tuner.schedule.loops.shares import Range, number_of, product_of, share_of
from tuner.schedule.rules.rows.points import Settings
from tuner.schedule.rules.rows.rows import RowBlock
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import workspace
from tuner.schedule.vector.reducers import COMBINE

WriteRows = Callable[[Sequence[Mapping[str, TirExpr]]], None]
"""Writes the code of a block of rows, given the index of each."""


def split_columns(settings: Settings, threads: int, over_rows: Callable[[WriteRows], None]) -> None:
    """The whole kernel of a program with a single pass that only reduces. ``over_rows``: writes the loops over rows."""
    program = settings.program
    (reducing,) = program.passes
    shape = [i64(threads), product_of(_counts(settings))]
    with ExitStack() as stack:
        partial = {
            stage.tensor: stack.enter_context(workspace(shape, program.types.reduced_type(stage)))
            for stage in reducing.reductions
        }
        with I.parallel(i64(0), i64(threads)) as thread:
            span = _span(settings, thread, threads)
            over_rows(lambda rows: _reduce(RowBlock(settings, rows, span), partial, thread))
        over_rows(lambda rows: _combine(RowBlock(settings, rows), partial, threads))


def _span(settings: Settings, thread: TirExpr, threads: int) -> Range:
    """The share of a thread of the outermost column axis, in whole vectors if it is the one that vectors run along."""
    axis = settings.program.frame.columns[0]
    size = settings.function.extents[axis]
    if axis != settings.program.frame.vector:
        return share_of(size, thread, threads)
    lanes = i64(settings.lanes)
    first, last = share_of(tirx.floordiv(size + lanes - i64(1), lanes), thread, threads)
    return I.Bind(first * lanes), I.Bind(tirx.min(last * lanes, size))


def _reduce(block: RowBlock, partial: Mapping[str, TirExpr], thread: TirExpr) -> None:
    """The columns of a share, into its place of the workspace."""
    block.start()
    for row, stage, total in block.reduced(0):
        I.buffer_store(partial[stage.tensor], total, [thread, number_of(row.index, _counts(block.settings))])


def _combine(block: RowBlock, partial: Mapping[str, TirExpr], threads: int) -> None:
    """The totals of whole rows, and what follows from them."""
    block.start()
    for row in block.rows:
        number = I.Bind(number_of(row.index, _counts(block.settings)))
        for stage in block.settings.program.passes[0].reductions:
            shares = [bound(partial[stage.tensor][i64(thread), number]) for thread in range(threads)]
            block.know(row, stage, reduce(COMBINE[str(stage.reducer)], shares))
    block.finish(0)


def _counts(settings: Settings) -> Mapping[str, TirExpr]:
    """The extents of the row axes."""
    return {axis: settings.function.extents[axis] for axis in settings.program.frame.rows}
