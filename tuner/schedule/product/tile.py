"""The register tile: ``mr`` rows by ``nv`` vectors of totals over a chunk of k, and what becomes of them.

A ``Tile`` writes what comes before and behind the sums. The sums are those of a ``VectorTile``, in vector registers
(vectors.py), or of a ``MatrixTile`` in the registers of a matrix unit (matrices.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tuner.program.language.expr import Read
from tuner.program.language.notation import Stage
from tuner.schedule.access import is_transcendental
from tuner.schedule.product.context import Chunk, EmitContext, Panel, Run, where
from tuner.schedule.product.product import Late, can_hold_partial
from tuner.schedule.product.readers import RowReader
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, cast, element_type, loaded, stored_as
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE, prefetch


def is_short(stages: Sequence[Stage]) -> bool:
    """Whether an epilogue is worth its code beside every accumulator: transcendental functions unrolled into every
    variant of a tile would be most of a kernel's code."""
    return not any(is_transcendental(stage.body) for stage in stages)


def through_epilogue(
    context: EmitContext, value: TirExpr, row: TirExpr, column: TirExpr, limit: TirExpr | None
) -> TirExpr:
    """``value``, the vector of the output at ``row`` from ``column`` on, after each stage of the epilogue in turn.
    Further inputs are read before column ``limit`` (None: all of the vector's lanes are)."""
    tensors, known = context.task.workload.tensors, dict[str, TirExpr]()

    def read(node: Read) -> TirExpr:
        if node.tensor in known:
            return known[node.tensor]
        buffer, outer, has_columns = context.result.read(context, node, row)
        element = context.vectors.load(buffer, outer, column, limit) if has_columns else buffer[outer]
        dtype = tensors[node.tensor].dtype
        return element if dtype == DTYPE else bound(loaded(bound(element), dtype))

    def unused(name: str) -> TirExpr:
        raise NotImplementedError(f"the pattern admits no value of axis {name}")

    evaluator = Evaluator(context.task.workload.element_types, context.vectors.lanes, read, unused, unused)
    before = context.result.computed
    for stage in context.result.epilogue:
        known[before] = I.Bind(rounded(value, tensors[before].dtype))
        value, before = evaluator.value(stage.body), stage.tensor
    return value


def rounded(value: TirExpr, dtype: str) -> TirExpr:
    """``value`` as a tensor of ``dtype`` would hold it."""
    return value if element_type(value) == dtype else cast(bound(value), dtype)


def total_of(context: EmitContext) -> str:
    """The dtype of totals: that of the instruction, or float32 where its sums are multiplied by factors."""
    return context.words.atom.total if context.right.late(context) is None else DTYPE


Use = Callable[[TirExpr, TirExpr, TirExpr], None]
"""Writes what becomes of a vector of totals, of that row and that vector of a tile."""


