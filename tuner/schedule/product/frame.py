"""What every part of a contraction kernel's code looks at: its task, operands and extents, and where it stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.program.expr import Read
from tuner.program.task import SearchTask
from tuner.schedule.intrinsics import FMA
from tuner.schedule.product.product import Product
from tuner.schedule.product.words import Words
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import TirExpr
from tuner.schedule.vector.memory import DTYPE, Vectors


@dataclass(frozen=True)
class Frame(ABC):
    """One kernel while it is written. ``extent``: by role, k in steps. ``batch`` indexes operands that have a batch
    axis."""

    task: SearchTask
    contraction: Product
    kernel: MicroKernel
    extent: Mapping[str, TirExpr]
    buffers: Mapping[str, TirExpr]
    vectors: Vectors
    batch: tuple[TirExpr, ...] = ()

    def at(self, *batch: TirExpr) -> Frame:
        return replace(self, batch=batch)

    # -- where elements stand: a buffer, and its indices but for the last ------------------------------------------
    @abstractmethod
    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        """A row of the left operand, along k."""

    @abstractmethod
    def right_step(self, step: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        """The right operand at one step of k, along n; or at one column, along k, if that is how it lies."""

    @abstractmethod
    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        """A row of the output, along n."""

    @abstractmethod
    def further(self, read: Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        """What an epilogue reads at a row of the output: its buffer, the indices, and whether n follows these."""

    @property
    @abstractmethod
    def packed_right(self) -> TirExpr:
        """The right operand that was packed ahead of time: [panels, k, nr]."""

    def packed_vector(self, panel: Panel, row: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a row of a panel of it, as the instruction takes it."""
        packed: TirExpr = panel.packed
        return self.words.right_words(packed[(panel.index, row, self.words.columns(v * self.vectors.lanes))])

    def packed_word(self, packed: TirExpr, row: TirExpr, step: TirExpr) -> TirExpr:
        """The word of a row of the left operand that was packed at the call."""
        return packed[row, step]

    @property
    def first_panel(self) -> TirExpr | None:
        """Where the panels of this batch begin in it; None: at 0."""
        return None

    @property
    def computed(self) -> str:
        """The tensor whose elements the sums are, behind which the epilogue stands."""
        return self.task.workload.program.stages[0].tensor

    @property
    def words(self) -> Words:
        """What a step takes of the operands."""
        return Words(FMA, DTYPE, DTYPE, self.vectors)

    @property
    def ragged_k(self) -> TirExpr | None:
        """Where rows of the left operand end, if their last word is not whole."""
        return None

    @property
    def out_dtype(self) -> str:
        """Of what results are written to."""
        return DTYPE

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.kernel["nv"] * (1 if self.by_dots else self.vectors.lanes)

    @property
    def by_dots(self) -> bool:
        """Whether vectors run along k, both operands being read in place (dots.py)."""
        return self.kernel["pack"] == self.contraction.pack_of_dots


@dataclass(frozen=True)
class Panel:
    """Columns of the output from ``column`` on, ``vectors`` vectors of them, the valid ones before ``limit``.

    Its slice of the right operand is panel ``index`` of ``packed`` [panels, k, nr], whose row 0 stands for k =
    ``first``; or it is read in place, if ``packed`` is None.
    """

    column: TirExpr
    limit: TirExpr | None
    vectors: int
    index: TirExpr
    packed: TirExpr | None = None
    first: TirExpr | None = None


@dataclass(frozen=True)
class Chunk:
    """Steps ``first`` to ``first + length`` of k; ``opens`` and ``closes`` say whether they are the first and the last
    ones, None where there are no others."""

    first: TirExpr
    length: TirExpr
    opens: TirExpr | None
    closes: TirExpr | None


@dataclass(frozen=True)
class Rows:
    """Where rows of the left operand are read: in place, or from ``packed`` [rows, steps of the chunk at hand], whose
    row 0 is ``left[row]``."""

    packed: TirExpr | None = None
    row: TirExpr | None = None
