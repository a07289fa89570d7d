"""What the rule looks for: images with channels outside, windows of 3 x 3 elements one element apart, constant weights.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4: F(2 x 2, 3 x 3) computes
four neighbouring outputs from a tile of 4 x 4 elements with 16 multiplications in place of 36. The tile and the taps
are transformed, multiplied element by element and summed over the channels, which is a product of matrices for each of
the 16 elements, and the sums are transformed back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tuner.program.expr import Read
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain
from tuner.schedule.product.atoms import only_fma
from tuner.schedule.product.axes import MAX_BLOCK
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.match.form import Form
from tuner.schedule.product.match.groups import forms
from tuner.schedule.product.operands.columns import Columns
from tuner.schedule.product.product import DTYPE, Left, Place, Product, Result, Right
from tuner.schedule.rule import Extents, NoMatch, matched
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import TirExpr

IMAGE_DIMS = 3
"""The images, and the rows and columns of one."""
TAPS, OUTPUTS = 3, 2
"""Along each axis: taps, and outputs of a tile."""
TILE = TAPS + OUTPUTS - 1
POINTS = TILE * TILE
MAX_PANEL = 96
"""Tiles, of which the last panel may have as many too many."""
MIN_CHANNELS = 16
"""With fewer, on either side, transforms cost more than the multiplications that are saved."""


@dataclass(frozen=True)
class Convolution:
    """``form``: the grouping of the axes. ``weight`` [axes of the program, as its dims are]; ``channels``
    of the image, ``kernels`` of the output; ``height`` and ``width`` of an output image."""

    form: Form
    columns: Columns
    weight: str
    axes: tuple[str, ...]
    channels: int
    kernels: int
    height: int
    width: int

    @property
    def tile_rows(self) -> int:
        """Rows of tiles of an image."""
        return -(-self.height // OUTPUTS)

    @property
    def tiles_in_row(self) -> int:
        return -(-self.width // OUTPUTS)

    def block_bytes(self, lines: int) -> int:
        """Of the panels and the sums of so many rows of tiles, no less."""
        return 4 * POINTS * (self.channels + self.kernels) * (lines * self.tiles_in_row + MAX_PANEL)

    def images(self, extents: Extents) -> NDArray[np.int64]:
        """The number of images."""
        return self.form.part_size(self.form.n[0], extents)


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Convolution | NoMatch:
    """The convolution that a workload is, or why it is none of these."""
    found = forms(workload)
    if isinstance(found, NoMatch):
        return NoMatch(f"not a convolution: {found.reason}")
    form = found[-1]
    columns = form.columns
    if form.phases or form.outer or columns is None or len(form.m) != 1 or len(columns.dims) != IMAGE_DIMS:
        return NoMatch("not a convolution of images with channels outside, a step of 1 and constant weights")
    images, *axes = columns.dims
    taps = [form.parts[dim.window].extent.constant if dim.window is not None else None for dim in axes]
    if images.window is not None or images.first or taps != [TAPS, TAPS] or any(dim.dilation != 1 for dim in axes):
        return NoMatch(f"not windows of {TAPS} x {TAPS} neighbours")
    if {workload.tensors[tensor].dtype for tensor in (columns.read.tensor, form.left.tensor)} != {DTYPE}:
        return NoMatch(f"operands are not {DTYPE}")
    padding = dict(workload.padding).get(columns.read.tensor, 0.0)
    if not math.isfinite(padding):
        return NoMatch(f"differences of a padding of {padding} are no numbers")
    weight = next(read for read in workload.program.reads if read.tensor == form.left.tensor)
    kernels = form.parts[form.m[0]].extent.constant or 0
    if not _is_whole(form, weight) or min(columns.channels, kernels) < MIN_CHANNELS:
        return NoMatch(f"fewer than {MIN_CHANNELS} channels, or groups of them")
    sizes = columns.channels, kernels, *columns.sizes
    # Results go through a buffer: no stage runs within the products.
    return Convolution(replace(form, out_roles=None), columns, weight.tensor, axes_of_read(weight), *sizes)


def _is_whole(form: Form, weight: Read) -> bool:
    """Whether the weight has the four axes as its dims, none of them in parts."""
    names = {form.m[0], *form.k}
    return is_plain(weight) and set(axes_of_read(weight)) == names and all(form.parts[n].axis == n for n in names)


@dataclass(frozen=True)
class PointRows(Left):
    """The transformed weight, ``tensor[points * kernels, channels]``, at one ``point`` of a tile."""

    tensor: str
    dtype: str = DTYPE
    point: TirExpr = None
    is_packed_ahead = True

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return context.buffers[self.tensor], (self.point * context.extent["m"] + row,)


@dataclass(frozen=True)
class PointColumns(Right):
    """Panels of transformed tiles: [points * panels, channels, columns]."""

    dtype: str = DTYPE
    is_packed_ahead = lies_along_n = True

    def step(self, context: EmitContext, step: TirExpr) -> Place:
        raise NotImplementedError("the operand is packed")


@dataclass(frozen=True)
class PointSums(Result):
    """``buffer[points * kernels, columns]`` at one ``point``."""

    buffer: TirExpr = None
    point: TirExpr = None
    dtype: str = DTYPE
    computed: str = ""
    epilogue: tuple[()] = ()

    def row(self, context: EmitContext, row: TirExpr) -> Place:
        return self.buffer, (self.point * context.extent["m"] + row,)

    def read(self, context: EmitContext, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        raise NotImplementedError("stages run as results are transformed back")


@dataclass(frozen=True)
class Products:
    """The products of a convolution whose blocks have ``lines`` rows of tiles: a batch of POINTS for each block,
    [kernels, channels] by [channels, tiles of a block]."""

    convolution: Convolution
    lines: int

    @cached_property
    def product(self) -> Product:
        """They as the loops and the theory see them."""
        return Product(
            axes={},
            left=PointRows(self.convolution.weight),
            right=PointColumns(),
            result=PointSums(),
            dynamic=frozenset(),
            depth=self.convolution.channels,
            atoms=only_fma,
            sizes=self.by_role,
        )

    def blocks(self, extents: Extents) -> NDArray[np.int64]:
        rows = self.convolution.images(extents) * self.convolution.tile_rows
        return np.maximum(-(-rows // self.lines), 1)

    def by_role(self, extents: Extents) -> Extents:
        """Extents by role; those of n are of a block of average size."""
        own, blocks = self.convolution, self.blocks(extents)
        tiles = own.images(extents) * own.tile_rows * own.tiles_in_row
        one = np.ones_like(blocks)
        return {"b": POINTS * blocks, "m": own.kernels * one, "n": -(-tiles // blocks), "k": own.channels * one}


TILE_AXES = ("mr", "nv", "ku")


def convolution_of(workload: Workload) -> Convolution:
    """The convolution of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def as_product(kernel: MicroKernel, threads: int) -> MicroKernel:
    """The micro-kernel of the engine by which the products are computed: both operands packed, all of k at once,
    exact code for a panel of fewer vectors. Threads share blocks."""
    own = {name: kernel[name] for name in (*TILE_AXES, "tail")}
    fixed = {"mb": MAX_BLOCK, "kc": 0, "near": 0, "ahead": 0, "fetch": 0, "rows": 0, "pack": 0}
    ragged = {"edge": int(kernel["nv"] > 1), "tb": threads, "tn": 1}
    return MicroKernel(kernel.rule, kernel.rule_version, tuple({**own, **fixed, **ragged}.items()))
