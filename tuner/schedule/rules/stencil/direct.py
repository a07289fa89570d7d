"""TensorIR for windows over images whose channels come last: every vector is read where it lies.

A vector has channels of one position, so that no window moves along it: any element of a window is a whole vector of
the image, and a copy of the tile would only add loads and stores. What a window reads outside the image adds nothing to
a sum of products, or to a maximum, and is left out: along the innermost axis while the code is written, since positions
at its ends are groups of their own; along the others by a branch for each row of the windows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from tuner.errors import IllegalKernel
from tuner.program.language.expr import Axis, Binary, Cast, Expr, Neg, Read, reads
from tuner.program.language.workload import Workload
from tuner.schedule.loops.reading import Index, start_value
from tuner.schedule.loops.shares import Share
from tuner.schedule.rules.stencil.emit import Block, Known, Place, Tile, TileNest
from tuner.schedule.rules.stencil.pattern import Tap, WindowProgram
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded
from tuner.schedule.vector.functions import identity

MAX_ENDS = 8
"""Groups of positions at the ends of an axis that are code of their own."""


def is_read_in_place(workload: Workload, program: WindowProgram) -> bool:
    """Whether windows can be read where they lie: no vector leaves the image, and padding adds nothing. Only constants
    may be factors of it: times one that is not finite it would be NaN, which PyTorch's convolutions leave out, too."""
    inner, vector, stage = program.inner, program.vector, program.stage
    if inner is None or vector.size > 1 or (vector.stride, vector.offset) != (1, 0):
        return False
    source, sizes = workload.tensors[program.read.tensor], workload.sizes
    padding = dict(workload.padding).get(source.name)
    if padding is None:
        return True
    if source.dims[vector.dim] != sizes[vector.axis]:
        return False
    if sizes[inner.axis].constant is None or source.dims[inner.dim].constant is None:
        return False
    if stage.reducer == "sum":
        factors = {read.tensor for read in reads(stage.body) if read != program.read}
        return padding == 0 and factors <= set(workload.constants) and _vanishes_with(stage.body, program.read)
    return stage.body == program.read and padding == identity(str(stage.reducer), source.dtype)


def check_direct(workload: Workload, program: WindowProgram, kernel: MicroKernel) -> None:
    """Raises IllegalKernel where the ends of the innermost axis are not known in a tile, or are too much code."""
    if program.read.tensor not in dict(workload.padding):
        return
    size = None if program.inner is None else workload.sizes[program.inner.axis].constant
    if program.inner is program.block and (size is None or kernel["block"] < size):
        raise IllegalKernel(
            f"direct=2 with block={kernel['block']} of {size or 'unknown'} positions: a tile has no ends"
        )
    ends = sum(len(run) for run, is_inside in _runs(workload, program, kernel["rows"]) if not is_inside)
    if ends > MAX_ENDS:
        raise IllegalKernel(f"direct=2 with rows={kernel['rows']}: {ends} of {MAX_ENDS} groups are in the padding")


