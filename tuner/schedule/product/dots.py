"""Products of rows with rows, ``out[m, n] = sum_k left[m, k] * right[n, k]``, where nothing is packed.

Vectors run along k, so both operands are read as they lie, and each sum is added up across its vector at the end. That
costs more for each element of the output than packing does for many rows, and far less for few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.product import Place, ceil_div
from tuner.schedule.product.tile import through_epilogue
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import stored_as
from tuner.schedule.vector.memory import DTYPE, Vectors


def dots(
    context: EmitContext, tiles: tuple[TirExpr, TirExpr], panels: tuple[TirExpr, TirExpr], is_last: TirExpr
) -> None:
    """Tiles of ``mr`` rows by ``nv`` columns; surplus ones repeat the last valid ones and are not stored."""
    mr, nv = context.kernel["mr"], context.kernel["nv"]
    m, n = context.extent["m"], context.extent["n"]
    # The last share has the ragged rest of the rows, as one more tile.
    rest = tirx.Select(is_last, ceil_div(m, mr) - tirx.floordiv(m, i64(mr)), i64(0))
    with I.serial(tiles[0], tiles[1] + rest) as tile:
        rows = [tile * i64(mr) + i64(r) for r in range(mr)]
        with I.serial(*panels) as panel:
            _tile(context, rows, [panel * i64(nv) + i64(c) for c in range(nv)])
        if context.result.epilogue:
            _through_epilogue(context, tile * i64(mr), (panels[0] * i64(nv), tirx.min(panels[1] * i64(nv), n)))


def _tile(context: EmitContext, rows: Sequence[TirExpr], columns: Sequence[TirExpr]) -> None:
    vectors, m, n, words = context.vectors, context.extent["m"], context.extent["n"], context.words
    lanes, every, wide = vectors.lanes, vectors.ramp(0), Vectors(words.width)
    slots = [[I.alloc_buffer((lanes,), DTYPE) for _ in columns] for _ in rows]
    for slot in (slot for line in slots for slot in line):
        I.buffer_store(slot, vectors.zero(), [every])

    def step(p: TirExpr, limit: TirExpr | None) -> None:
        def load(
            place_of: Callable[[EmitContext, TirExpr], Place], index: TirExpr, size: TirExpr, dtype: str
        ) -> TirExpr:
            buffer, place = place_of(context, tirx.min(index, size - i64(1)))
            return I.Bind(words.taken(wide.load(buffer, place, p, limit), dtype))

        right = [load(context.right.step, column, n, context.right.dtype) for column in columns]
        for row, line in zip(rows, slots, strict=True):
            left = load(context.left.row, row, m, context.left.dtype)
            for slot, column in zip(line, right, strict=True):
                I.buffer_store(slot, words.atom.products(slot[every], left, column), [every])

    first, k = _elements(context)
    whole = tirx.floordiv(k, i64(wide.lanes))
    with I.serial(i64(0), whole) as turn:
        step(first + turn * i64(wide.lanes), None)
    with I.If(whole * i64(wide.lanes) < k), I.Then():
        step(first + whole * i64(wide.lanes), first + k)
    for row, line in zip(rows, slots, strict=True):
        for column, slot in zip(columns, line, strict=True):
            with I.If(tirx.And(row < m, column < n)), I.Then():
                total, dtype = vectors.total(slot[every]), context.result.dtype
                buffer, place = context.result.row(context, row)
                I.buffer_store(buffer, total if dtype == DTYPE else stored_as(bound(total), dtype), [*place, column])


def _elements(context: EmitContext) -> tuple[TirExpr, TirExpr]:
    """The first element of k of the kernel's share, and how many there are: its steps are of words."""
    first, length, group = context.steps.first, context.steps.length, i64(context.words.atom.group)
    if context.words.atom.group == 1:
        return first, length
    begin = bound(first * group)
    return begin, bound(tirx.min(length * group, context.depth - begin))


def _through_epilogue(context: EmitContext, row: TirExpr, columns: tuple[TirExpr, TirExpr]) -> None:
    """The sums of a tile's rows once more, while they are in L1."""
    vectors = context.vectors
    height = tirx.min(i64(context.kernel["mr"]), context.extent["m"] - row)
    first, last = columns
    with I.serial(i64(0), height) as r, I.serial(i64(0), ceil_div(last - first, vectors.lanes)) as v:
        column = I.Bind(first + v * i64(vectors.lanes))
        buffer, place = context.result.row(context, row + r)
        value = vectors.load(buffer, place, column, last)
        value = through_epilogue(context, value, row + r, column, last)
        vectors.store(buffer, value, place, column, last)
