"""Minimal filtering of windows of 3 x 3 taps: F(m x m, 3 x 3) computes m x m neighbouring outputs from a tile of
m + 2 by m + 2 elements, or of 2 m + 1 by 2 m + 1 with a stride of 2.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4; the transforms are those of
Toom and Cook: polynomials are multiplied by their values at points. ``filters.FILTERS`` has what becomes of the taps.

With a stride of 2 there are two filterings: the first and the last tap meet the even elements of a tile, the middle
one the odd ones. That of two taps has the points and infinity, that of one tap the same points. Both have their sums
there, so that they are added before they are transformed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.schedule.filters import INNER, INNER_STRIDED, OUTER, OUTER_STRIDED
from tuner.schedule.tir import TirExpr
from tuner.schedule.vector.arithmetic import bound, like, multiply_add

TAPS = 3
Along = Callable[[Sequence[TirExpr]], list[TirExpr]]
"""A transform along one axis of a tile."""


@dataclass(frozen=True)
class Filtering:
    """F(m x m, 3 x 3) of ``outputs`` m, with this ``stride``. ``input``: B^T, from the elements of a tile to
    what is multiplied; ``output``: A^T, from sums of products to outputs."""

    outputs: int
    stride: int
    input: Along
    output: Along

    @property
    def span(self) -> int:
        """Elements from a tile to the next one."""
        return self.outputs * self.stride

    @property
    def tile(self) -> int:
        """Elements of a tile along each axis, and numbers that they become."""
        return self.span - self.stride + TAPS

    @property
    def side(self) -> int:
        """Points along each axis, at each of which there is a sum."""
        return self.outputs + -(-TAPS // self.stride) - 1

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


# -- F(4, 3): the points 0, +-a, +-b and infinity ----------------------------------------------------------------------
def _plus(value: TirExpr, factor: float, to: TirExpr) -> TirExpr:
    return bound(multiply_add(like(factor, value), value, to))


def _times(factor: float, value: TirExpr) -> TirExpr:
    return bound(like(factor, value) * value)


@dataclass(frozen=True)
class _Pairs:
    """The points +-``inner`` and +-``outer``."""

    inner: float
    outer: float

    def at(self, d: Sequence[TirExpr]) -> list[TirExpr]:
        """The values of four elements at the points, each times the differences from the other points."""
        found = []
        for point, other in ((self.inner, self.outer), (self.outer, self.inner)):
            high, low = (_plus(d[at], -(other**2), d[at + 2]) for at in (1, 0))
            found += [_plus(low, sign * point, high) for sign in (1, -1)]
        return found

    def beyond(self, d: Sequence[TirExpr]) -> TirExpr:
        """The value of five elements, of which every second one counts, at 0 or infinity."""
        inner, outer = self.inner**2, self.outer**2
        return _plus(d[0], inner * outer, _plus(d[2], -inner - outer, d[4]))

    def back(self, m: Sequence[TirExpr], last: TirExpr, first: TirExpr | None = None) -> list[TirExpr]:
        """Four outputs of sums at these points, at infinity, and at 0."""
        (even, odd), (evens, odds) = ((bound(m[at] + m[at + 1]), bound(m[at] - m[at + 1])) for at in (0, 2))
        return [
            bound((even if first is None else bound(first + even)) + evens),
            _plus(odds, self.outer, _times(self.inner, odd)),
            _plus(evens, self.outer**2, _times(self.inner**2, even)),
            _plus(odds, self.outer**3, _plus(odd, self.inner**3, last)),
        ]


NEXT, STRIDED = _Pairs(INNER, OUTER), _Pairs(INNER_STRIDED, OUTER_STRIDED)
"""With the usual points, 1 and 2, errors of the former are about twice as large (decision 120); of the latter, see
decision 126."""


def _input_of_four(d: Sequence[TirExpr]) -> list[TirExpr]:
    first, last = (NEXT.beyond(d[at:]) for at in range(2))
    return [first, *NEXT.at(d[1:]), last]


def _output_of_four(m: Sequence[TirExpr]) -> list[TirExpr]:
    return NEXT.back(m[1:5], m[5], m[0])


# -- with a stride of 2: the points +-1 and infinity, or +-a, +-b and infinity -----------------------------------------
def _input_of_two_strided(d: Sequence[TirExpr]) -> list[TirExpr]:
    even, odd = d[::2], d[1::2]
    of_even, of_odd = ([bound(each[1] + each[0]), bound(each[1] - each[0])] for each in (even, odd))
    return [*of_even, bound(even[2] - even[0]), *of_odd]


def _output_of_two_strided(m: Sequence[TirExpr]) -> list[TirExpr]:
    return [bound(m[0] + m[1]), bound(bound(m[0] - m[1]) + m[2])]


def _input_of_four_strided(d: Sequence[TirExpr]) -> list[TirExpr]:
    even, odd = d[::2], d[1::2]
    return [*STRIDED.at(even), STRIDED.beyond(even), *STRIDED.at(odd)]


def _output_of_four_strided(m: Sequence[TirExpr]) -> list[TirExpr]:
    return STRIDED.back(m[:4], m[4])


_ALL = (
    Filtering(2, 1, _input_of_two, _output_of_two),
    Filtering(4, 1, _input_of_four, _output_of_four),
    Filtering(2, 2, _input_of_two_strided, _output_of_two_strided),
    Filtering(4, 2, _input_of_four_strided, _output_of_four_strided),
)
FILTERINGS = {(each.outputs, each.stride): each for each in _ALL}
"""By outputs and stride."""