def _runs(workload: Workload, program: WindowProgram, rows: int) -> list[tuple[list[range], bool]]:
    """The positions of the innermost axis in groups, and which neighbouring ones are whole and read no padding."""
    inner = program.inner
    assert inner is not None, "is_read_in_place"
    size, width = workload.sizes[inner.axis].constant, workload.tensors[program.read.tensor].dims[inner.dim].constant
    assert size is not None and width is not None, "is_read_in_place"
    first = max(-(inner.offset // inner.stride), 0)
    inside = range(first, (width - 1 - inner.reach - inner.offset) // inner.stride + 1)
    groups = (range(start, min(start + rows, size)) for start in range(0, size, rows))
    runs = itertools.groupby(groups, lambda group: len(group) == rows and set(group) <= set(inside))
    return [(list(run), is_inside) for is_inside, run in runs]


class DirectNest(TileNest):
    """Writes the loop over tiles, none of which is copied."""

    def tiles(self, share: Share) -> None:
        with I.serial(*share) as number:
            _DirectTile(self, self.function.buffers[self.source.name], *self.bounds(number)).compute()


class _DirectTile(Tile):
    """A tile whose ``copy`` is the image itself."""

    def block(
        self, starts: Sequence[TirExpr], limit: TirExpr | None, known: Sequence[Known], offsets: Index, rows: int
    ) -> Block:
        return _DirectBlock(self, starts, limit, known, offsets, rows)

    def positions(self, write: Callable[[TirExpr, int], None]) -> None:
        """Groups with windows that leave the image one by one, the others between them in a loop."""
        if self.nest.padding is None:
            super().positions(write)
            return
        rows = self.nest.kernel["rows"]
        for groups, is_inside in _runs(self.nest.workload, self.nest.program, rows):
            if not is_inside:
                for group in groups:
                    write(i64(group.start), len(group))
                continue
            with I.serial(i64(0), i64(len(groups))) as number:
                write(i64(groups[0].start) + number * i64(rows), rows)


class _DirectBlock(Block):
    """A register block that reads the image."""

    def emit(self) -> None:
        if self.nest.padding is None:
            super().emit()
            return
        for place in self.places:
            self.totals[place] = I.alloc_buffer((self.nest.lanes,), self.computed)
            I.buffer_store(self.totals[place], start_value(self.stage, self.computed, self.nest.lanes), [self.ramp])
        for steps, turns in itertools.groupby(self.turns(), lambda turn: self.source_of(*turn)[:-2]):
            taken = [turn for turn in turns if self._is_inside(*turn)]
            if not taken:
                continue
            if (condition := self._condition(steps)) is None:
                self._add_all(taken)
                continue
            with I.If(condition), I.Then():
                self._add_all(taken)
        self.write()

    def _add_all(self, turns: Iterable[tuple[Place, Tap]]) -> None:
        for turn in turns:
            self.add(*turn)

    def _is_inside(self, place: Place, tap: Tap) -> bool:
        """Whether a tap reads the image, as far as the innermost axis says. Positions of a loop are all inside."""
        inner = self.program.inner
        assert inner is not None
        start = self.offsets[inner.axis]
        if not isinstance(start, tirx.IntImm):
            return True
        at = (int(start) + place[1]) * inner.stride + inner.offset + inner.step(tap)
        return at in range(self.nest.source.dims[inner.dim].constant or 0)

    def _condition(self, steps: Sequence[int]) -> TirExpr | None:
        """Whether what lies ``steps`` from the block's first element, along the outer slides, is in the image."""
        slid = [slide.dim for slide in self.program.slides]
        # Reduced axes that move no window have one value.
        first = self.reader(self.places[0], dict.fromkeys(self.stage.reduce_axes, 0)).indices(self.program.read)
        at = {dim: index for dim, index in enumerate(first) if dim not in slid and self._may_be_outside(dim)}
        at |= {
            slide.dim: first[slide.dim] + i64(step) for slide, step in zip(self.program.slides[:-2], steps, strict=True)
        }
        inside = [tirx.And(index >= i64(0), index < self.nest.dims[dim]) for dim, index in at.items()]
        return reduce(tirx.And, inside) if inside else None

    def _may_be_outside(self, dim: int) -> bool:
        """Whether a dim that no window moves over is read at other values than those of an axis of its size."""
        index, sizes = self.program.read.indices[dim], self.nest.workload.sizes
        return not (isinstance(index, Axis) and sizes[index.name] == self.nest.source.dims[dim])

    def window(self, place: Place, tap: Tap) -> TirExpr:
        key = (place[0], *self.source_of(place, tap))
        if key not in self.loads:
            *at, last = self.reader(place, tap).indices(self.program.read)
            vector = self.nest.vectors.load(self.tile.copy, at, last, self.limit)
            self.loads[key] = bound(loaded(bound(vector), self.nest.source.dtype))
        return self.loads[key]


def _vanishes_with(body: Expr, read: Read) -> bool:
    """Whether ``body`` is 0 where ``read`` is."""
    match body:
        case Neg(operand=operand) | Cast(operand=operand):
            return _vanishes_with(operand, read)
        case Binary(operator="*", left=left, right=right):
            return _vanishes_with(left, read) or _vanishes_with(right, read)
    return body == read
