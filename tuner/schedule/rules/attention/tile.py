"""One kernel of attention while it is written, and both of its products by register tiles: scores from q and k, and the
output from exponentials and v."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Expr as Ast
from tuner.program.language.expr import Read
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share
from tuner.schedule.product.product import ceil_div
from tuner.schedule.rules.attention.chain import COMPUTED
from tuner.schedule.rules.attention.pattern import chain_of
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, loaded, stored
from tuner.schedule.vector.memory import DTYPE, Vectors, workspace

Slots = list[list[TirExpr]]
"""The totals of a register tile, a slot for each vector: larger buffers would become a heap workspace
(docs/decisions/0002)."""


@dataclass(frozen=True)
class Tile:
    """``height`` rows from ``row`` on, row ``local`` of a block; the first ``valid`` ones exist (None: all)."""

    row: TirExpr
    local: TirExpr
    height: int
    valid: TirExpr | None = None

    @property
    def count(self) -> TirExpr:
        """How many of its rows exist."""
        return i64(self.height) if self.valid is None else self.valid

    def existing(self) -> Iterator[int]:
        """Its rows by number. What is written of one that may not exist runs only where it does."""
        for row in range(self.height):
            with ExitStack() as stack:
                if self.valid is not None:
                    stack.enter_context(I.If(i64(row) < self.valid))
                    stack.enter_context(I.Then())
                yield row


class Context:
    """What a kernel's code looks at. ``extent`` and ``index``: by the chain's names of axes. ``room``: what a thread
    keeps (``allocated``)."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        self.task, self.kernel, self.function = task, kernel, function
        self.chain, self.lanes = chain_of(task.workload), task.known_target.hardware.lanes()
        self.vectors, self.every = Vectors(self.lanes), Vectors(self.lanes).ramp(0)
        self.height, self.nr = kernel["rows"] * kernel["mr"], kernel["nv"] * self.lanes
        self.extent = {name: function.extents[axis] for name, axis in self.chain.axis.items()}
        self.bounds, limits = self.chain.mask.bounds, self.chain.mask.limits
        self.is_bounded, self.has_limits = bool(self.bounds or limits), bool(limits)
        self.has_lower_bound = self.has_limits or any(not each.is_upper for each in self.bounds)
        self.index, self.room = dict[str, TirExpr](), dict[str, TirExpr]()

    def at(self, **index: TirExpr) -> Context:
        """Where these axes have these values."""
        other = copy(self)
        other.index = {**self.index, **index}
        return other

    def on(self, function: KernelFunction) -> Context:
        """With other buffers."""
        other = copy(self)
        other.function = function
        return other

    @contextmanager
    def allocated(self) -> Iterator[Context]:
        """With memory: ``keys`` [panels, d, nr], k packed; ``scores`` [rows of a block, its columns]; the ``top`` and
        the ``total`` of exponentials of each row. Where columns are gone through in several blocks also ``mixed``
        [rows, e], the sums so far, and the ``factor`` that scales them. Where data limits what rows see, ``firsts`` and
        ``ends`` of the columns of each row and more (``range_places``)."""
        rows, lanes, cols, ev = i64(self.height), self.lanes, self.kernel["cols"], self.kernel["ev"] * self.lanes
        panels = ceil_div(self.extent["j"], self.nr)
        # Rows of scores start a vector and more apart from a power of two: those of a tile are read side by side.
        width = (i64(cols * self.nr) if cols else panels * i64(self.nr)) + i64(lanes)
        shapes: dict[str, tuple[TirExpr, ...]] = {}
        if self.kernel["pack"]:
            shapes["keys"] = panels, ceil_div(self.extent["d"], lanes) * i64(lanes), i64(self.nr)
        shapes |= {"scores": (rows, width), "top": (rows,), "total": (rows,)}
        if cols:
            shapes |= {"factor": (rows,), "mixed": (rows, ceil_div(self.extent["e"], ev) * i64(ev))}
        with ExitStack() as stack:
            other = copy(self)
            other.room = {name: stack.enter_context(workspace(shape)) for name, shape in shapes.items()}
            if self.has_limits:
                size = (self.range_places()[2] + i64(1),)
                other.room |= {name: stack.enter_context(workspace(size, "int64")) for name in ("firsts", "ends")}
            yield other

    def load(self, read: Read, lanes: int, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """An element of q, k or v as float32, or ``lanes`` of them along the last index; those at and past ``limit``
        are not touched and give zero."""
        function, dtype = self.function, self.task.workload.tensors[read.tensor].dtype
        reader = Reader(self.task.workload, function, function.buffers, {**self.index, **index}, 1, None)
        buffer, (*outer, last) = function.buffers[read.tensor], reader.indices(read)
        value = buffer[(*outer, last)] if lanes == 1 else self.vectors.load(buffer, outer, last, limit)
        return value if dtype == DTYPE else bound(loaded(bound(value), dtype))

    def value(self, expr: Ast, instead: TirExpr, along: str, limit: TirExpr | None) -> TirExpr:
        """An elementwise part in vectors ``along`` an axis, with ``instead`` where it reads what was computed."""
        workload, function = self.task.workload, self.function
        reader = Reader(workload, function, function.buffers, self.index, self.lanes, along, limit)
        types = workload.element_types.with_tensor(COMPUTED.tensor, DTYPE)
        return reader.evaluator({COMPUTED: instead}, types).value(expr, DTYPE)

    # -- columns ------------------------------------------------------------------------------------------------------
    def bound(self, row: TirExpr, is_upper: bool) -> TirExpr:
        """The first column that the bounds of the mask leave visible to a row, or the first one past those. It does not
        fall as rows go on."""
        sizes = {f"extent({name})": value for name, value in self.function.extents.items()}
        result, combine = (self.extent["j"], tirx.min) if is_upper else (i64(0), tirx.max)
        for each in self.bounds:
            if each.is_upper == is_upper:
                limit = dim_expr(each.limit, {**sizes, **self.index, "i": row})
                result = combine(result, limit + i64(int(is_upper)))
        return I.Bind(result)

    def visible(self, row: TirExpr, last: TirExpr) -> Share:
        """Columns that any of the rows ``row`` to ``last`` sees, from the start of a panel on."""
        first, j, nr = i64(0), self.extent["j"], i64(self.nr)
        if not self.is_bounded:
            return first, j
        if self.has_lower_bound:
            lower = tirx.max(tirx.min(self.bound(row, is_upper=False), j), i64(0))
            first = I.Bind(tirx.floordiv(lower, nr) * nr)
        return first, I.Bind(tirx.max(self.bound(last, is_upper=True), first))

    def range_places(self) -> tuple[TirExpr, TirExpr, TirExpr]:
        """Where the ranges of a block's tiles stand, that of all its rows, and that of all rows of a thread."""
        block = self.height + self.kernel["rows"]
        return i64(self.height), i64(block), i64(block + 1)

    def range_at(self, place: TirExpr) -> Share:
        """One of the ranges that are kept, from the start of a panel on."""
        first, end = I.Bind(self.room["firsts"][place]), I.Bind(self.room["ends"][place])
        first = I.Bind(tirx.floordiv(first, i64(self.nr)) * i64(self.nr))
        return first, I.Bind(tirx.max(end, first))

    def seen(self, tile: Tile) -> Share:
        """Columns that any row of a tile sees."""
        if self.has_limits:
            return self.range_at(self.range_places()[0] + tirx.floordiv(tile.local, i64(self.kernel["mr"])))
        return self.visible(tile.row, tile.row + tile.count - i64(1))


# -- loops ------------------------------------------------------------------------------------------------------------
def is_multiple(value: TirExpr, step: int) -> bool:
    """Whether there is known to be no ragged rest."""
    return isinstance(value, tirx.IntImm) and int(value) % step == 0


def along_d(context: Context) -> Iterator[tuple[TirExpr, TirExpr | None]]:
    """Vectors along d by their first elements: whole ones, then the ragged one, which has a limit."""
    d, lanes = context.extent["d"], context.lanes
    whole = tirx.floordiv(d, i64(lanes))
    with I.serial(i64(0), whole) as number:
        yield number * i64(lanes), None
    if not is_multiple(d, lanes):
        with I.If(whole * i64(lanes) < d), I.Then():
            yield whole * i64(lanes), d


def _along_e(context: Context) -> Iterator[tuple[list[TirExpr], TirExpr | None]]:
    """The vectors of panels along e by their first elements, with the limit of their loads where they are ragged."""
    lanes, ev, e = context.lanes, context.kernel["ev"], context.extent["e"]
    width = ev * lanes
    whole = I.Bind(tirx.floordiv(e, i64(width)))

    def vectors(first: TirExpr, count: int) -> list[TirExpr]:
        return [first + i64(v * lanes) for v in range(count)]

    if not (isinstance(e, tirx.IntImm) and int(e) < width):
        with I.serial(i64(0), whole) as panel:
            yield vectors(I.Bind(panel * i64(width)), ev), None
    if not isinstance(e, tirx.IntImm):
        with I.If(whole * i64(width) < e), I.Then():
            yield vectors(I.Bind(whole * i64(width)), ev), e
    elif rest := int(e) % width:
        yield vectors(i64(int(e) - rest), -(-rest // lanes)), e if rest % lanes else None


# -- a register tile --------------------------------------------------------------------------------------------------
def scores_of_panel(context: Context, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """Scores of rows of q and a packed panel of k, to ``column`` of a block and those behind it."""
    vectors, lanes, nv, keys = context.vectors, context.lanes, context.kernel["nv"], context.room["keys"]
    sums = _slots(context, tile.height, nv)
    rows = [tile.row + i64(number) for number in range(tile.height)]
    if tile.valid is not None:
        rows = [tirx.min(row, context.extent["i"] - i64(1)) for row in rows]
    for step in _turns(context, i64(0), context.extent["d"]):
        scalars = [context.load(context.chain.q, 1, None, i=row, d=step) for row in rows]
        _add_products(context, sums, scalars, [keys[panel, step, vectors.ramp(i64(v * lanes))] for v in range(nv)])
    for row, line in enumerate(sums):
        for v, slot in enumerate(line):
            place = [tile.local + i64(row), vectors.ramp(column + i64(v * lanes))]
            I.buffer_store(context.room["scores"], slot[context.every], place)


def scores_in_place(context: Context, tile: Tile, panel: TirExpr, column: TirExpr) -> None:
    """Scores of as many columns as a vector has lanes, each by vectors along d: packing does not pay for few rows."""
    lanes, every, j = context.lanes, context.every, context.extent["j"]
    columns = [tirx.min(panel * i64(lanes) + i64(lane), j - i64(1)) for lane in range(lanes)]
    with I.serial(i64(0), tile.count) as row:
        (sums,) = _slots(context, 1, lanes)
        for step, limit in along_d(context):
            left = I.Bind(context.load(context.chain.q, lanes, limit, i=tile.row + row, d=step))
            for slot, each in zip(sums, columns, strict=True):
                right = context.load(context.chain.k, lanes, limit, j=each, d=step)
                I.buffer_store(slot, slot[every] + left * right, [every])
        value = context.vectors.totals([slot[every] for slot in sums])
        I.buffer_store(context.room["scores"], value, [tile.local + row, context.vectors.ramp(column)])


def values(context: Context, tile: Tile, columns: Share, start: TirExpr) -> None:
    """Sums over ``columns`` of a block that starts at ``start``: to the output, or onto those of earlier blocks."""
    room, vectors, is_blocked = context.room, context.vectors, context.kernel["cols"]
    lines = [tile.local + i64(row) for row in range(tile.height)]
    for places, limit in _along_e(context):
        sums = _slots(context, tile.height, len(places), is_cleared=not is_blocked)
        for line, local in zip(sums, lines, strict=True) if is_blocked else ():
            factor = bound(room["factor"][local])
            for slot, e in zip(line, places, strict=True):
                scaled = room["mixed"][local, vectors.ramp(e)] * tirx.Broadcast(factor, context.lanes)
                I.buffer_store(slot, scaled, [context.every])
        for column in _turns(context, *columns):
            weights = [room["scores"][local, column - start] for local in lines]
            loaded = [context.load(context.chain.v, context.lanes, limit, j=column, e=e) for e in places]
            _add_products(context, sums, weights, loaded)
        for row in tile.existing():
            for slot, e in zip(sums[row], places, strict=True):
                if is_blocked:
                    I.buffer_store(room["mixed"], slot[context.every], [lines[row], vectors.ramp(e)])
                else:
                    _write(context, tile.row + i64(row), lines[row], e, slot[context.every], limit)


def _slots(context: Context, height: int, vectors: int, is_cleared: bool = True) -> Slots:
    sums = [[I.alloc_buffer((context.lanes,), DTYPE) for _ in range(vectors)] for _ in range(height)]
    for slot in (slot for line in sums for slot in line if is_cleared):
        I.buffer_store(slot, context.vectors.zero(), [context.every])
    return sums


def _turns(context: Context, first: TirExpr, end: TirExpr) -> Iterator[TirExpr]:
    """Steps of a sum, ``ku`` of them a turn, then those that are left over."""
    unroll = context.kernel["ku"]
    if unroll == 1:
        with I.serial(first, end) as at:
            yield at
        return
    turns = I.Bind(tirx.floordiv(end - first, i64(unroll)))
    with I.serial(i64(0), turns) as turn:
        for number in range(unroll):
            yield first + turn * i64(unroll) + i64(number)
    if not is_multiple(end - first, unroll):
        with I.serial(first + turns * i64(unroll), end) as at:
            yield at


def _add_products(context: Context, sums: Slots, rows: list[TirExpr], columns: list[TirExpr]) -> None:
    """One step of a sum: the outer product of scalars and vectors."""
    columns = [I.Bind(column) for column in columns]
    for line, row in zip(sums, rows, strict=True):
        value = I.Bind(tirx.Broadcast(row, context.lanes))
        for slot, column in zip(line, columns, strict=True):
            I.buffer_store(slot, slot[context.every] + value * column, [context.every])


# -- the output -------------------------------------------------------------------------------------------------------
def write_rows(context: Context, row: TirExpr, rows: TirExpr) -> None:
    """The output of a block of rows, from the sums over all blocks of columns."""
    with I.serial(i64(0), rows) as local:
        for places, limit in _along_e(context):
            for e in places:
                value = context.room["mixed"][local, context.vectors.ramp(e)]
                _write(context, row + local, local, e, value, limit)


def _write(context: Context, row: TirExpr, local: TirExpr, e: TirExpr, value: TirExpr, limit: TirExpr | None) -> None:
    """A vector of sums, divided by that of the row's exponentials and through what is behind it, to the output."""
    chain, context = context.chain, context.at(i=row, e=e)
    reciprocal = bound(tirx.Broadcast(bound(context.room["total"][local]), context.lanes))
    quotient = bound(value * reciprocal)
    if chain.is_guarded:
        # Whatever stands at the values of a row that is hidden whole.
        nothing = context.vectors.zero()
        quotient = bound(tirx.Select(tirx.EQ(reciprocal, nothing), nothing, quotient))
    result = bound(context.value(chain.out, quotient, "e", limit))
    *outer, last = (context.index[axis] for axis in chain.out_axes)
    (output,) = context.task.workload.outputs
    if output.dtype != DTYPE:
        result = stored(bound(cast(result, output.dtype)), output.dtype)
    context.vectors.store(context.function.buffers[output.name], result, outer, last, limit)
