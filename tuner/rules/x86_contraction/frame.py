"""What every part of a contraction kernel's code looks at: its task, operands and extents, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.program.task import SearchTask
from tuner.rules.space import MicroKernel
from tuner.rules.vector.memory import Vectors
from tuner.rules.x86_contraction.pattern import Contraction

Expr = Any


@dataclass(frozen=True)
class Frame:
    """One kernel while it is written. ``extent``: by role. ``batch`` indexes operands that have a batch axis."""

    task: SearchTask
    contraction: Contraction
    kernel: MicroKernel
    extent: Mapping[str, Expr]
    buffers: Mapping[str, Expr]
    vectors: Vectors
    batch: tuple[Expr, ...] = ()

    def at(self, *batch: Expr) -> Frame:
        return replace(self, batch=batch)

    @property
    def left(self) -> Expr:
        return self.buffers[self.contraction.left]

    @property
    def right(self) -> Expr:
        return self.buffers[self.contraction.right]

    @property
    def out(self) -> Expr:
        return self.buffers[self.contraction.out]

    @property
    def nr(self) -> int:
        """Columns of a panel."""
        return self.kernel["nv"] * (1 if self.by_dots else self.vectors.lanes)

    @property
    def by_dots(self) -> bool:
        """Whether vectors run along k, both operands being read in place (dots.py)."""
        return self.contraction.both_along_k and not self.kernel["pack"]


@dataclass(frozen=True)
class Panel:
    """Columns of the output from ``column`` on, ``vectors`` vectors of them, the valid ones before ``limit``.

    Its slice of the right operand is panel ``index`` of ``packed`` [panels, k, nr], whose row 0 stands for k =
    ``first``; or it is read in place, if ``packed`` is None.
    """

    column: Expr
    limit: Expr | None
    vectors: int
    index: Expr
    packed: Expr | None = None
    first: Expr | None = None


@dataclass(frozen=True)
class Chunk:
    """Steps ``first`` to ``first + length`` of k; ``opens`` and ``closes`` say whether they are the first and the last
    ones, None where there are no others."""

    first: Expr
    length: Expr
    opens: Expr | None
    closes: Expr | None


@dataclass(frozen=True)
class Rows:
    """Where rows of the left operand are read: in place, or from ``packed`` [rows, steps of the chunk at hand], whose
    row 0 is ``left[row]``."""

    packed: Expr | None = None
    row: Expr | None = None
