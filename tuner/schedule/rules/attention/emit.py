"""TensorIR for attention, built directly. The loop nest is

    for t in parallel(threads):                   a contiguous share of (batch, block of rows)
      for b in batch:
        [pack k]                                  pack=1: panels of [d, nr], which stay in L2
        for block in blocks of rows * mr rows:
          for columns in blocks of cols panels:   cols=0: all of them at once
            for panel, for tile:                  scores of mr rows by nr columns (scores.py)
            for row:                              maximum, exponentials, sum (softmax.py)
            for tile, for panel of e:             exponentials times v: mr rows by ev vectors (values.py)
          [the output from the sums]              only behind several blocks of columns

Columns that the bounds of a mask hide from every row of a tile are neither computed nor read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.rules.attention.pattern import chain_of
from tuner.schedule.rules.attention.products import invert_totals, pack_keys, scores, values, write_rows
from tuner.schedule.rules.attention.softmax import Row
from tuner.schedule.rules.attention.tile import Frame, Scratch, Tile, down, tiles, up, when
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.memory import DTYPE, Vectors, workspace

Columns = tuple[TirExpr, TirExpr]


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    chain = chain_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        vectors = Vectors(task.known_target.hardware.lanes())
        _Nest(Frame(task, chain, kernel, function, vectors, chain.by_name(function.extents), {})).emit()
    return function.get()


class _Nest:
    """Writes the loops around the tiles."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.height = frame.kernel["rows"] * frame.kernel["mr"]
        self.blocks = up(frame.extent["i"], self.height)

    # -- shares -------------------------------------------------------------------------------------------------------
    def emit(self) -> None:
        threads = self.frame.task.threads
        if threads == 1:
            with self._scratch() as nest:
                nest._batches(self.frame.chain.batch, {})
            return
        total = self.blocks
        for axis in self.frame.chain.batch:
            total = total * self.frame.extent[axis]
        with I.parallel(i64(0), i64(threads)) as thread, self._scratch() as nest:
            first = I.Bind(tirx.floordiv(total * thread, i64(threads)))
            end = I.Bind(tirx.floordiv(total * (thread + i64(1)), i64(threads)))
            nest._share(first, end)

    def _batches(self, axes: tuple[str, ...], index: dict[str, TirExpr]) -> None:
        if not axes:
            _Nest(self.frame.at(index))._rows(i64(0), self.blocks)
            return
        with I.serial(i64(0), self.frame.extent[axes[0]]) as value:
            self._batches(axes[1:], {**index, axes[0]: value})

    def _share(self, first: TirExpr, end: TirExpr) -> None:
        """Blocks of rows ``first`` to ``end``, counted through the whole batch."""
        # Extents may be 0, and no loop guards divisions that are moved out of it.
        blocks = I.Bind(tirx.max(self.blocks, i64(1)))
        with I.serial(tirx.floordiv(first, blocks), tirx.floordiv(end + blocks - i64(1), blocks)) as number:
            index, rest = {}, number
            for axis in reversed(self.frame.chain.batch):
                size = I.Bind(tirx.max(self.frame.extent[axis], i64(1)))
                index[axis], rest = I.Bind(tirx.floormod(rest, size)), I.Bind(tirx.floordiv(rest, size))
            if isinstance(self.blocks, tirx.IntImm) and int(self.blocks) == 1:
                # Not by the general bounds: TVM fails over conditions in which a variable is taken from itself.
                _Nest(self.frame.at(index))._rows(i64(0), i64(1))
                return
            start = I.Bind(tirx.max(first - number * blocks, i64(0)))
            _Nest(self.frame.at(index))._rows(start, tirx.min(end - number * blocks, blocks))

    @contextmanager
    def _scratch(self) -> Iterator[_Nest]:
        frame, j = self.frame, self.frame.extent["j"]
        panels = up(j, frame.nr)
        # Rows of scores start a vector and more apart from a power of two: those of a tile are read side by side.
        width = i64(frame.kernel["cols"] * frame.nr) if frame.is_blocked else panels * i64(frame.nr)
        with ExitStack() as stack:

            def room(*shape: TirExpr) -> TirExpr:
                return stack.enter_context(workspace(shape))

            rows = i64(self.height)
            keys = None
            if frame.kernel["pack"]:
                keys = room(panels, up(frame.extent["d"], frame.lanes) * i64(frame.lanes), i64(frame.nr))
            scratch = Scratch(keys, room(rows, width + i64(frame.lanes)), room(rows), room(rows))
            if frame.is_blocked:
                lanes = frame.kernel["ev"] * frame.lanes
                columns = up(frame.extent["e"], lanes) * i64(lanes)
                scratch = Scratch(keys, scratch.scores, scratch.top, scratch.total, room(rows), room(rows, columns))
            yield _Nest(frame.using(scratch))

    # -- blocks -------------------------------------------------------------------------------------------------------
    def _rows(self, first: TirExpr, end: TirExpr) -> None:
        """Blocks of rows of one element of the batch."""
        frame, size = self.frame, self.frame.extent["i"]
        if frame.kernel["pack"]:
            with when(first < end):
                last = tirx.min(end * i64(self.height), size) - i64(1)
                columns = self._visible(first * i64(self.height), last)
                pack_keys(frame, tirx.floordiv(columns[0], i64(frame.nr)), up(columns[1], frame.nr))
        with I.serial(first, end) as block:
            row = I.Bind(block * i64(self.height))
            rows = I.Bind(tirx.min(i64(self.height), size - row))
            self._block(row, rows)

    def _block(self, row: TirExpr, rows: TirExpr) -> None:
        columns = self._visible(row, row + rows - i64(1))
        if not self.frame.is_blocked:
            self._columns(row, rows, columns)
            return
        self._clear(rows)
        width = i64(self.frame.kernel["cols"] * self.frame.nr)
        with I.serial(i64(0), tirx.floordiv(columns[1] - columns[0] + width - i64(1), width)) as block:
            start = I.Bind(columns[0] + block * width)
            self._columns(row, rows, (start, I.Bind(tirx.min(start + width, columns[1]))))
        write_rows(self.frame, row, rows)

    def _clear(self, rows: TirExpr) -> None:
        room, lanes = self.frame.room, self.frame.lanes
        with I.serial(i64(0), rows) as local:
            I.buffer_store(room.top, constant(float("-inf"), DTYPE, 1), [local])
            I.buffer_store(room.total, constant(0, DTYPE, 1), [local])
            with I.serial(i64(0), up(self.frame.extent["e"], lanes)) as v:
                I.buffer_store(room.mixed, self.frame.vectors.zero(), [local, self.frame.vectors.ramp(v * i64(lanes))])

    def _columns(self, row: TirExpr, rows: TirExpr, columns: Columns) -> None:
        """All rows of a block over one block of columns."""
        frame, start = self.frame, columns[0]

        def needed(tile: Tile) -> Columns:
            return self._needed(tile, columns)

        def over(use: Callable[[Tile], None]) -> None:
            tiles(frame, row, rows, use)

        def reduce(tile: Tile) -> None:
            with self._if_any(tile, columns):
                values(frame, tile, needed(tile), start)

        scores(frame, columns, over, self._seen)
        self._softmax(row, rows, columns)
        over(reduce)

    def _softmax(self, row: TirExpr, rows: TirExpr, columns: Columns) -> None:
        """Of all rows of a block, tile by tile: one piece of code for tiles of every height."""
        mr = self.frame.kernel["mr"]
        with I.serial(i64(0), up(rows, mr)) as number:
            local = I.Bind(number * i64(mr))
            tile = Tile(row + local, local, mr, I.Bind(tirx.min(i64(mr), rows - local)))
            with self._if_any(tile, columns):
                own = self._needed(tile, columns)
                with I.serial(i64(0), tile.count) as each:
                    Row(self.frame, tile.row + each, local + each, own, columns[0]).emit()
        if not self.frame.is_blocked:
            invert_totals(self.frame, i64(0), rows)

    def _if_any(self, tile: Tile, columns: Columns) -> AbstractContextManager[None]:
        """What is written here runs where a tile sees any column of a block; always where there are no other blocks."""
        if not (self.frame.is_blocked and self.frame.chain.mask.bounds):
            return nullcontext()
        # No block is empty. The columns that are needed would ask that again: TVM makes ``x - x < 16`` of it, and
        # divides by the coefficient of x.
        first, end = self._seen(tile)
        is_seen = columns[0] < end
        if self.frame.has_lower_bound:
            is_seen = tirx.And(is_seen, tirx.And(first < end, first < columns[1]))
        return when(is_seen)

    # -- which columns ------------------------------------------------------------------------------------------------
    def _visible(self, row: TirExpr, last: TirExpr) -> Columns:
        """Columns that any of the rows ``row`` to ``last`` sees, from the start of a panel on."""
        frame, j = self.frame, self.frame.extent["j"]
        if not frame.chain.mask.bounds:
            return i64(0), j
        first = i64(0)
        if frame.has_lower_bound:
            first = I.Bind(down(tirx.max(tirx.min(frame.first_column(row), j), i64(0)), frame.nr))
        return first, I.Bind(tirx.max(frame.end_column(last), first))

    def _seen(self, tile: Tile) -> Columns:
        """Columns that any row of a tile sees."""
        return self._visible(tile.row, tile.row + tile.count - i64(1))

    def _needed(self, tile: Tile, columns: Columns) -> Columns:
        """Those of ``columns`` that any row of a tile sees."""
        if not self.frame.chain.mask.bounds:
            return columns
        first, end = self._seen(tile)
        first = I.Bind(tirx.max(tirx.min(first, columns[1]), columns[0])) if self.frame.has_lower_bound else columns[0]
        return first, I.Bind(tirx.max(tirx.min(end, columns[1]), first))
