"""The rule for chains of a contraction, a softmax along rows and a second contraction, in one pass over the rows.

It finds them by what the stages compute (pattern.py), whatever their names: attention, with any elementwise scores
(scale, mask, bias, segments of a ragged batch) and any elementwise stages behind it. Scores are never stored as a
whole: a block of rows keeps its own in cache. Axes of a micro-kernel:

========  =====================================================================================================
``mr``    rows of the register tile of both contractions
``nv``    vectors in a row of the tile of scores; ``nr = nv * lanes`` columns make a panel
``ev``    vectors in a row of the tile of the output
``rows``  tiles in a block of rows: a panel of k is read once for all of them
``cols``  panels in a block of columns, between which sums are scaled to the new maximum (online softmax); 0: a block
          of rows keeps all its scores, and its maximum is known before the exponentials
``pack``  1: k is packed in panels of [d, nr] for each element of the batch; 0: products of rows, by vectors along d
``tail``  1: a ragged rest of rows has exact code for each height; 0: it is padded inside the tile
``ku``    steps of both reductions unrolled
========  =====================================================================================================

Threads share the blocks of rows of the whole batch. No choice depends on a shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.product.axes import default_tile
from tuner.schedule.rule import Extents, NoMatch, Rule
from tuner.schedule.rules.attention import estimate
from tuner.schedule.rules.attention.chain import Chain
from tuner.schedule.rules.attention.emit import emit
from tuner.schedule.rules.attention.pattern import chain_of, match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

MAX_BODY = 512
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
WIDTHS = (1, 2, 3, 4, 6, 8)
TILES = (1, 2, 4, 8, 16)
PANELS = (0, 1, 2, 4, 8, 16, 32)


class Attention(Rule):
    """See the module's text for the axes; ``pattern`` for what it takes, ``emit`` for the code."""

    name = "attention"

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        return answer if isinstance(answer, NoMatch) else answer.roles(workload)

    def workspace_bytes(self, task: SearchTask) -> int:
        chain, sizes = chain_of(task.workload), task.workload.axis_sizes(task.largest_dims)
        lanes = task.known_target.hardware.lanes()
        j, d, e = (sizes[chain.axis[axis]] for axis in "jde")
        width, rows = WIDTHS[-1] * lanes, HEIGHTS[-1] * TILES[-1]
        keys = (j + width) * (d + lanes)
        columns = max(j, PANELS[-1] * width) + width + lanes
        return 4 * task.threads * (keys + rows * (columns + e + width + 3))

    def space(self, task: SearchTask) -> SearchSpace:
        chain, hardware = chain_of(task.workload), task.known_target.hardware
        axes = (
            Axis("mr", "rows of the register tiles", HEIGHTS),
            Axis("nv", "vectors in a row of the tile of scores", WIDTHS[:-1]),
            Axis("ev", "vectors in a row of the tile of the output", _widths(task, chain)),
            Axis("rows", "tiles in a block of rows", TILES),
            Axis("cols", "panels in a block of columns; 0 is all of them", PANELS),
            Axis("pack", "k is packed at each call", (0, 1) if chain.is_along_d else (1,)),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("ku", "steps of the reductions unrolled", (1, 2, 4)),
        )
        check = lambda kernel: _check(kernel, hardware.vector_registers)  # noqa: E731
        return SearchSpace(self.name, self.version, axes, check, _canonicalise)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """Up to three quarters of the registers; blocks of columns, so that no row is too long for the caches."""
        tile = default_tile(task.known_target.hardware)
        ev = min(2, _widths(task, chain_of(task.workload))[-1])
        values = {**tile, "ev": ev, "rows": 8, "cols": 8, "pack": 1, "tail": 1, "ku": 1}
        return self.space(task).kernel(values)

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, kernels, extents)

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        return emit(task, kernel, name)


def _widths(task: SearchTask, chain: Chain) -> tuple[int, ...]:
    """Choices of ``ev``: none is wider than a fixed e, but for the narrowest one."""
    size = task.workload.sizes[chain.axis["e"]].constant
    lanes = task.known_target.hardware.lanes()
    return tuple(width for width in WIDTHS if width == 1 or size is None or (width - 1) * lanes < size)


def _canonicalise(values: Mapping[str, int]) -> dict[str, int]:
    canonical = dict(values)
    if not values["pack"]:
        canonical["nv"] = 1
    if values["mr"] == 1:
        canonical["tail"] = 0
    return canonical


def _check(kernel: MicroKernel, registers: int) -> None:
    mr, widest, ku = kernel["mr"], max(kernel["nv"], kernel["ev"]), kernel["ku"]
    # Every accumulator and one row of vectors are live at once, and a broadcast beside them.
    need = mr * widest + widest + 1
    if need > registers:
        text = f"mr={mr} nv={kernel['nv']} ev={kernel['ev']}"
        raise IllegalKernel(f"{text} needs {need} vector registers, there are {registers}")
    if ku * widest > registers:
        raise IllegalKernel(f"ku={ku} loads {ku * widest} vectors in a turn, limit {registers}")
    if kernel["tail"] and mr == 1:
        raise IllegalKernel("tail=1 needs mr above 1: tiles of one row leave no ragged rest")
    if not kernel["pack"] and kernel["nv"] != 1:
        raise IllegalKernel(f"pack=0 reads k in place: needs nv=1, got {kernel['nv']}")
    body = ku * mr * (kernel["nv"] + 2 * kernel["ev"])
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    if body > MAX_BODY:
        raise IllegalKernel(f"ku={ku} tail={kernel['tail']} unroll {body} operations, limit {MAX_BODY}")
