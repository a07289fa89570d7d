"""Right operands whose columns are pixels: with channels outside, a vector of columns at a step of k is a part of the
lines of an image, the same part for every step but for where it begins. So a copy of the image, padded, takes the place
of gathered panels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.expr import Axis, Expr, Read, axes_of, reads
from tuner.program.target import Hardware
from tuner.program.workload import Workload
from tuner.schedule.product.match.parts import Part
from tuner.schedule.product.operands.image import Dim, dim_of

MAX_COLUMNS = 2**16
"""Of one value of the outermost axis, for which it is looked through whether two vectors hold what one has."""
COPY_OF_L2 = 0.5
"""The share of L2 that a copy may take."""


@dataclass(frozen=True)
class Columns:
    """``read`` at ``dims``, the columns' axes outermost first, which are its indices ``at``; ``channel`` of
    ``channels`` and what is not in n are its other indices.

    ``sizes`` of all dims but the first, and ``pitches``: how many indices of each the copy has. Padding behind a line
    is the padding before the next one where it may be. ``reach``: of a window behind its first element, in each dim.
    """

    read: Read
    dims: tuple[Dim, ...]
    at: tuple[int, ...]
    channel: str
    channels: int
    sizes: tuple[int, ...]
    pitches: tuple[int, ...]
    reach: tuple[int, ...]

    @property
    def inner(self) -> int:
        """Columns of one value of the outermost axis."""
        return math.prod(self.sizes)

    @property
    def lines_below(self) -> int:
        """Lines of the copy that windows reach behind the one that they begin in."""
        below = 0
        for reach, pitch in zip(self.reach[:-1], (1, *self.pitches[:-1]), strict=True):
            below = below * pitch + reach
        return below + 1

    def lines(self, columns: int) -> int:
        """No fewer lines of the copy than windows that begin at so many neighbouring columns touch."""
        *outer, (size, _) = zip(self.sizes, self.pitches, strict=True)
        runs = (columns + size - 2) // size + 1
        lines, between = runs, 1
        for extent, pitch in reversed(outer):
            runs = (runs + extent - 2) // extent + 1
            lines += (runs - 1) * (pitch - extent) * between
            between *= pitch
        return lines + self.lines_below

    def plane(self, columns: int, lanes: int) -> int:
        """Elements of a channel in a copy for so many columns: an odd number of vectors, so that channels do not fall
        on the same lines of a cache. Vectors are read and written past the last line."""
        elements = self.lines(columns) * self.pitches[-1] + self.reach[-1] + 2 * lanes
        return (-(-elements // lanes) | 1) * lanes

    @lru_cache(maxsize=1024)  # noqa: B019 - a few numbers, and the cache is bounded
    def panels(self, width: int, lanes: int, limit: int) -> int:
        """How many panels of ``width`` columns have a copy of no more than ``limit`` bytes; one at least."""
        panels = 1
        while panels < MAX_COLUMNS and self.channels * self.plane(2 * panels * width, lanes) * 4 <= limit:
            panels *= 2
        return panels

    def is_straight(self, lanes: int) -> bool:
        """Whether vectors of columns are contiguous."""
        return self.sizes[-1] % lanes == 0


def copy_bytes(hardware: Hardware) -> int:
    """What a copy may take."""
    return int(COPY_OF_L2 * hardware.l2_bytes)


def columns_of(
    workload: Workload, factors: Sequence[Expr], parts: Mapping[str, Part], n: tuple[str, ...], k: tuple[str, ...]
) -> Columns | None:  # fmt: skip
    """What the factors read, if it is one tensor whose columns are windows one element apart. All sizes but that of
    the outermost axis are known."""
    read, channel = factors[0], k[-1]
    if len(factors) > 1 or not isinstance(read, Read) or len(n) < 2 or any(reads(index) for index in read.indices):
        return None
    tensor = workload.tensors[read.tensor]
    found = [dim_of(index, n, k[:-1]) for index in read.indices]
    at = tuple(position for position, dim in enumerate(found) if dim is not None)
    dims = tuple(dim for dim in found if dim is not None)
    windows = [dim.window for dim in dims if dim.window is not None]
    if tuple(dim.place for dim in dims) != n or sorted(windows) != sorted(k[:-1]) or not windows:
        return None
    if at[-1] != len(found) - 1 or any(dim.step != 1 for dim in dims):
        return None
    others = [(index, size) for index, size, dim in zip(read.indices, tensor.dims, found, strict=True) if dim is None]
    if not all(isinstance(index, Axis) and workload.sizes[index.name] == size for index, size in others):
        return None
    if not any(channel in axes_of(index) for index, _ in others):
        return None
    sizes = [parts[name].extent.constant for name in (channel, *n[1:])]
    taps = [1 if dim.window is None else parts[dim.window].extent.constant for dim in dims]
    extents = [tensor.dims[position].constant for position in at[1:]]
    if not all((*sizes, *taps, *extents)):
        return None
    channels, *known = (size or 0 for size in sizes)
    reach = tuple(((tap or 0) - 1) * dim.dilation for tap, dim in zip(taps, dims, strict=True))
    pitches = [
        _pitch(dim.first, size, far, extent or 0)
        for dim, size, far, extent in zip(dims[1:], known, reach[1:], extents, strict=True)
    ]
    return Columns(read, dims, at, channel, channels, tuple(known), tuple(pitches), reach)


def _pitch(first: int, size: int, reach: int, extent: int) -> int:
    """How far apart in the copy the first elements of two neighbours of the next outer dim are: what windows reach of
    the one that is not inside the tensor may be what is before the first element of the other."""
    return max(size, min(size + reach, max(extent - first, size + reach + first)))


def positions(columns: Columns, column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in a channel of the copy the windows of some columns begin."""
    result, scale = np.zeros_like(column), 1
    for size, pitch in zip(reversed(columns.sizes), reversed(columns.pitches), strict=True):
        result, column, scale = result + column % size * scale, column // size, scale * pitch
    return result + column * scale


@lru_cache(maxsize=1024)
def are_in_two(columns: Columns, lanes: int) -> bool:
    """Whether what any vector of columns has lies in two vectors of the copy, at its first and at its last lane."""
    if columns.inner > MAX_COLUMNS:
        return False
    places = positions(columns, np.arange(columns.inner * lanes).reshape(-1, lanes))
    return bool(np.all((places < places[:, :1] + lanes) | (places > places[:, -1:] - lanes)))
