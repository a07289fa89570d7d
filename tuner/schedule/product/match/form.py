"""A contraction of any form by the parts of its axes: what ``pattern`` finds, and code and theory look at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.program.notation import Stage
from tuner.program.target import Hardware
from tuner.schedule.intrinsics import FMA, DotProduct, dot_products_either_way, permutes
from tuner.schedule.product import product
from tuner.schedule.product.match.parts import Part
from tuner.schedule.product.match.phases import Phase
from tuner.schedule.product.operands.columns import Columns, are_in_two
from tuner.schedule.product.operands.image import Image
from tuner.schedule.product.operands.operands import Operand, in_words
from tuner.schedule.product.product import DTYPE
from tuner.schedule.rule import Extents

IN_IMAGE = 2
"""The choice of ``rows`` that reads rows of the left operand in a padded copy of the image they are windows of."""

IN_COPY = 3
"""The choice of ``pack`` that reads panels of the right operand in a padded copy of the image they are windows of."""


@dataclass(frozen=True)
class Form:
    """A contraction by the parts of its axes. ``out_roles``: of the output's dims; None where results are written
    element by element through a buffer of their own (``joined``: m and n hold all of their axes)."""

    parts: Mapping[str, Part]
    outer: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: Operand
    right: Operand
    out: str
    out_dtype: str
    out_roles: tuple[str, ...] | None
    total: str
    """The dtype of sums."""
    stages: tuple[Stage, ...]
    """The elementwise stages behind the contraction."""
    image: Image | None = None
    """What the rows of the left operand are windows of."""
    columns: Columns | None = None
    """What the columns of the right operand are windows of, if the left one was packed."""
    phase: Phase | None = None
    """What this is the form of, if that is not the whole workload."""
    phases: tuple[Form, ...] = ()
    """Of a whole one that is done in phases: this is one of them, with the most steps."""

    @property
    def each(self) -> tuple[Form, ...]:
        """The forms of all phases; this one where there are none."""
        return self.phases or (self,)

    @property
    def joined(self) -> bool:
        return self.out_roles is None

    @property
    def holds_partial(self) -> bool:
        """Whether partial sums can be kept where results are written."""
        return self.joined or product.holds_partial(self.out_dtype)

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        outer = {"b": self.outer} if self.outer else {}
        return {**outer, "m": self.m, "n": self.n, "k": self.k}

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each axis of the program."""
        of: dict[str, list[str]] = {}
        for role, group in self.groups.items():
            for name in group:
                of.setdefault(self.parts[name].axis, []).append("batch" if role == "b" else role)
        return {axis: " and ".join(dict.fromkeys(roles)) for axis, roles in of.items()}

    def by_role(self, extents: Extents) -> Extents:
        """Extents of the program's axes by their groups here."""
        return {
            role: np.asarray(math.prod(self.part_size(name, extents) for name in group))
            for role, group in self.groups.items()
        }

    def part_size(self, name: str, extents: Extents) -> NDArray[np.int64]:
        """The extents of a part."""
        part = self.parts[name]
        whole = np.asarray(extents[part.axis], np.int64)
        for places in self.phase.places if self.phase is not None else ():
            if places.axis == part.axis:
                whole = -(-(whole - places.first) // places.step)
        return whole if part.extent.constant is None else np.full_like(whole, part.extent.constant)

    # What the code and the theory of x86_contraction ask.
    @property
    def batch(self) -> str | None:
        return "b" if self.outer else None

    @property
    def epilogue(self) -> tuple[Stage, ...]:
        return () if self.joined else self.stages

    @property
    def right_is_constant(self) -> bool:
        return self.right.kind == "packed"

    @property
    def right_is_kn(self) -> bool:
        return self.right.kind != "view" or self.right.roles[-1] == "n"

    @property
    def pack_of_dots(self) -> int | None:
        return None

    @property
    def left_dtype(self) -> str:
        return self.left.dtype

    @property
    def right_dtype(self) -> str:
        return self.right.dtype

    def dots(self, hardware: Hardware) -> Mapping[int, DotProduct]:
        found = {FMA.group: FMA} if self.total == DTYPE else {}
        left, right = self.left.read_dtype, self.right.read_dtype
        if left is None or right is None:
            return found
        # The last one of a group is kept.
        every = reversed(dot_products_either_way(left, right, self.total, hardware))
        found |= {dot.group: dot for dot in every if dot.group > 1 and self._is_possible(dot)}
        return dict(sorted(found.items()))

    def _is_possible(self, dot: DotProduct) -> bool:
        """Whether operands are read in whole words, and what compensates an offset is known ahead."""
        views = "view" in (self.left.kind, self.right.kind)
        if views and not in_words(self.parts, self.k, dot.group):
            return False
        shifted, other = (self.right, self.left) if dot.is_swapped else (self.left, self.right)
        return not dot.offset or (shifted.kind != "packed" and other.kind == "packed")

    def copies_columns(self, hardware: Hardware) -> bool:
        """Whether panels may be read in a copy of an image."""
        columns, lanes = self.columns, hardware.lanes()
        if columns is None:
            return False
        return columns.is_straight(lanes) or (permutes(hardware) and are_in_two(columns, lanes))

    @property
    def dynamic(self) -> frozenset[str]:
        """The roles whose extents depend on symbols."""
        return frozenset(
            role
            for role, group in self.groups.items()
            if any(self.parts[name].extent.constant is None for name in group)
        )
