"""What theory expects of convolutions by minimal filtering: x86_contraction's estimate of the products, and what the
transforms take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.task import SearchTask
from tuner.schedule.product import estimate
from tuner.schedule.rule import Extents
from tuner.schedule.rules.winograd.pattern import Products
from tuner.schedule.rules.winograd.products import as_product, convolution_of
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]
# Cycles, on one core of a Zen 4 server whose clock was taken for that of two multiply-adds in a cycle.
LINE = 40.0
"""Of a vector of a row of tiles in one channel: its 16 elements are picked from four lines of the image."""
INPUT, OUTPUT = 60.0, 50.0
"""Of a vector of tiles in one channel of the image, and of the output."""


def latency_s(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Floats:
    """[kernels, shapes] seconds."""

    def of(products: Products, some: Sequence[MicroKernel]) -> Floats:
        base = estimate.latency_s(task, products.product, some, extents)
        return base + _transforms(task, products, extents) / task.rates.clock_hz

    return _by_lines(task, kernels, of)


def features(task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
    """[kernels, shapes, features]: those of x86_contraction, rows of tiles in a block, and the transforms' cycles."""

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