@dataclass(eq=False)
class Tile(ABC):
    """Writes the code of one tile: ``height`` rows from ``row`` on; only the first ``valid`` ones are stored."""

    context: EmitContext
    panel: Panel
    chunk: Chunk
    rows: RowReader
    row: TirExpr
    height: int
    valid: TirExpr | None = None

    is_unrolled: ClassVar[bool]
    """Whether ``each`` writes code for each vector."""

    def __post_init__(self) -> None:
        assert self.panel.reader is not None
        self.columns, self.kernel, self.words = self.panel.reader, self.context.kernel, self.context.words
        self.vectors, self.lanes, self.atom = self.context.vectors, self.context.vectors.lanes, self.words.atom

    # -- the totals -----------------------------------------------------------------------------------------------
    @abstractmethod
    def clear(self) -> None:
        """Begin with zero, or with what compensates an offset."""

    @abstractmethod
    def resume(self) -> None:
        """Begin with ``partial``."""

    @abstractmethod
    def reduce(self, ordinal: TirExpr) -> None:
        """Add all products of the chunk of k. ``ordinal``: see ``emit``."""

    @abstractmethod
    def each(self, use: Use) -> None:
        """Every vector of the valid rows."""

    @property
    def late(self) -> Late | None:
        return self.context.right.late(self.context)

    @property
    def total(self) -> str:
        """The dtype of totals. Those of sums that are multiplied late are floats, whatever the sums are."""
        return total_of(self.context)

    def in_groups(self, late: Late, group: Callable[[Run], None]) -> None:
        """All steps of k, where those of a ``group`` share a factor that their sums are multiplied by."""
        length, steps = self.chunk.length, i64(late.steps)
        if self.context.part is not None and late.steps >= late.depth:
            group(Run(i64(0), length))
            return
        whole, rest = tirx.floordiv(length, steps), late.depth % late.steps
        with I.serial(i64(0), whole) as number:
            group(Run(bound(number * steps), steps))
        if rest:
            has_rest = None if self.context.part is None else whole * steps < length
            where(has_rest, lambda: group(Run(whole * steps, i64(rest))))

    # -- before and behind ----------------------------------------------------------------------------------------
    def emit(self, ordinal: TirExpr) -> None:
        """``ordinal``: which of the tiles over this panel it is, for the share of the next panel that it prefetches."""
        # In a slot, as the first step of a turn is: put into every index, they would make up most of the time of
        # building a kernel.
        self.row = bound(self.row)
        where(self.chunk.is_first, self.clear, self.resume)
        if self.kernel["fetch"]:
            self._fetch_output()
        self.reduce(ordinal)
        if self.context.kept is not None:
            where(self.chunk.is_last, self._store)
            return
        is_same = not self.context.result.epilogue and self.total == self.context.result.dtype
        is_same = is_same and self.columns.factors(self, i64(0)) is None
        where(None if is_same else self.chunk.is_last, self._store, self._store_partial)

    def _fetch_output(self) -> None:
        """Lines of the output are asked for before they are written, so that the stores do not wait."""
        for r in range(self.height):
            for v in range(self.panel.vectors):
                buffer, place, column = self._place(i64(r), i64(v))
                prefetch(buffer, (*place, column), write=True)

    def _store(self) -> None:
        """Totals go through the epilogue: through a short one in registers, through a long one over the tile again
        while it is in L1."""
        result = self.context.result
        if is_short(result.epilogue) or not can_hold_partial(result.dtype) or not self.is_unrolled:
            self.each(lambda value, r, v: self._write(r, v, self._result(value, r, v)))
            return
        self._store_partial()
        with I.serial(i64(0), self.count) as r, I.serial(i64(0), i64(self.panel.vectors)) as v:
            self._write(r, v, self._result(self.partial(r, v), r, v))

    def _store_partial(self) -> None:
        """Totals as they are, in the place of the output."""
        self.each(lambda value, r, v: self._write(r, v, as_bits(value, self.context.result.dtype)))

    def _result(self, value: TirExpr, r: TirExpr, v: TirExpr) -> TirExpr:
        """What of a total goes to the output."""
        dtype, column = self.context.result.dtype, self.panel.column + v * i64(self.lanes)
        factors = self.columns.factors(self, v)
        value = value if factors is None else value * factors
        value = through_epilogue(self.context, value, self.row + r, column, self.panel.limit)
        return value if dtype == DTYPE else stored_as(bound(value), dtype)

    def partial(self, r: TirExpr, v: TirExpr) -> TirExpr:
        """A vector of totals as ``_store_partial`` left it."""
        return as_bits(self.vectors.load(*self._place(r, v), self.panel.limit), self.total)

    def _write(self, r: TirExpr, v: TirExpr, value: TirExpr) -> None:
        buffer, place, column = self._place(r, v)
        self.vectors.store(buffer, value, place, column, self.panel.limit)

    def _place(self, r: TirExpr, v: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], TirExpr]:
        """Where the output has vector ``v`` of row ``r``."""
        buffer, place = self.context.result.row(self.context, self.row + r)
        return buffer, place, self.panel.column + v * i64(self.lanes)

    @property
    def count(self) -> TirExpr:
        """How many rows are valid."""
        return i64(self.height) if self.valid is None else self.valid
