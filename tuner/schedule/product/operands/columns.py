"""Right operands whose columns are pixels: with channels outside, a vector of columns at a step of k is a part of the
lines of an image, the same part for every step but for where it begins. So a copy of the image, padded, takes the place
of gathered panels. A vector is picked from two vectors of the copy: it may go over the padding between lines. Windows
some elements apart read phases of the image: the copy has each residue of its lines, and of their elements, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Expr, Read, axes_of, reads
from tuner.program.language.indices import index_range
from tuner.program.language.program import index_dim
from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.access import Dim, dim_of
from tuner.schedule.product.match.factors import Part, needed_by_index
from tuner.schedule.product.operands.gather import MAX_STRIDE
from tuner.schedule.product.operands.image import reach_of

MAX_COLUMNS = 2**16
"""Columns of one value of the outermost axis up to which ``are_in_two`` looks."""
COPY_OF_L2 = 0.5
"""The share of L2 that a copy may take."""


@dataclass(frozen=True)
class Columns:
    """``read`` at ``dims``, the columns' axes outermost first, which are its indices ``at``; ``channel`` of
    ``channels`` and what is not in n are its other indices.

    ``sizes`` of all dims but the first, and ``pitches``: how many indices of each a phase has. Padding behind a line
    is the padding before the next one where it may be. ``reach``: of a window behind its first element in a phase, in
    each dim.
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
    def copied(self) -> float:
        """Elements of the copy for each column."""
        return self.channels * self.phases * math.prod(self.pitches) / self.inner

    @property
    def phases(self) -> int:
        return math.prod(dim.step for dim in self.dims)

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
        """Elements of a phase of a channel in a copy for so many columns: an odd number of vectors, so that channels do
        not fall on the same lines of a cache. Vectors are read and written past the last line."""
        elements = self.lines(columns) * self.pitches[-1] + self.reach[-1] + 2 * lanes
        return (-(-elements // lanes) | 1) * lanes

    @lru_cache(maxsize=1024)  # noqa: B019 - a few numbers, and the cache is bounded
    def most(self, width: int, hardware: Hardware) -> int:
        """Columns of a copy that takes no more than its share of L2: of one panel of ``width`` columns, or several."""
        columns, lanes, limit = width, hardware.lanes(), int(COPY_OF_L2 * hardware.l2_bytes)
        planes = self.channels * self.phases
        while columns < MAX_COLUMNS * width and planes * self.plane(2 * columns, lanes) * 4 <= limit:
            columns *= 2
        return columns

    def is_straight(self, lanes: int) -> bool:
        """Whether vectors of columns are contiguous."""
        return self.sizes[-1] % lanes == 0


def columns_of(
    workload: Workload, factors: Sequence[Expr], parts: Mapping[str, Part], n: tuple[str, ...], k: tuple[str, ...]
) -> Columns | None:  # fmt: skip
    """What the factors read, if it is one tensor whose columns are windows that leave nothing out between them. All
    sizes but that of the outermost axis are known."""
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
    spans = tuple(reach_of(dim, parts) for dim in dims)
    most = [max(min(span + 1, MAX_STRIDE), 1) for span in spans]
    if at[-1] != len(found) - 1 or any(dim.step > step for dim, step in zip(dims, most, strict=True)):
        return None
    others = [(index, size) for index, size, dim in zip(read.indices, tensor.dims, found, strict=True) if dim is None]
    along = [dim for index, _ in others if channel in axes_of(index) and (dim := index_dim(index)) is not None]
    if len(along) != 1 or dict(along[0].terms).get((channel,)) != 1:
        return None
    moving = {*n, *k[:-1]}
    if not all(
        _is_inside(workload, index, size) and not needed_by_index(index, parts) & moving for index, size in others
    ):
        return None
    sizes = [parts[name].extent.constant or 0 for name in (channel, *n[1:])]
    extents = [tensor.dims[position].constant or 0 for position in at[1:]]
    if 0 in (*sizes, *extents) or -1 in spans:
        return None
    channels, *known = sizes
    each = zip(dims[1:], known, spans[1:], extents, strict=True)
    pitches = tuple(_pitch(dim, size, span, extent) for dim, size, span, extent in each)
    reach = tuple(span // dim.step for span, dim in zip(spans, dims, strict=True))
    return Columns(read, dims, at, channel, channels, tuple(known), pitches, reach)


def _is_inside(workload: Workload, index: Expr, size: DimExpr) -> bool:
    """Whether an index is known to be inside its dim: an axis of its size, or channels of a group."""
    if isinstance(index, Axis):
        return workload.sizes[index.name] == size
    ends = index_range(index, workload.sizes)
    if ends is None or ends[0].constant is None or ends[1].constant is None or size.constant is None:
        return False
    return 0 <= ends[0].constant <= ends[1].constant < size.constant


def _pitch(dim: Dim, size: int, span: int, extent: int) -> int:
    """How far apart in a phase the first elements of two neighbours of the next outer dim are, where the last element
    of a window is ``span`` behind the first: what windows of the one have outside the tensor may be what is before the
    first element of the other, of a single phase."""
    if dim.step > 1:
        return size + span // dim.step
    return max(size, min(size + span, max(extent - dim.first, size + span + dim.first)))


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
