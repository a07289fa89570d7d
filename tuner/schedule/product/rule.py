"""Rules whose programs are one product and nothing besides: the engine's space, theory and code are theirs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload
from tuner.program.target import Target
from tuner.schedule.function import KernelFunction
from tuner.schedule.layout import Layout, PackLayout
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product import axes, estimate
from tuner.schedule.product.atom import allowed
from tuner.schedule.product.context import EmitContext, context_of
from tuner.schedule.product.legal import check
from tuner.schedule.product.parts import most_partial_bytes, multiply, split_axes
from tuner.schedule.product.product import Product, can_hold_partial
from tuner.schedule.rule import Extents, NoMatch, Theory, Tiles, TirRule, matched
from tuner.schedule.space import Axis, MicroKernel, SearchSpace

Found = TypeVar("Found", bound=Product)


class ProductRule(TirRule, Generic[Found]):
    """A rule for the programs that ``product`` takes. Its micro-kernels have the axes of the engine."""

    rows: Sequence[int] = (axes.ROWS_IN_PLACE, axes.ROWS_PACKED)
    """Choices of the axis ``rows``."""
    splits_k: ClassVar[bool] = True
    """Whether threads may compute parts of k (parts.py)."""

    @abstractmethod
    def find(self, workload: Workload) -> Found | NoMatch:
        """The product that a workload is, or why the rule does not take it."""

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        product = self.find(workload)
        return product if isinstance(product, NoMatch) else product.roles

    def product(self, workload: Workload) -> Found:
        """The product that a workload is. Raises ValueError for a workload that the rule does not take."""
        return matched(workload, self.find(workload))

    def workspace_bytes(self, task: SearchTask) -> int:
        return most_partial_bytes(task, self.product(task.workload)) if self.splits_k else 0

    def space(self, task: SearchTask) -> SearchSpace:
        product, hardware = self.product(task.workload), task.known_target.hardware
        atoms = product.atoms(hardware)
        depth = product.depth if can_hold_partial(product.result.dtype) else 0
        every = (
            *axes.tile_axes(depth, atoms, in_place=product.right.is_in_rows),
            Axis("rows", "rows are packed at each call", tuple(self.rows)),
            *axes.ragged_axes("n" in product.dynamic),
            Axis("pack", "panels are packed at each call", (0,) if product.right.is_packed_ahead else axes.PACKINGS),
            *axes.thread_axes(task.threads, product.has_batch),
            *axes.panel_axes(product.right.is_packed_ahead),
            *axes.atom_axes(atoms, is_optional=True),
            *(split_axes(task, product) if self.splits_k else ()),
        )
        return SearchSpace(
            self.name,
            self.version,
            every,
            check=lambda kernel: check(kernel, product, atoms, task.threads, hardware),
            canonicalise=lambda values: axes.canonicalised(values, product, atoms),
        )

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        product = self.product(task.workload)
        return self.space(task).kernel(axes.default_values(task, product.has_batch, rows=self.rows[0]))

    def estimate_s(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float64]:
        return estimate.latency_s(task, self.product(task.workload), kernels, extents)

    def features(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> NDArray[np.float32]:
        return estimate.features(task, self.product(task.workload), kernels, extents)

    def theory(self, task: SearchTask, kernels: Sequence[MicroKernel], extents: Extents) -> Theory:
        known = estimate.Estimate(task, self.product(task.workload), kernels, extents)
        return Theory(known.latency_s(), known.features)

    def is_bounded(self, kernel: MicroKernel) -> bool:
        # Sums over parts of k are as large as the output.
        return axes.parts_of_k(kernel) == 1

    def tiles(self, task: SearchTask, kernel: MicroKernel) -> Tiles:
        of = self.product(task.workload).axes
        return axes.tiles(task, kernel, (of["m"],), (of["n"],))

    def panels(self, task: SearchTask, kernel: MicroKernel) -> PackLayout:
        """How a right operand [n, k] is packed ahead."""
        hardware = task.known_target.hardware
        atom = axes.atom_of(kernel, self.product(task.workload).atoms(hardware))
        width, in_blocks = axes.packed_vectors(kernel) * hardware.lanes(), kernel.get("panel") == axes.IN_BLOCKS
        return PackLayout(width, atom.group, atom.offset, whole=atom.steps, blocks=in_blocks)

    def layouts(self, task: SearchTask, kernel: MicroKernel) -> Mapping[str, Layout]:
        return self.product(task.workload).right.layouts(task.workload, self.panels(task, kernel))

    def aligns_spills(self, task: SearchTask) -> bool:
        # Rows a dynamic distance apart have a register each for their addresses.
        return "k" not in self.product(task.workload).dynamic

    def body(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction) -> None:
        context = context_of(task, self.product(task.workload), kernel, function)
        with allowed(context.words.atom):
            self.write(context)

    def write(self, context: EmitContext) -> None:
        """The body of a kernel."""
        multiply(context)


def by_choice(axes: Sequence[str], kernels: Sequence[MicroKernel], of: Callable[..., Floats]) -> Floats:
    """[kernels, ...]: what ``of`` says of the kernels with the same choices of some axes, given the choices one by one
    and those kernels; in the order of all kernels."""
    choices, result = np.array([[kernel.get(axis) for axis in axes] for kernel in kernels]), None
    for choice in np.unique(choices, axis=0):
        own = np.flatnonzero((choices == choice).all(axis=1)).tolist()
        answer = of(*choice.tolist(), [kernels[number] for number in own])
        result = np.empty((len(kernels), *answer.shape[1:])) if result is None else result
        result[own] = answer
    assert result is not None
    return result
