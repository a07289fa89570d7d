"""The rule for products of matrices by Strassen's scheme: seven products of blocks in place of eight.

Strassen, "Gaussian elimination is not optimal" (Numerische Mathematik 13, 1969); one level of it. The rule takes the
products that x86_contraction takes, of float32 and a constant right operand, which is packed in blocks
(PackLayout.blocks). Sums of its blocks are packed, too; those of the left operand's are made for each block of rows. A
micro-kernel has these axes, which are those of x86_contraction:

=========  ====================================================================================================
``mr``     rows of the register tile
``nv``     vectors in a row of it, of each half of the columns
``mb``     tiles in a half of a block of rows
``ku``     steps of k unrolled
``near``   steps of k by which a packed part is prefetched within its stream
``ahead``  the next part is prefetched while this one is used, a row of it every so many steps
``tail``   1: a ragged rest of rows has exact code
``tn``     threads along n; ``threads / tn`` along m
=========  ====================================================================================================

Sums are rounded otherwise than those that are written: within the same bounds, and verified against the same reference
(docs/decisions/0125). A row is added to others, and a column is: before that both are divided by powers of two near
their largest elements, so that errors are those of the row's and the column's own sizes. A row with an element that is
no finite number has NaN in all its results; other rows do not see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.atoms import FMA
from tuner.schedule.product.axes import OF_VECTORS, ROWS_IN_PLACE, ROWS_PACKED, default_tile, thread_axes, tile_axes
from tuner.schedule.product.context import context_of
from tuner.schedule.product.estimate import Estimate
from tuner.schedule.product.legal import MAX_PACKED_ROWS, check, check_turns
from tuner.schedule.rule import Extents, NoMatch, Theory, Tiles, TirRule
from tuner.schedule.rules.strassen.emit import write
from tuner.schedule.rules.strassen.pattern import parts_of, products_of, roles, whole_of
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.strassen import PRODUCTS
from tuner.schedule.tir import i64

AXES = ("mr", "nv", "mb", "ku", "near", "ahead")
FORWARD, BACKWARD = 4.0, 4.5
"""Cycles of a vector of the left operand that is scaled and added up, and of one of results: on one core of an AMD EPYC
(Zen 4), where theory's times of both rules are then as far from measured ones, for eight products of 128 to 3136
rows."""


class Strassen(TirRule):
    """See the module's text for the axes; ``emit`` for the code."""

    name = "x86_strassen"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        product = roles(workload, target)
        return product if isinstance(product, NoMatch) else product.roles

    def workspace_bytes(self, task: SearchTask) -> int:
        steps, lanes = parts_of(task).steps, task.known_target.hardware.lanes()
        return task.threads * 4 * (PRODUCTS + 1) * (MAX_PACKED_ROWS + 1) * (steps + 8 * lanes)

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, product = task.known_target.hardware, products_of(task)
        atoms = product.atoms(hardware)
        axes = (
            *(axis for axis in tile_axes(product.depth) if axis.name in AXES),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            *(axis for axis in thread_axes(task.threads, has_batch=False) if axis.name == "tn"),
        )

        def legal(kernel: MicroKernel) -> None:
            # Sums of a block's rows are packed at each call, which bounds its rows (workspace_bytes).
            check(_as_product(kernel, rows=ROWS_PACKED), product, atoms, task.threads, hardware)
            check_turns(_as_product(kernel), FMA, hardware)

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            return {**values, "tail": values["tail"] if values["mr"] > 1 else 0}

        return SearchSpace(self.name, self.version, axes, legal, canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        plain = {"mb": 8, "ku": 1, "near": 0, "ahead": 0, "tail": 0, "tn": task.threads}
        return self.space(task).kernel({**default_tile(task.known_target.hardware), **plain})

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        of, height = whole_of(task.workload).axes, 2 * kernel["mr"]
        down, width = task.threads // kernel["tn"], 2 * kernel["nv"] * task.known_target.hardware.lanes()
        return {(of["m"],): (height, height * down), (of["n"],): (width,)}

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        panels = PackLayout(task.known_target.hardware.lanes(), blocks=True)
        return whole_of(task.workload).right.layouts(task.workload, panels)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return self.theory(task, kernels, extents).latency_s

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return self.theory(task, kernels, extents).features()

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        known = _OfBlocks(task, products_of(task), [_as_product(kernel) for kernel in kernels], extents)
        return Theory(known.latency_s() + known.sums / task.rates.clock_hz, known.features)

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        whole, own, parts = whole_of(task.workload), _as_product(kernel), parts_of(task)
        context = context_of(task, whole, own, function)
        extent = {"m": context.extent["m"], "n": context.extent["n"], "k": i64(parts.steps)}
        write(context, context_of(task, products_of(task), own, function, extent), parts)


class _OfBlocks(Estimate):
    """The engine's estimate for the products of blocks."""

    def _cut_blocks(self) -> None:
        super()._cut_blocks()
        # A panel's products all go over the same rows.
        self.block_bytes = self.block_bytes * PRODUCTS

    @property
    def sums(self) -> Floats:
        """[kernels, shapes] cycles of adding blocks up before and behind the products."""
        whole_k, whole_n, rows = 2 * self.k, 2 * self.n, 2 * self.m
        forward = rows * whole_k / self.lanes * FORWARD * self.of["tn"]
        return np.asarray((forward + rows * whole_n / self.lanes * BACKWARD) / self.task.threads)


def _as_product(kernel: MicroKernel, rows: int = ROWS_IN_PLACE) -> MicroKernel:
    """The micro-kernel of the engine by which products of blocks are computed."""
    own = {**dict.fromkeys(("kc", "fetch", "pack", "edge"), 0), "rows": rows, "tb": 1, "panel": OF_VECTORS}
    own |= {name: kernel[name] for name in (*AXES, "tail", "tn")}
    return MicroKernel(kernel.rule, kernel.rule_version, tuple(own.items()))
