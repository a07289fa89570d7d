"""k packed as panels; k and v packed as words: neighbouring elements of a sum side by side, for instructions on several
of them at once."""

from __future__ import annotations

from tuner.program.language.expr import Read
from tuner.schedule.loops.shares import Share
from tuner.schedule.product.atom import Words
from tuner.schedule.product.product import ceil_div
from tuner.schedule.rules.attention.context import Context
from tuner.schedule.rules.attention.tile import along_d
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.dtypes import vector_type
from tuner.schedule.vector.memory import Vectors


def pack_keys(context: Context, columns: Share) -> None:
    """Panels of k that hold ``columns`` as [d, nr] each; surplus columns repeat the last one, or are zero."""
    nr, lanes, k, j = context.nr, context.lanes, context.chain.k, context.extent["j"]
    panels = tirx.floordiv(columns[0], i64(nr)), ceil_div(columns[1], nr)
    with I.serial(*panels) as panel, I.serial(i64(0), i64(context.kernel["nv"])) as v:
        column, place = I.Bind(panel * i64(nr) + v * i64(lanes)), context.vectors.ramp(v * i64(lanes))
        if context.chain.j_is_last:
            with I.serial(i64(0), context.extent["d"]) as step:
                value = context.load(k, lanes, j, j=column, d=step)
                I.buffer_store(context.room["keys"], value, [panel, step, place])
            return
        for step, limit in along_d(context):
            # Squares of lanes x lanes elements, turned over in registers.
            own = [tirx.min(column + i64(lane), j - i64(1)) for lane in range(lanes)]
            rows = [I.Bind(context.load(k, lanes, limit, j=each, d=step)) for each in own]
            for lane, value in enumerate(context.vectors.transposed(rows)):
                I.buffer_store(context.room["keys"], value, [panel, step + i64(lane), place])


def pack_words_of_keys(context: Context, columns: Share) -> None:
    """Panels of k that hold ``columns`` as [words of d, nr] each; surplus columns repeat the last one, or are zero."""
    words, nr, lanes = context.scored, context.nr, context.lanes
    assert words is not None
    atom, size = words.atom, context.extent["d"]
    # Of a matrix unit, words that there are not are zero.
    count = ceil_div(size, atom.depth) * i64(atom.steps) if context.chain.j_is_last else ceil_div(size, words.width)
    panels = tirx.floordiv(columns[0], i64(nr)), ceil_div(columns[1], nr)
    with I.serial(*panels) as panel, I.serial(i64(0), i64(context.kernel["nv"])) as v:
        column, place = I.Bind(panel * i64(nr) + v * i64(lanes)), context.vectors.ramp(v * i64(lanes))
        with I.serial(i64(0), count) as at:
            if context.chain.j_is_last:
                value = _side_by_side(context, words, context.chain.k, ("d", at), ("j", column))
                I.buffer_store(context.room["keys"], value, [panel, at, place])
            else:
                for lane, value in enumerate(_square(context, words, column, at)):
                    I.buffer_store(context.room["keys"], value, [panel, at * i64(lanes) + i64(lane), place])


def _square(context: Context, words: Words, column: TirExpr, number: TirExpr) -> list[TirExpr]:
    """A square of words: vectors along d of as many columns as a vector has lanes, turned over in registers."""
    lanes, j, d = context.lanes, context.extent["j"], context.extent["d"]
    first, rows = I.Bind(number * i64(words.width)), []
    for lane in range(lanes):
        buffer, (*outer, last) = context.place(context.chain.k, j=tirx.min(column + i64(lane), j - i64(1)), d=first)
        limit = None if isinstance(d, tirx.IntImm) and int(d) % words.width == 0 else d
        elements = Vectors(words.width).load(buffer, outer, last, limit)
        rows.append(I.Bind(words.of_column(elements)))
    return context.vectors.transposed(rows)


def pack_words_of_values(context: Context, columns: Share) -> None:
    """v of ``columns`` as panels along e of words along j. What is behind the last column or element is zero."""
    words, lanes = context.mixing, context.lanes
    assert words is not None
    group, width = words.atom.group, i64(context.kernel["ev"] * lanes)
    # A matrix unit reads behind the last word of a tile's columns.
    more = words.atom.steps if context.unit else 0
    span = tirx.floordiv(columns[0], i64(group)), ceil_div(columns[1], group) + i64(more)
    with I.serial(*span) as word, I.serial(i64(0), ceil_div(context.extent["e"], lanes)) as v:
        e = I.Bind(v * i64(lanes))
        value = _side_by_side(context, words, context.chain.v, ("j", word), ("e", e))
        panel, inside = tirx.floordiv(e, width), tirx.floormod(e, width)
        I.buffer_store(context.room["values"], value, [panel, word, context.vectors.ramp(inside)])


def _side_by_side(
    context: Context, words: Words, read: Read, across: tuple[str, TirExpr], along: tuple[str, TirExpr]
) -> TirExpr:
    """The words number ``across[1]`` of an axis in which a word's elements are apart, from a place ``along`` an axis
    that they lie along."""
    (axis, number), (lying, place) = across, along
    count, limit, group = context.extent[axis], context.extent[lying], words.atom.group
    neighbours = []
    for member in range(group):
        at = I.Bind(number * i64(group) + i64(member))
        buffer, (*outer, last) = context.place(read, **{axis: tirx.min(at, count - i64(1)), lying: place})
        # Nothing of an element that there is not.
        end = tirx.Select(at < count, limit, i64(0)) if member or context.unit else limit
        neighbours.append(context.vectors.load(buffer, outer, last, I.Bind(end)))
    value = words.of_columns(neighbours)
    return tirx.reinterpret(vector_type(words.register, context.lanes), value)
