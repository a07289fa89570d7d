"""The rule for convolutions of 3 x 3 taps by Winograd's minimal filtering, F(2 x 2, 3 x 3).

A block of tiles of the image is transformed, multiplied by the transformed weights in 16 products of matrices, and
transformed back. A micro-kernel has these axes:

=========  ====================================================================================================
``mr``     rows of the register tile: channels of the output
``nv``     vectors in a row of it: tiles of the image
``ku``     channels of the image unrolled
``tail``   1: a ragged rest of rows has exact code
``lines``  rows of tiles in a block: what is transformed at once, and should stay in L2
=========  ====================================================================================================

Sums are rounded otherwise than those of the convolution as it is written: within the same bounds, and verified against
the same reference. An infinite element makes all outputs of its tiles NaN, not only those that its windows have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout, filter_layout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import estimate
from tuner.schedule.product.axes import check, check_turns, default_tile, tile_axes
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.winograd.emit import emit
from tuner.schedule.rules.winograd.pattern import TILE_AXES, Convolution, Products, as_product, convolution_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

LINES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
MAX_BLOCK_BYTES = 64 * 2**20
"""Of the panels and the sums of a block of more than one row of tiles: far more than any L2."""


FEW_LINES = 4
"""Of the safe kernel, at most."""


class X86Winograd(Rule):
    """See the module's text for the axes; ``estimate`` for the theory, ``emit`` for the code."""

    name = "x86_winograd"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        convolution = match(workload)
        return convolution if isinstance(convolution, NoMatch) else convolution.form.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """What is kept of a block, in each thread."""
        own = convolution_of(task.workload)
        return task.threads * own.block_bytes(_lines(own)[-1])

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, convolution = task.known_target.hardware, convolution_of(task.workload)
        axes = (
            *(axis for axis in tile_axes(convolution.channels) if axis.name in TILE_AXES),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("lines", "rows of tiles in a block", _lines(convolution)),
        )
        product = Products(convolution, 1).product
        atoms = product.atoms(hardware)

        def legal(kernel: MicroKernel) -> None:
            own = as_product(kernel, 1)
            check(own, product, atoms, 1, hardware)
            check_turns(own, hardware)

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            is_even = convolution.kernels % values["mr"] == 0
            return {**values, "tail": 0 if is_even else values["tail"]}

        return SearchSpace(self.name, self.version, axes, check=legal, canonicalise=canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, and about as many tiles in a block as keep it in L2."""
        lines = max(lines for lines in _lines(convolution_of(task.workload)) if lines <= FEW_LINES)
        return self.space(task).kernel({**default_tile(task.known_target.hardware), "ku": 1, "tail": 0, "lines": lines})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return _latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return _features(task, kernels, extents)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        own = convolution_of(task.workload)
        # By the image: the axes of a sum stand in any order.
        names = own.form.m[0], own.columns.channel, *(dim.window for dim in own.columns.dims[1:])
        order = tuple(own.axes.index(name) for name in names if name is not None)
        sizes = tuple(task.workload.sizes[name].constant or 0 for name in own.axes)
        return {own.weight: filter_layout(sizes, order)}

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, self.layouts(task, kernel), name)


def _lines(convolution: Convolution) -> tuple[int, ...]:
    """The rows of tiles that a block may have: one, or as many as MAX_BLOCK_BYTES holds."""
    return tuple(lines for lines in LINES if lines == 1 or convolution.block_bytes(lines) <= MAX_BLOCK_BYTES)


# Cycles, on one core of a Zen 4 server whose clock was taken for that of two multiply-adds in a cycle.
LINE = 40.0
"""Of a vector of a row of tiles in one channel: its 16 elements are picked from four lines of the image."""
INPUT, OUTPUT = 60.0, 50.0
"""Of a vector of tiles in one channel of the image, and of the output."""


def _latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""

    def of(products: Products, some: Sequence[MicroKernel]) -> Floats:
        base = estimate.latency_s(task, products.product, some, extents)
        return base + _transforms(task, products, extents) / task.rates.clock_hz

    return _by_lines(task, kernels, of)


def _features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of every product, rows of tiles in a block, and the transforms' cycles."""

    def of(products: Products, some: Sequence[MicroKernel]) -> Floats:
        base = estimate.features(task, products.product, some, extents)
        cycles = np.broadcast_to(_transforms(task, products, extents), base.shape[:2])
        lines = np.full(base.shape[:2], float(products.lines))
        vectors = _vectors(task, products, extents) / np.maximum(_tiles(products, extents), 1)
        further = np.log2(lines), np.log2(cycles + 1.0), np.broadcast_to(vectors, base.shape[:2])
        return np.concatenate([base, np.stack(further, axis=2)], axis=2)

    return _by_lines(task, kernels, of).astype(np.float32)


def _by_lines(
    task: SearchTask, kernels: Sequence[MicroKernel], of: Callable[[Products, Sequence[MicroKernel]], Floats]
) -> Floats:  # fmt: skip
    """What ``of`` says of the kernels with the same blocks, in the order of the kernels."""
    convolution = convolution_of(task.workload)
    lines = np.array([kernel["lines"] for kernel in kernels])
    result: Floats | None = None
    for count in np.unique(lines):
        some = [as_product(kernel, task.threads) for kernel in kernels if kernel["lines"] == count]
        answer = of(Products(convolution, int(count)), some)
        result = np.empty((len(kernels), *answer.shape[1:])) if result is None else result
        result[lines == count] = answer
    assert result is not None
    return result


def _tiles(products: Products, extents: Extents) -> NDArray[np.int64]:
    own = products.convolution
    return own.images(extents) * own.tile_rows * own.tiles_in_row


def _vectors(task: SearchTask, products: Products, extents: Extents) -> Floats:
    """[shapes] lanes that blocks have, of which some are past their last tile."""
    lanes, blocks = task.known_target.hardware.lanes(), products.blocks(extents)
    return np.asarray(blocks * np.ceil(_tiles(products, extents) / blocks / lanes) * lanes, np.float64)


def _transforms(task: SearchTask, products: Products, extents: Extents) -> Floats:
    """[shapes] cycles."""
    own, lanes = products.convolution, task.known_target.hardware.lanes()
    rows = own.images(extents) * own.tile_rows
    vectors = _vectors(task, products, extents) / lanes
    of_rows = rows * -(-own.tiles_in_row // lanes)
    cycles = own.channels * (of_rows * LINE + vectors * INPUT) + own.kernels * (vectors + of_rows) * OUTPUT
    return np.asarray(cycles / task.threads, np.float64)
