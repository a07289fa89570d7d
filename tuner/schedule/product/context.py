"""What every part of a product's code looks at while one kernel is written, and the pieces that loops cut it into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction
from tuner.schedule.product.atom import Words
from tuner.schedule.product.axes import atom_of
from tuner.schedule.product.operand import Left, Result, Right
from tuner.schedule.product.product import Product
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.memory import Vectors

if TYPE_CHECKING:
    from tuner.schedule.product.indexing import Indexing
    from tuner.schedule.product.match.form import Form
    from tuner.schedule.product.panels import PanelReader


@dataclass(frozen=True)
class EmitContext:
    """One kernel while it is written.

    ``extent``: by role, k in steps. ``depth``: elements of k. ``batch``: the index in the batch. ``outer``: the values
    of the axes that loops outside of the product walk. ``indexing``: where axes are grouped to m, n and k. ``totals``:
    memory for those of a register tile, where they are in a matrix unit.
    """

    task: SearchTask
    product: Product
    kernel: MicroKernel
    extent: Mapping[str, TirExpr]
    function: KernelFunction
    buffers: Mapping[str, TirExpr]
    left: Left
    right: Right
    result: Result
    depth: TirExpr
    batch: TirExpr = None
    outer: Mapping[str, TirExpr] = field(default_factory=dict)
    indexing: Indexing | None = None
    totals: TirExpr = None

    def at(self, batch: TirExpr) -> EmitContext:
        """The product at one index of the batch."""
        if self.indexing is None:
            return replace(self, batch=batch)
        return replace(self, batch=batch, outer=self.indexing.decomposed(self.indexing.form.outer, batch))

    @property
    def parts(self) -> Indexing:
        """``indexing``, which there is."""
        assert self.indexing is not None
        return self.indexing

    @property
    def form(self) -> Form:
        return self.parts.form

    @property
    def panels(self) -> TirExpr:
        """How many panels there are, the ragged one included."""
        return tirx.floordiv(self.extent["n"] + i64(self.nr - 1), i64(self.nr))

    @cached_property
    def vectors(self) -> Vectors:
        return Vectors(self.task.known_target.hardware.lanes())

    @cached_property
    def words(self) -> Words:
        """What a step takes of the operands."""
        atom = atom_of(self.kernel, self.product.atoms(self.task.known_target.hardware))
        return Words(atom, self.left.dtype, self.right.dtype, self.vectors)

    @property
    def ragged_k(self) -> TirExpr | None:
        """Where rows of the left operand end, if their last word is not whole."""
        depth, group = self.product.depth, self.words.atom.group
        is_whole = group == 1 if depth is None else depth % group == 0
        return None if is_whole else self.depth

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.kernel["nv"] * (1 if self.by_dots else self.vectors.lanes)

    @property
    def by_dots(self) -> bool:
        """Whether vectors run along k, both operands being read in place (dots.py)."""
        return self.kernel["pack"] == self.product.pack_of_dots

    def whole(self, steps: TirExpr) -> TirExpr:
        """So many steps rounded up to whole vectors."""
        lanes = self.vectors.lanes
        return tirx.floordiv(steps + i64(lanes - 1), i64(lanes)) * i64(lanes)

    def surplus(self, chunk: Chunk) -> list[tuple[TirExpr, TirExpr]]:
        """The steps that the last multiplication of a chunk has beyond its length, if it may have any."""
        steps, length = self.words.atom.steps, chunk.length
        if steps == 1 or (isinstance(length, tirx.IntImm) and int(length) % steps == 0):
            return []
        return [(length, tirx.floordiv(length + i64(steps - 1), i64(steps)) * i64(steps))]

    def columns_in(self, panel: Panel) -> TirExpr:
        """How many columns a panel has."""
        width = i64(panel.vectors * self.vectors.lanes)
        return width if panel.limit is None else tirx.min(width, panel.limit - panel.column)


def context_of(
    task: SearchTask, product: Product, kernel: MicroKernel, function: KernelFunction,
    extent: Mapping[str, TirExpr] | None = None,
) -> EmitContext:  # fmt: skip
    """The context of a kernel of ``product``, whose extents are ``extent``, by default those of the function's axes."""
    extent = extent or {role: function.extents[axis] for role, axis in product.axes.items()}
    group = atom_of(kernel, product.atoms(task.known_target.hardware)).group
    steps = extent["k"] if group == 1 else tirx.floordiv(extent["k"] + i64(group - 1), i64(group))
    return EmitContext(
        task, product, kernel, {**extent, "k": steps}, function, function.buffers,
        product.left, product.right, product.result, depth=extent["k"],
    )  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """Columns of the output from ``column`` on, ``vectors`` vectors of them, the valid ones before ``limit``. It is
    panel ``index`` of all, and ``reader`` reads the right operand there."""

    column: TirExpr
    limit: TirExpr | None
    vectors: int
    index: TirExpr
    reader: PanelReader | None = None


@dataclass(frozen=True)
class Chunk:
    """Steps ``first`` to ``first + length`` of k; ``is_first`` and ``is_last`` say whether they are the first and the
    last ones, None where there are no others."""

    first: TirExpr
    length: TirExpr
    is_first: TirExpr | None = None
    is_last: TirExpr | None = None


@dataclass(frozen=True)
class Run:
    """Steps of a chunk, counted from its first one, between which operands lie as far apart as their numbers say;
    ``place``: where an operand that lies in runs has the step 0 of the chunk."""

    begin: TirExpr
    length: TirExpr
    place: TirExpr = None
