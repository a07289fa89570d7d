"""Rows of scores become exponentials, with their maximum and sum.

Where there are several blocks of columns, what was summed before is scaled from the old maximum to the new one (online
softmax: Milakov and Gimelshein 2018, section 3; FlashAttention, algorithm 1). A block whose columns are all hidden has
the maximum -inf; 0 stands in its place, so that the exponentials are 0 and not those of -inf + inf.
"""

from __future__ import annotations

import math

from tuner.schedule.rules.attention.tile import Frame, up
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, combined
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.elementary import exp
from tuner.schedule.vector.memory import DTYPE

LOWEST = -3.4028234663852886e38
"""The lowest finite float32."""


class Row:
    """Row ``row``, ``local`` in its block; of its columns from ``first`` to ``end``, in a block that starts at
    ``start``."""

    def __init__(
        self, frame: Frame, row: TirExpr, local: TirExpr, columns: tuple[TirExpr, TirExpr], start: TirExpr
    ) -> None:
        self.frame, self.row, self.local, self.start = frame.at({"i": row}), row, local, start
        self.first, self.end = columns
        self.lanes = frame.lanes

    def emit(self) -> None:
        room = self.frame.room
        top = self._top()
        if self.frame.is_blocked:
            old = bound(room.top[self.local])
            top = bound(tirx.max(old, top))
            safe = _safe(top)
            factor = bound(exp(combined("-", old, safe)))
            I.buffer_store(room.top, top, [self.local])
            I.buffer_store(room.factor, factor, [self.local])
            total = bound(room.total[self.local] * factor) + self._exponentials(safe)
        else:
            total = self._exponentials(_safe(top) if self.frame.chain.is_guarded else top)
        I.buffer_store(room.total, total, [self.local])

    # -- the maximum --------------------------------------------------------------------------------------------------
    def _top(self) -> TirExpr:
        """The scores as the program has them, in the place of the products; their maximum.

        A maximum that loses a NaN does no harm: the exponential of NaN is NaN, and so is every sum with it.
        """
        top = I.alloc_buffer((self.lanes,), DTYPE)
        every = self.frame.vectors.ramp(0)
        I.buffer_store(top, constant(-math.inf, DTYPE, self.lanes), [every])
        for first, end, is_inside in self._parts():
            with I.serial(first, end) as number:
                column = I.Bind(number * i64(self.lanes))
                value = bound(self._score(column, is_inside))
                I.buffer_store(self.frame.room.scores, value, self._place(column))
                I.buffer_store(top, tirx.max(top[every], value), [every])
        return bound(self.frame.vectors.across(top[every], tirx.max))

    def _parts(self) -> list[tuple[TirExpr, TirExpr, bool]]:
        """Vectors, and whether all of their columns are visible."""
        bounds, j = self.frame.chain.mask.bounds, self.frame.extent["j"]
        whole, last = tirx.floordiv(self.first, i64(self.lanes)), I.Bind(up(self.end, self.lanes))
        if not bounds:
            if isinstance(j, tirx.IntImm) and int(j) % self.lanes == 0:
                return [(whole, last, True)]
            inside = I.Bind(tirx.floordiv(self.end, i64(self.lanes)))
            return [(whole, inside, True), (inside, last, False)]
        end = tirx.max(tirx.min(self.frame.end_column(self.row), self.end), self.first)
        if not self.frame.has_lower_bound:
            inside = I.Bind(tirx.floordiv(end, i64(self.lanes)))
            return [(whole, inside, True), (inside, last, False)]
        first = tirx.max(tirx.min(self.frame.first_column(self.row), self.end), self.first)
        visible = I.Bind(up(first, self.lanes))
        inside = I.Bind(tirx.max(tirx.floordiv(end, i64(self.lanes)), visible))
        return [(whole, visible, False), (visible, inside, True), (inside, last, False)]

    def _score(self, column: TirExpr, is_inside: bool) -> TirExpr:
        mask = self.frame.chain.mask
        product = bound(self.frame.room.scores[tuple(self._place(column))])
        if is_inside:
            return self.frame.value(mask.inside, product, "j", None, j=column)
        value = bound(self.frame.value(mask.score, product, "j", self.frame.extent["j"], j=column))
        lane = tirx.Ramp(column, i64(1), self.lanes)
        hidden = constant(-math.inf, DTYPE, self.lanes)
        return tirx.Select(lane < tirx.Broadcast(self.end, self.lanes), value, hidden)

    # -- the exponentials ---------------------------------------------------------------------------------------------
    def _exponentials(self, top: TirExpr) -> TirExpr:
        """exp(score - top) in the place of the scores; their sum."""
        total = I.alloc_buffer((self.lanes,), DTYPE)
        every = self.frame.vectors.ramp(0)
        I.buffer_store(total, self.frame.vectors.zero(), [every])
        tops = bound(tirx.Broadcast(top, self.lanes))
        with I.serial(tirx.floordiv(self.first, i64(self.lanes)), up(self.end, self.lanes)) as number:
            place = self._place(number * i64(self.lanes))
            score = bound(self.frame.room.scores[tuple(place)])
            value = bound(exp(combined("-", score, tops)))
            I.buffer_store(self.frame.room.scores, value, place)
            I.buffer_store(total, total[every] + value, [every])
        return self.frame.vectors.total(total[every])

    def _place(self, column: TirExpr) -> list[TirExpr]:
        return [self.local, self.frame.vectors.ramp(column - self.start)]


def _safe(top: TirExpr) -> TirExpr:
    """0 in the place of -inf: the exponentials of what is hidden are 0 then, also where all of it is."""
    return bound(tirx.Select(top < constant(LOWEST, DTYPE, 1), constant(0, DTYPE, 1), top))
