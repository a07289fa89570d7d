"""TensorIR for row reductions: loops over blocks of rows, each block walked pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

from tuner.program.dtypes import DTYPES
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.shares import Share, in_shares, number_of, product_of, share_of
from tuner.schedule.rules.rows.frame import Groups
from tuner.schedule.rules.rows.pattern import RowProgram, columns_choice, lanes_of, row_program_of
from tuner.schedule.rules.rows.points import Settings
from tuner.schedule.rules.rows.rows import RowBlock
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.memory import workspace
from tuner.schedule.vector.reducers import COMBINE


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    program = row_program_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        _Loops(task, kernel, _with_extents(function, program), program).emit()
    return function.get()


def _with_extents(function: KernelFunction, program: RowProgram) -> KernelFunction:
    """The function with extents of the merged axes besides."""
    extents = dict(function.extents)
    for axis, parts in program.frame.parts.items():
        extents[axis] = _product([function.extents[part] for part in parts])
    return replace(function, extents=extents)


def _product(factors: list[TirExpr]) -> TirExpr:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return product


class _Loops:
    """Writes the loops over rows."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, program: RowProgram) -> None:
        self.task, self.kernel, self.function, self.program = task, kernel, function, program
        self.frame = program.frame
        self.buffers = {
            operand.name: self._merged(operand.name, operand.dtype, self.frame.groups[operand.name])
            for operand in task.workload.operands
        }

    def _merged(self, tensor: str, dtype: str, groups: Groups) -> TirExpr:
        """The buffer of an operand with the dims that are walked together as one."""
        buffer = self.function.buffers[tensor]
        if all(len(group) == 1 for group in groups):
            return buffer
        shape = [_product([buffer.shape[dim] for dim in group]) for group in groups]
        return I.decl_buffer(shape, stored_type(dtype), data=buffer.data, align=DTYPES[dtype].bytes)

    def emit(self) -> None:
        rows = self.frame.rows
        if self.task.threads > 1 and self.kernel["split"] == columns_choice(self.program):
            with self._settings() as settings:
                split_columns(settings, self.task.threads, lambda write: self._rows(write, rows, {}, {}))
            return
        if not rows:
            self._share({})
            return
        split = rows[min(self.kernel["split"], len(rows) - 1)]
        in_shares(self.function.extents[split], self.task.threads, lambda share: self._share({split: share}))

    def _share(self, shares: Mapping[str, Share]) -> None:
        """What one thread does."""
        with self._settings() as settings:
            self._rows(lambda rows: RowBlock(settings, rows).emit(), self.frame.rows, {}, shares)

    @contextmanager
    def _settings(self) -> Iterator[Settings]:
        with ExitStack() as stack:
            homes = {}
            for tensor, home in self.program.homes.items():
                if home is not None:
                    homes[tensor] = self.buffers[home], False
                else:
                    columns = [self.function.extents[axis] for axis in self.frame.columns]
                    dtype = stored_type(self.task.workload.tensors[tensor].dtype)
                    homes[tensor] = stack.enter_context(workspace([i64(self.kernel["rows"]), *columns], dtype)), True
            yield Settings(
                self.task.workload, self.program, self.function, self.buffers, homes, lanes_of(self.task),
                self.kernel["acc"], self.kernel["unroll"], bool(self.kernel["ahead"]),
            )  # fmt: skip

    def _rows(
        self, write: WriteRows, axes: tuple[str, ...], index: Mapping[str, TirExpr], shares: Mapping[str, Share]
    ) -> None:
        """Loops over the row axes; the last one in blocks, then row by row."""
        if not axes:
            write([index])
            return
        axis, *rest = axes
        first, last = shares.get(axis, (i64(0), self.function.extents[axis]))
        if rest:
            with I.serial(first, last) as value:
                self._rows(write, tuple(rest), {**index, axis: value}, shares)
            return
        count = self.kernel["rows"]
        if count > 1:
            blocks = I.Bind(tirx.floordiv(last - first, i64(count)))
            with I.serial(i64(0), blocks) as block:
                start = I.Bind(first + block * i64(count))
                write([{**index, axis: start + i64(number)} for number in range(count)])
            first = first + blocks * i64(count)
        with I.serial(first, last) as value:
            write([{**index, axis: value}])


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


def _span(settings: Settings, thread: TirExpr, threads: int) -> Share:
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
