"""Minimal filtering of windows of 3 x 3 taps: F(m x m, 3 x 3) computes m x m neighbouring outputs from a tile of
m + 2 by m + 2 elements.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4; the transforms are those of
Toom and Cook: polynomials are multiplied by their values at points. ``layout.FILTERS`` has what becomes of the taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.schedule.layout import INNER, OUTER
from tuner.schedule.tir import TirExpr
from tuner.schedule.vector.arithmetic import bound, like, multiply_add

TAPS = 3
Along = Callable[[Sequence[TirExpr]], list[TirExpr]]
"""A transform along one axis of a tile."""


@dataclass(frozen=True)
class Filtering:
    """F(m x m, 3 x 3) of ``outputs`` m. ``input``: B^T, from the elements of a tile to what is multiplied; ``output``:
    A^T, from sums of products to outputs."""

    outputs: int
    input: Along
    output: Along

    @property
    def tile(self) -> int:
        """Elements of a tile along each axis."""
        return self.outputs + TAPS - 1

    @property
    def points(self) -> int:
        """Multiplications for a tile of one channel."""
        return self.tile**2

    def forward(self, tile: Sequence[Sequence[TirExpr]]) -> list[TirExpr]:
        """B^T d B, row by row."""
        return _both(tile, self.input)

    def backward(self, sums: Sequence[Sequence[TirExpr]]) -> list[TirExpr]:
        """A^T m A, row by row."""
        return _both(sums, self.output)


def _both(square: Sequence[Sequence[TirExpr]], along: Along) -> list[TirExpr]:
    """A transform along the columns of a square, then along its rows."""
    columns = [along([line[j] for line in square]) for j in range(len(square))]
    return [value for i in range(len(columns[0])) for value in along([column[i] for column in columns])]


# -- F(2, 3): the points 0, 1, -1 and infinity ------------------------------------------------------------------------
def _input_of_two(d: Sequence[TirExpr]) -> list[TirExpr]:
    return [bound(d[0] - d[2]), bound(d[1] + d[2]), bound(d[2] - d[1]), bound(d[1] - d[3])]


def _output_of_two(m: Sequence[TirExpr]) -> list[TirExpr]:
    return [bound(bound(m[0] + m[1]) + m[2]), bound(bound(m[1] - m[2]) - m[3])]


# -- F(4, 3): the points 0, +-a, +-b and infinity ---------------------------------------------------------------------
A2, B2 = INNER**2, OUTER**2
"""With the usual points, 1 and 2, errors are about twice as large (decision 120)."""


def _plus(value: TirExpr, factor: float, to: TirExpr) -> TirExpr:
    return bound(multiply_add(like(factor, value), value, to))


def _times(factor: float, value: TirExpr) -> TirExpr:
    return bound(like(factor, value) * value)


def _input_of_four(d: Sequence[TirExpr]) -> list[TirExpr]:
    first, last = (_plus(d[at], A2 * B2, _plus(d[at + 2], -A2 - B2, d[at + 4])) for at in range(2))
    pairs = []
    for point, other in ((INNER, B2), (OUTER, A2)):
        even, odd = (_plus(d[at], -other, d[at + 2]) for at in (2, 1))
        pairs += [_plus(odd, sign * point, even) for sign in (1, -1)]
    return [first, *pairs, last]


def _output_of_four(m: Sequence[TirExpr]) -> list[TirExpr]:
    (even, odd), (evens, odds) = ((bound(m[at] + m[at + 1]), bound(m[at] - m[at + 1])) for at in (1, 3))
    return [
        bound(bound(m[0] + even) + evens),
        _plus(odds, OUTER, _times(INNER, odd)),
        _plus(evens, B2, _times(A2, even)),
        _plus(odds, OUTER**3, _plus(odd, INNER**3, m[5])),
    ]


FILTERINGS = {2: Filtering(2, _input_of_two, _output_of_two), 4: Filtering(4, _input_of_four, _output_of_four)}
"""By outputs."""
