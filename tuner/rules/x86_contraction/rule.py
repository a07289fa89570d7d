"""The rule for two-operand contractions ``out[m, n] = sum_k left[m, k] * right`` on x86 vector units.

Axes of a micro-kernel (``X86Contraction.space`` lists their choices):

========  =====================================================================================================
``mr``    rows of the register tile
``nv``    vectors in a row of the register tile; ``nr = nv * lanes`` columns, also the width of a packed panel
``mb``    tiles that share a panel of the right operand before the next panel is taken: a block of ``mb * mr`` rows
``ku``    steps of k unrolled
``near``  steps of k by which the packed operand is prefetched within its stream; 0: not
``ahead`` 1: the next panel is prefetched while this one is used, a row of it in each unrolled step; 0: not
``tail``  1: a ragged rest of rows has exact code for each height; 0: it is padded inside the tile
``pack``  1: each panel of an operand that is new at every call is packed before it is used; 0: it is read in place
``tn``    threads along n; ``threads / tn`` along m
========  =====================================================================================================

No choice depends on a shape: registers, caches and the size of the code bound them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.errors import IllegalKernel
from tuner.kernel import Axis, MicroKernel, SearchSpace
from tuner.layout import PanelLayout
from tuner.rules._base import Extents
from tuner.rules.x86_contraction import prior
from tuner.target import Hardware
from tuner.task import SearchTask
from tuner.workload import Workload

MAX_BODY = 768
"""Fused multiply-adds in the unrolled code of one kernel, all its ragged variants together: bounds compile time and
keeps the loops in the instruction cache."""
WIDEST_BLOCK = 256


class X86Contraction:
    """See the module's text for the axes; ``prior`` for the theory, ``emit`` for the code."""

    name = "x86_contraction"
    version = 1

    def refuses(self, workload: Workload) -> str | None:
        contraction = workload.op.contraction
        if contraction.left.axes != ("m", "k") or contraction.output.axes != ("m", "n"):
            return f"{workload.op.name} is not out[m, n] from a left operand [m, k]"
        if workload.dtype != "float32":
            return f"{workload.dtype} is not float32"
        if contraction.right.constant and not {"n", "k"}.isdisjoint(workload.dynamic_axes):
            return "the constant operand's dims must not depend on shape variables"
        return None

    def space(self, task: SearchTask) -> SearchSpace:
        hardware = _hardware(task)
        constant = task.workload.op.contraction.right.constant
        axes = (
            Axis("mr", "rows of the register tile", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14)),
            Axis("nv", "vectors in a row of the register tile", (1, 2, 3, 4, 5, 6)),
            Axis("mb", "tiles that share a panel", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, WIDEST_BLOCK)),
            Axis("ku", "steps of k unrolled", (1, 2, 4, 8)),
            Axis("near", "steps of k prefetched in the stream", (0, 8, 16, 32)),
            Axis("ahead", "the next panel is prefetched", (0, 1) if constant else (0,)),
            Axis("tail", "ragged rows have exact code", (0, 1)),
            Axis("pack", "panels are packed at each call", (0,) if constant else (0, 1)),
            Axis("tn", "threads along n", tuple(t for t in range(1, task.threads + 1) if task.threads % t == 0)),
        )
        return SearchSpace(self.name, self.version, axes, lambda kernel: _check(kernel, hardware, constant))

    def safe_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, small blocks: good at every size, best at few."""
        wide = _hardware(task).vector_registers >= 32
        constant = task.workload.op.contraction.right.constant
        values = {"mr": 8 if wide else 4, "nv": 3 if wide else 2, "mb": 8 if constant else WIDEST_BLOCK, "ku": 1}
        values |= {"near": 0, "ahead": 0, "tail": 0, "pack": 0 if constant else 1, "tn": task.threads}
        return self.space(task).kernel(values)

    def prior_latency_s(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> NDArray[np.float64]:
        return prior.latency_s(_hardware(task), task, kernel, extents)

    def features(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> NDArray[np.float32]:
        return prior.features(_hardware(task), task, kernel, extents)

    def layout(self, task: SearchTask, kernel: MicroKernel) -> PanelLayout | None:
        if not task.workload.op.contraction.right.constant:
            return None
        return PanelLayout(kernel["nv"] * _hardware(task).lanes())

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        from tuner.rules.x86_contraction.emit import emit  # noqa: PLC0415 - the one import that needs TVM

        return emit(task, kernel, self.layout(task, kernel), name)


def _hardware(task: SearchTask) -> Hardware:
    if task.target is None:
        raise ValueError(f"the target of {task.workload} is not known yet: resolve it with task.on(target)")
    return task.target.hardware


def _check(kernel: MicroKernel, hardware: Hardware, constant: bool) -> None:
    mr, nv = kernel["mr"], kernel["nv"]
    # Every accumulator and one row of the right operand are live at once, and a broadcast beside them.
    need = mr * nv + nv + 1
    if need > hardware.vector_registers:
        raise IllegalKernel(f"mr={mr} nv={nv} needs {need} vector registers, there are {hardware.vector_registers}")
    body = kernel["ku"] * mr * nv
    body = body * (mr + 1) // 2 if kernel["tail"] else 2 * body
    if body > MAX_BODY:
        raise IllegalKernel(f"ku={kernel['ku']} and tail={kernel['tail']} unroll {body} operations, limit {MAX_BODY}")
    if kernel["tail"] and mr == 1:
        raise IllegalKernel("tail=1 needs mr above 1: tiles of one row leave no ragged rest")
    if kernel["pack"] and kernel["mb"] != WIDEST_BLOCK:
        raise IllegalKernel(f"pack=1 lets all rows share a panel: needs mb={WIDEST_BLOCK}, got {kernel['mb']}")
    if kernel["near"] and not (constant or kernel["pack"]):
        raise IllegalKernel(f"near={kernel['near']} needs a packed operand to stream from")
