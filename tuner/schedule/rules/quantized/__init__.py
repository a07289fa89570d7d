"""The rule for products with weights that are computed from packed constants, ``out[m, n] = sum(k) x[m, k] * weight``.

Constants stay as they are in panels, four bits for each element if the program packs two in a byte, and become float32
on their way into the register tile. A micro-kernel has the axes of that rule; ``near`` and ``ahead``
are 0, and ``pack`` is

1: a panel is unpacked to memory before the tiles of a block use it, 0: by every tile, in registers, as it is needed.

One axis more is of this rule alone, ``late``,

1: what neighbouring steps of k share, as the scale of a group, is multiplied by the sums over them, 0: by each weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tuner.errors import IllegalKernel
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.product.axes import canonicalised, check, default_values, ragged_axes, thread_axes, tile_axes
from tuner.schedule.product.context import EmitContext
from tuner.schedule.product.match.plain import MatrixProduct
from tuner.schedule.product.product import can_hold_partial
from tuner.schedule.product.rule import ProductRule
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.quantized.decoded import Decoded
from tuner.schedule.rules.quantized.pattern import match
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

WORD_BYTES = 4
"""Of a column that stand together in a panel of numbers of four bits: eight steps of k."""


class Quantized(ProductRule[MatrixProduct[Decoded]]):
    """See the module's text for the axes; decoded.py for the code and the theory of the weight."""

    name = "x86_quantized"
    version = 2

    def find(self, workload: Workload) -> MatrixProduct[Decoded] | NoMatch:
        return match(workload)

    def space(self, task: SearchTask) -> SearchSpace:
        hardware, product = task.known_target.hardware, self.product(task.workload)
        atoms = product.atoms(hardware)
        tile = tile_axes(product.depth if can_hold_partial(product.result.dtype) else 0)
        axes = (
            *(Axis(axis.name, axis.doc, (0,)) if axis.name in ("near", "ahead") else axis for axis in tile),
            Axis("rows", "rows are packed at each call", (0, 1)),
            *ragged_axes(False),
            Axis("pack", "panels are unpacked before they are used", (0, 1)),
            *thread_axes(task.threads, False),
            Axis("late", "shared factors are multiplied by sums", (0, 1) if product.right.grouped else (0,)),
        )

        def checked(kernel: MicroKernel) -> None:
            check(kernel, product, atoms, task.threads, hardware)
            if kernel["late"] and (kernel["pack"] or kernel["kc"]):
                raise IllegalKernel(f"late=1 needs pack=0 kc=0, got pack={kernel['pack']} kc={kernel['kc']}")

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            # Weights that are unpacked are used as they are; beside ``late``, k is in one chunk.
            late = 0 if values["pack"] else values["late"]
            return canonicalised({**values, "late": late, "kc": 0 if late else values["kc"]}, product, atoms)

        return SearchSpace(self.name, self.version, axes, checked, canonical)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        """A square-ish tile, three quarters of the registers, with half of what a word holds unrolled."""
        return self.space(task).kernel(default_values(task, False, ku=4, late=0))

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        right, width = self.product(task.workload).right, kernel["nv"] * task.known_target.hardware.lanes()
        layouts = {name: PackLayout(width) for name in right.constants}
        return {**layouts, right.code.tensor: PackLayout(width, WORD_BYTES)} if right.code else layouts

    def write(self, context: EmitContext) -> None:
        kernel, right = context.kernel, self.product(context.task.workload).right
        right = replace(right, is_packed_ahead=not kernel["pack"], grouped=right.grouped if kernel["late"] else None)
        super().write(replace(context, right=right))
