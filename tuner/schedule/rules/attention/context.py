"""One kernel of attention while it is written: its tiles, what a thread keeps, and which columns rows see."""

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
from tuner.schedule.rules.attention.words import words_of
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import loaded
from tuner.schedule.vector.memory import DTYPE, Vectors, workspace


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
    keeps (``allocated``). ``scored`` and ``mixing``: the words of both products that are multiplied by an instruction
    on several neighbouring elements; ``unit``: where that is of a matrix unit."""

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
        self.scored, self.mixing = words_of(task, self.chain, kernel)
        self.unit = self.scored.atom.unit if self.scored else None

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
        ``ends`` of the columns of each row and more (``range_places``). Keys may be words along d; where values are
        words along j there are ``values`` [panels of e, words, ev], v packed, and ``weights``, rounded exponentials.
        ``queries`` is q as words, for a matrix unit."""
        rows, lanes, cols, ev = i64(self.height), self.lanes, self.kernel["cols"], self.kernel["ev"] * self.lanes
        panels = ceil_div(self.extent["j"], self.nr)
        # Rows of scores start a vector and more apart from a power of two: those of a tile are read side by side.
        width = (i64(cols * self.nr) if cols else panels * i64(self.nr)) + i64(lanes)
        shapes: dict[str, tuple[TirExpr, ...]] = {}
        dtypes: dict[str, str] = {}
        if self.kernel["pack"]:
            square = lanes * (self.scored.atom.group if self.scored else 1)
            shapes["keys"] = panels, ceil_div(self.extent["d"], square) * i64(lanes), i64(self.nr)
        if self.scored:
            dtypes["keys"] = self.scored.register
        if self.mixing:
            atom = self.mixing.atom
            # A multiplication in a unit begins at any word, and takes several vectors of weights.
            words = ceil_div(self.extent["j"], atom.group) + i64(atom.steps)
            wide = width + i64(max(0, atom.depth - lanes)) if self.unit else width
            shapes |= {"values": (ceil_div(self.extent["e"], ev), words, i64(ev)), "weights": (rows, wide)}
            dtypes |= {"values": self.mixing.register, "weights": self.mixing.atom.element}
        shapes |= {"scores": (rows, width), "top": (rows,), "total": (rows,)}
        if cols:
            shapes["factor"] = (rows,)
        if cols or self.unit:
            shapes["mixed"] = (rows, ceil_div(self.extent["e"], ev) * i64(ev))
        if self.unit and self.scored:
            shapes["queries"] = rows, ceil_div(self.extent["d"], self.scored.width) * i64(lanes)
            dtypes["queries"] = self.scored.register
        with ExitStack() as stack:
            other = copy(self)
            other.room = {
                name: stack.enter_context(workspace(shape, dtypes.get(name, DTYPE))) for name, shape in shapes.items()
            }
            if self.has_limits:
                size = (self.range_places()[2] + i64(1),)
                other.room |= {name: stack.enter_context(workspace(size, "int64")) for name in ("firsts", "ends")}
            yield other

    def load(self, read: Read, lanes: int, limit: TirExpr | None, **index: TirExpr) -> TirExpr:
        """An element of q, k or v as float32, or ``lanes`` of them along the last index; those at and past ``limit``
        are not touched and give zero."""
        dtype = self.task.workload.tensors[read.tensor].dtype
        buffer, (*outer, last) = self.place(read, **index)
        value = buffer[(*outer, last)] if lanes == 1 else self.vectors.load(buffer, outer, last, limit)
        return value if dtype == DTYPE else bound(loaded(bound(value), dtype))

    def place(self, read: Read, **index: TirExpr) -> tuple[TirExpr, list[TirExpr]]:
        """The buffer that a read is of, and its indices there."""
        function = self.function
        reader = Reader(self.task.workload, function, function.buffers, {**self.index, **index}, 1, None)
        return function.buffers[read.tensor], list(reader.indices(read))

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
