"""Operands rearranged at each call, so that the register tile reads contiguous, aligned memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tuner.schedule.product.frame import Chunk, Frame, Panel, Rows
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.dot_products import step_type
from tuner.schedule.vector.dtypes import vector_type
from tuner.schedule.vector.memory import workspace


@dataclass(frozen=True)
class Place:
    """Of a panel that is packed at the call, vector ``v`` of the columns and the rows from ``row`` on."""

    panel: Panel
    v: TirExpr
    row: TirExpr


def padded(frame: Frame, length: TirExpr) -> TirExpr:
    """``length`` rounded up to whole vectors."""
    lanes = frame.vectors.lanes
    return tirx.floordiv(length + i64(lanes - 1), i64(lanes)) * i64(lanes)


def pack_panel(frame: Frame, panel: Panel, chunk: Chunk) -> None:
    """Fill ``panel.packed`` with the panel's slice of the right operand at these steps of k."""
    if frame.contraction.right_is_kn:
        _copy(frame, panel, chunk)
    else:
        _transpose(frame, panel, chunk)


def _copy(frame: Frame, panel: Panel, chunk: Chunk) -> None:
    lanes = frame.vectors.lanes
    with I.serial(i64(0), chunk.length) as step:
        for v in range(panel.vectors):
            buffer, place = frame.right_step(chunk.first + step)
            value = frame.vectors.load(buffer, place, panel.column + i64(v * lanes), panel.limit)
            value = frame.words.element(value, frame.words.right)
            to = [panel.index, chunk.first - panel.first + step, frame.vectors.ramp(i64(v * lanes))]
            I.buffer_store(panel.packed, value, to)


def _transpose(frame: Frame, panel: Panel, chunk: Chunk) -> None:
    """Squares of lanes x lanes elements, turned over in registers; the last one reads no further than k."""
    lanes = frame.vectors.lanes
    whole = tirx.floordiv(chunk.length, i64(lanes))
    with I.serial(i64(0), whole) as square:
        _squares(frame, panel, chunk, square * i64(lanes), None)
    with I.If(whole * i64(lanes) < chunk.length), I.Then():
        _squares(frame, panel, chunk, whole * i64(lanes), chunk.first + chunk.length)


def _squares(frame: Frame, panel: Panel, chunk: Chunk, step: TirExpr, limit: TirExpr | None) -> None:
    def elements(buffer: TirExpr, outer: tuple[TirExpr, ...]) -> TirExpr:
        value = frame.vectors.load(buffer, outer, chunk.first + step, limit)
        return frame.words.element(value, frame.words.right)

    with I.serial(i64(0), i64(panel.vectors)) as v:
        turned_square(frame, Place(panel, v, chunk.first - panel.first + step), elements)


def turned_square(frame: Frame, place: Place, words: Callable[[TirExpr, tuple[TirExpr, ...]], TirExpr]) -> None:
    """Fills as many rows of a panel there as a vector has lanes. ``words``: a vector along k of one column, which
    ``right_step`` has found; 32 bits in each lane."""
    panel, width, lanes, rows = place.panel, frame.words.width, frame.vectors.lanes, []
    for lane in range(lanes):
        column = panel.column + place.v * i64(lanes) + i64(lane)
        if panel.limit is not None:
            # Surplus columns hold copies of the last valid one; they are computed and not stored.
            column = tirx.min(column, panel.limit - i64(1))
        rows.append(I.Bind(words(*frame.right_step(column))))
    packed = vector_type(step_type(frame.words.dot), width)
    for lane, turned in enumerate(frame.vectors.transposed(rows)):
        value = turned if str(turned.ty.dtype) == packed else tirx.reinterpret(packed, turned)
        to = [panel.index, place.row + i64(lane), tirx.Ramp(place.v * i64(width), i64(1), width)]
        I.buffer_store(panel.packed, value, to)


@contextmanager
def packed_panels(frame: Frame, panels: TirExpr, steps: TirExpr) -> Iterator[TirExpr]:
    """Room for so many panels of so many steps of k."""
    dot = frame.words.dot
    with workspace((panels, padded(frame, steps), i64(frame.nr * dot.group)), step_type(dot)) as buffer:
        yield buffer


@contextmanager
def packed_rows(frame: Frame, rows: int, steps: TirExpr) -> Iterator[TirExpr]:
    """Room for so many rows of the left operand. Rows start a cache line and more apart from a power of two, so that
    the rows of a tile do not fall on the same lines of a cache."""
    shape = i64(rows), padded(frame, steps) + i64(frame.vectors.lanes)
    with workspace(shape, frame.words.register) as buffer:
        yield buffer


def pack_rows(frame: Frame, rows: Rows, count: TirExpr, chunk: Chunk) -> None:
    """Copy ``count`` rows at these steps of k, as words in registers are."""
    lanes, words, group = frame.vectors.lanes, frame.words, frame.words.dot.group
    vectors = tirx.floordiv(chunk.length, i64(lanes))
    if frame.ragged_k is not None:
        # The last word of k is not read as a whole: elements of the next row times zero are NaN if those are infinite.
        elements = frame.ragged_k - chunk.first * i64(group)
        vectors = I.Bind(tirx.min(vectors, tirx.floordiv(elements, i64(lanes * group))))
    whole = vectors * i64(lanes)
    with I.serial(i64(0), count) as r:
        buffer, place = frame.left_row(rows.row + r)
        with I.serial(i64(0), vectors) as v:
            value = words.left_words(buffer, place, chunk.first + v * i64(lanes))
            I.buffer_store(rows.packed, value, [r, frame.vectors.ramp(v * i64(lanes))])
        with I.serial(whole, chunk.length) as p:
            I.buffer_store(rows.packed, words.left_word(buffer, place, chunk.first + p, frame.ragged_k), [r, p])
