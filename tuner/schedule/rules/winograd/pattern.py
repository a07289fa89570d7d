"""Convolutions of 3 x 3 taps that minimal filtering computes: which programs they are, the sizes of their products."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.workload import Workload
from tuner.schedule.access import Dim, axes_of_read, is_plain
from tuner.schedule.product.atoms import only_fma
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import forms
from tuner.schedule.product.operands.columns import Columns
from tuner.schedule.product.product import DTYPE, Product
from tuner.schedule.rule import Extents, Mismatch, NoMatch, matched, need, pattern
from tuner.schedule.rules.winograd.emit import PointColumns, PointRows, PointSums
from tuner.schedule.rules.winograd.filtering import FILTERINGS, TAPS, Filtering
from tuner.schedule.space import DEFAULT_CHOICE

IMAGE_DIMS = 3
"""The images, and the rows and columns of one."""
MIN_CHANNELS = 16
"""With fewer, on either side, transforms cost more than the multiplications that are saved."""
PAIRS = (DEFAULT_CHOICE, 2)
MIN_TAPS = 2
"""Of a window along each axis, on the image, for tiles of 4 x 4 outputs. With one of them, and 16 channels, errors
were 2.7 times the bound that each element has for verification; with two, 0.4 times (decision 120)."""
LINES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MAX_BEYOND = 96 + 16
"""Tiles past the last one that a row of sums has room for: those of a panel, and a vector that makes it odd."""
MAX_BLOCK_BYTES = 64 * 2**20
"""Panels and sums of a block of more than one row of tiles take no more: far more than any L2."""


@dataclass(frozen=True)
class Convolution:
    """``form``: the grouping of the axes, whose left operand is the weight. ``channels`` of the image, ``kernels`` of
    the output; ``height`` and ``width`` of an output image; ``least``: taps of a window along an axis that lie on the
    image; ``filtering``: that of a kernel, whose threads share rows of tiles in so many ``shares``.

    The products of blocks of ``lines`` rows of tiles are a batch of the filtering's points for each block, [kernels,
    channels] by [channels, tiles of a block].
    """

    form: Form
    columns: Columns
    channels: int
    kernels: int
    height: int
    width: int
    least: int
    filtering: Filtering
    shares: int = 1

    def by(self, pairs: int, shares: int = 1) -> Convolution:
        """With tiles of so many pairs of outputs along each axis, and so many shares of their rows."""
        return replace(self, filtering=FILTERINGS[2 * pairs, self.filtering.stride], shares=shares)

    @property
    def pairs(self) -> tuple[int, ...]:
        """Tiles of 4 x 4 outputs are rounded by the elements of 6 x 6 or 9 x 9: too much where a window has one tap of
        nine."""
        return PAIRS if self.least >= MIN_TAPS else PAIRS[:1]

    @property
    def tile_rows(self) -> int:
        """Rows of tiles of an image."""
        return -(-self.height // self.filtering.outputs)

    @property
    def tiles_in_row(self) -> int:
        """Tiles in a row of them."""
        return -(-self.width // self.filtering.outputs)

    @property
    def lines(self) -> tuple[int, ...]:
        """The rows of tiles that a block may have: one, or as many as MAX_BLOCK_BYTES holds."""
        return tuple(lines for lines in LINES if lines == 1 or self.block_bytes(lines) <= MAX_BLOCK_BYTES)

    def block_bytes(self, lines: int) -> int:
        """The panels and the sums of so many rows of tiles take no more."""
        filtering = self.filtering
        rows = filtering.points * self.channels_apart + filtering.side**2 * self.kernels_apart
        return 4 * rows * (lines * self.tiles_in_row + MAX_BEYOND)

    @property
    def channels_apart(self) -> int:
        """Rows from a panel to the next one: an odd number of cache lines, for different sets of a cache."""
        return self.channels | 1

    @property
    def kernels_apart(self) -> int:
        """Rows from the sums of a point to those of the next one: an odd number, too."""
        return self.kernels | 1

    def rows(self, extents: Extents) -> NDArray[np.int64]:
        """Rows of tiles of all images."""
        return self.form.part_size(self.form.n[0], extents) * self.tile_rows

    def blocks(self, lines: int, extents: Extents) -> NDArray[np.int64]:
        """Blocks of all rows of tiles, one at least in each share."""
        of_share = np.maximum(-(-self.rows(extents) // (lines * self.shares)), 1)
        return of_share * np.minimum(self.shares, np.maximum(self.rows(extents), 1))

    def by_role(self, lines: int, extents: Extents) -> Extents:
        """Extents by role; those of n are of a block of average size."""
        blocks = self.blocks(lines, extents)
        tiles, one = self.rows(extents) * self.tiles_in_row, np.ones_like(blocks)
        batch = self.filtering.points * blocks
        return {"b": batch, "m": self.kernels * one, "n": -(-tiles // blocks), "k": self.channels * one}

    def product(self, lines: int) -> Product:
        """The products as the loops and the theory see them."""
        left = PointRows(self.form.left.tensor, points=self.filtering.points)
        return Product(
            axes={}, left=left, right=PointColumns(), result=PointSums(), dynamic=frozenset(), depth=self.channels,
            atoms=only_fma, sizes=partial(self.by_role, lines),
        )  # fmt: skip


@pattern
def match(workload: Workload) -> Convolution:
    """The convolution that a workload is."""
    found = forms(workload)
    if isinstance(found, NoMatch):
        raise Mismatch(f"not a convolution: {found.reason}")
    form = found[-1]
    columns, weight = form.columns, form.left
    is_single = not form.phases and not form.outer and len(form.m) == 1
    if not is_single or columns is None or len(columns.dims) != IMAGE_DIMS:
        raise Mismatch("not a convolution of images with channels outside and constant weights")
    images, *axes = columns.dims
    stride, *others = (dim.step for dim in axes)
    is_known = images.step == 1 and others == [stride] and (min(FILTERINGS)[0], stride) in FILTERINGS
    need(is_known, "not a stride of 1 or 2, the same along both axes")
    taps = [form.parts[dim.window].extent.constant if dim.window is not None else None for dim in axes]
    is_tile = images.window is None and not images.first and taps == [TAPS, TAPS]
    need(is_tile and all(dim.dilation == 1 for dim in axes), f"not windows of {TAPS} x {TAPS} neighbours")
    dtypes = {workload.tensors[tensor].dtype for tensor in (columns.read.tensor, weight.tensor)}
    need(dtypes == {DTYPE}, f"operands are not {DTYPE}")
    padding = dict(workload.padding).get(columns.read.tensor, 0.0)
    need(math.isfinite(padding), f"differences of a padding of {padding} are no numbers")
    # The weight has the four axes as its dims, none of them in parts.
    names, kernels = {form.m[0], *form.k}, form.parts[form.m[0]].extent.constant or 0
    is_whole = is_plain(weight.read) and set(axes_of_read(weight.read)) == names
    is_whole = is_whole and all(form.parts[name].axis == name for name in names)
    has_channels = is_whole and min(columns.channels, kernels) >= MIN_CHANNELS
    need(has_channels, f"fewer than {MIN_CHANNELS} channels, or groups of them")
    # Results go through a buffer: no stage runs within the products.
    height, width = columns.sizes
    lengths = [workload.tensors[columns.read.tensor].dims[at].constant or 0 for at in columns.at[1:]]
    least = min(_least(dim, *each) for dim, *each in zip(axes, columns.sizes, lengths, strict=True))
    form, filtering = replace(form, out_roles=None), FILTERINGS[2, stride]
    return Convolution(form, columns, columns.channels, kernels, height, width, least, filtering)


def _least(dim: Dim, windows: int, length: int) -> int:
    """The fewest taps that one of so many windows along ``dim`` has of a line."""
    inside = (min(at + TAPS, length) - max(at, 0) for at in (dim.first, dim.first + dim.step * (windows - 1)))
    return max(min(inside), 0)


def convolution_of(workload: Workload) -> Convolution:
    """The convolution of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))
