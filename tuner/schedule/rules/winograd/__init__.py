"""The rule for convolutions of 3 x 3 taps by Winograd's minimal filtering, F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3).

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4: F(2 x 2, 3 x 3) computes
four neighbouring outputs from a tile of 4 x 4 elements with 16 multiplications in place of 36, F(4 x 4, 3 x 3) sixteen
from a tile of 6 x 6 with 36 in place of 144. The tile and the taps are transformed, multiplied element by element and
summed over the channels, which is a product of matrices for each element of a tile, and the sums are transformed back.
With a stride of 2 there are 25 multiplications in place of 36, or 81 in place of 144 (filtering.py).
The rule takes images with channels outside, windows of 3 x 3 elements, a stride of 1 or 2, and constant weights.
A micro-kernel has these axes:

=========  ====================================================================================================
``mr``     rows of the register tile: channels of the output
``nv``     vectors in a row of it: tiles of the image
``ku``     channels of the image unrolled
``tail``   1: a ragged rest of rows has exact code
``lines``  rows of tiles in a block: what is transformed at once, and should stay in L2
``pairs``  pairs of outputs of a tile along each axis: 1 or 2. Kernels of a library have the same, as weights are packed
``share``  threads share rows of tiles (1), or channels of the output (2): then each transforms all tiles
=========  ====================================================================================================

Sums are rounded otherwise than those of the convolution as it is written: within the same bounds, and verified against
the same reference. An infinite element makes all outputs of its tiles NaN, not only those that its windows have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.access import axes_of_read
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import LINE_ELEMENTS, Layout, filter_layout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import estimate
from tuner.schedule.product.atoms import FMA
from tuner.schedule.product.axes import MAX_BLOCK, default_tile, tile_axes
from tuner.schedule.product.legal import check, check_turns
from tuner.schedule.product.rule import by_choice
from tuner.schedule.rule import Extents, NoMatch, TirRule
from tuner.schedule.rules.winograd.emit import write
from tuner.schedule.rules.winograd.pattern import Convolution, convolution_of, match
from tuner.schedule.space import DEFAULT_CHOICE, Axis, MicroKernel, SearchSpace

TILE_AXES = ("mr", "nv", "ku")
SHARES = OF_ROWS, OF_KERNELS = DEFAULT_CHOICE, 2
"""What threads share."""
LEAST_PARTS = 4
"""The fewest parts of ``ku`` steps in a turn: LLVM unrolls a turn of fewer once more, and spills."""
MOST_OF_LINE = LINE_ELEMENTS // LEAST_PARTS
"""Unrolled steps of which a line has as many parts."""
FEW_LINES = 4
"""The default kernel has no more."""

# Cycles, on one core of an AMD EPYC (Zen 4): from kernels without the one or the other part of their code.
LINE, WRITTEN = 45.0, 12.0
"""A line of a vector of tiles whose elements are picked, and a vector of outputs that is written."""
INPUT = {(2, 1): 50.0, (4, 1): 250.0, (2, 2): 80.0, (4, 2): 560.0}
OUTPUT = {(2, 1): 50.0, (4, 1): 110.0, (2, 2): 30.0, (4, 2): 80.0}
"""A vector of tiles in one channel of the image, and of the output; by outputs of a tile along an axis, and stride."""
WITHIN, BEYOND = 1.0, 8.0
"""The panels and sums of a block over L2 up to which it holds them, and from which on all of them come from L3."""
TRANSFERS = 4.0
"""How often such a byte goes between the two: lines are loaded before they are written, written back, and loaded again.
Chosen with WITHIN and BEYOND for 325 kernels of six layers for one and four images: the first three of theory lose 10 %
to the best in the geometric mean, and the estimates are off by 16 %."""
NEAR = 16
"""Rows are prefetched (emit.PointPanel), about as well as panels by so many steps."""


class Winograd(TirRule):
    """See the module's text for the axes; ``emit`` for the code."""

    name = "x86_winograd"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        convolution = match(workload)
        return convolution if isinstance(convolution, NoMatch) else convolution.form.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        """What is kept of a block, in each thread."""
        own = convolution_of(task.workload)
        return task.threads * max(each.block_bytes(each.lines[-1]) for each in map(own.by, own.pairs))

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, own = task.known_target.hardware, convolution_of(task.workload)
        axes = (
            *(axis for axis in tile_axes(own.channels) if axis.name in TILE_AXES),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("lines", "rows of tiles in a block", own.lines),
            Axis("pairs", "pairs of outputs of a tile along each axis", own.pairs, is_optional=True),
            Axis("share", "threads share channels", SHARES if task.threads > 1 else SHARES[:1], is_optional=True),
        )
        product = own.product(1)
        atoms = product.atoms(hardware)

        def legal(kernel: MicroKernel) -> None:
            kernel = _as_product(kernel, 1)
            check(kernel, product, atoms, 1, hardware)
            check_turns(kernel, FMA, hardware)

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            tail = values["tail"] if own.kernels % values["mr"] else 0
            # Steps past the last turn are not unrolled.
            ku = values["ku"] if own.channels % _turn(values["ku"]) == 0 else min(values["ku"], MOST_OF_LINE)
            return {**values, "ku": ku, "tail": tail, "lines": min(values["lines"], own.by(values["pairs"]).lines[-1])}

        return SearchSpace(self.name, self.version, axes, check=legal, canonicalise=canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, and about as many tiles in a block as keep it in L2."""
        lines = max(lines for lines in convolution_of(task.workload).lines if lines <= FEW_LINES)
        return self.space(task).kernel({**default_tile(task.known_target.hardware), "ku": 1, "tail": 0, "lines": lines})

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        def of(own: Convolution, lines: int, some: Sequence[MicroKernel]) -> Floats:
            cycles, _ = _transforms(task, own, lines, extents)
            return estimate.latency_s(task, own.product(lines), some, extents) + cycles / task.rates.clock_hz

        return _by_block(task, kernels, of)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        """The features of every product, rows of tiles in a block, the transforms' cycles, and lanes and points for
        each tile."""

        def of(own: Convolution, lines: int, some: Sequence[MicroKernel]) -> Floats:
            base = estimate.features(task, own.product(lines), some, extents)
            cycles, lanes = _transforms(task, own, lines, extents)
            further = np.log2(float(lines)), np.log2(cycles + 1.0), lanes, np.log2(float(own.filtering.points))
            columns = [np.broadcast_to(column, base.shape[:2]) for column in further]
            return np.concatenate([base, np.stack(columns, axis=2)], axis=2)

        return _by_block(task, kernels, of).astype(np.float32)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        own = convolution_of(task.workload).by(kernel.get("pairs"))
        axes = axes_of_read(own.form.left.read)
        # By the image: the axes of a sum stand in any order.
        names = own.form.m[0], own.columns.channel, *(dim.window for dim in own.columns.dims[1:])
        order = tuple(axes.index(name) for name in names if name is not None)
        sizes = tuple(task.workload.sizes[name].constant or 0 for name in axes)
        return {own.form.left.tensor: filter_layout(sizes, order, own.filtering.outputs, own.filtering.stride)}

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        own = convolution_of(task.workload).by(kernel.get("pairs"))
        # A turn is one line of k, or two; so much of each row of the next tile is prefetched at it.
        own_kernel = _as_product(kernel, 1, ahead=_turn(kernel["ku"]))
        write(task, own, kernel["lines"], own_kernel, function, by_kernels=kernel.get("share") == OF_KERNELS)


def _turn(unrolled: int) -> int:
    """Steps between two prefetches where so many are unrolled: those of whole lines."""
    return max(LINE_ELEMENTS, LEAST_PARTS * unrolled)


def _as_product(kernel: MicroKernel, threads: int, panels: int = 1, near: int = 0, ahead: int = 0) -> MicroKernel:
    """The micro-kernel of the engine by which the products are computed: both operands packed, all of k at once,
    exact code for a panel of fewer vectors. A tile of rows goes over all ``panels`` of a block. So many ``threads``
    share blocks, the others rows.
    """
    own = {name: kernel[name] for name in (*TILE_AXES, "tail")}
    own |= {**dict.fromkeys(("kc", "fetch", "rows", "pack"), 0), "near": near, "ahead": ahead}
    own |= {"mb": MAX_BLOCK, "nb": panels}
    own |= {"edge": int(kernel["nv"] > 1), "tb": threads, "tn": 1}
    return MicroKernel(kernel.rule, kernel.rule_version, tuple(own.items()))


def _by_block(
    task: SearchTask, kernels: Sequence[MicroKernel], of: Callable[[Convolution, int, Sequence[MicroKernel]], Floats]
) -> Floats:
    """What ``of`` says of kernels, as the engine's, with the same tiles and blocks; in the order of all kernels."""
    lanes = task.known_target.hardware.lanes()

    def of_block(lines: int, pairs: int, share: int, some: Sequence[MicroKernel]) -> Floats:
        shares = task.threads if share == OF_ROWS else 1
        own = convolution_of(task.workload).by(pairs, shares)
        panels = (-(-lines * own.tiles_in_row // (kernel["nv"] * lanes)) for kernel in some)
        engines = [
            _as_product(kernel, shares, own_panels, NEAR) for kernel, own_panels in zip(some, panels, strict=True)
        ]
        return of(own, lines, engines)

    return by_choice(("lines", "pairs", "share"), kernels, of_block)


def _transforms(task: SearchTask, own: Convolution, lines: int, extents: Extents) -> tuple[Floats, Floats]:
    """[shapes] cycles, and lanes for each tile: some lanes of a block are past its last tile."""
    rates, hardware = task.rates, task.known_target.hardware
    lanes, blocks, rows = hardware.lanes(), own.blocks(lines, extents), own.rows(extents)
    tiles, of_rows = rows * own.tiles_in_row, rows * -(-own.tiles_in_row // lanes)
    vectors = blocks * np.ceil(tiles / blocks / lanes)
    filtering = own.filtering
    which = filtering.outputs, filtering.stride
    forward = own.channels * (of_rows * filtering.tile * LINE * filtering.stride + vectors * INPUT[which])
    backward = own.kernels * (vectors * OUTPUT[which] + of_rows * filtering.outputs**2 * WRITTEN)
    # What is written of a block and read again, as far as L2 does not hold it.
    size = 4 * (filtering.points * own.channels + filtering.side**2 * own.kernels) * tiles
    over = np.clip(size / blocks / hardware.l2_bytes, WITHIN, BEYOND) / WITHIN
    backward = backward + TRANSFERS * size * np.log(over) / np.log(BEYOND / WITHIN) / rates.l3_bytes
    return forward / own.shares + backward / task.threads, vectors * lanes / np.maximum(tiles, 1)
