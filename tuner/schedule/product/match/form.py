"""A sum of products whose axes are grouped to m, n and k (``groups`` finds it)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.notation import Stage
from tuner.program.target import Hardware
from tuner.schedule.product.atom import Atom
from tuner.schedule.product.atoms import FMA, atoms_either_way
from tuner.schedule.product.axes import APART, JOINED, MAX_FEW, TURNED
from tuner.schedule.product.match.factors import Part, in_words, size_of
from tuner.schedule.product.match.phases import Phase
from tuner.schedule.product.operands import gathered
from tuner.schedule.product.operands.columns import Columns, are_in_two
from tuner.schedule.product.operands.image import Image
from tuner.schedule.product.operands.matrix import ViewedColumns, ViewedResult, ViewedRows
from tuner.schedule.product.operands.turned import TurnedResult, TurnedRows
from tuner.schedule.product.product import DTYPE, Product, can_hold_partial
from tuner.schedule.rule import Extents
from tuner.schedule.vector.memory import permutes


@dataclass(frozen=True)
class Form:
    """A contraction by the parts of its axes. ``out_roles``: of the output's dims; None where results are written
    element by element through a buffer of their own (``joined``: m and n hold all of their axes)."""

    parts: Mapping[str, Part]
    outer: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: gathered.AheadRows | gathered.GatheredRows | ViewedRows | TurnedRows
    right: gathered.AheadColumns | gathered.GatheredColumns | ViewedColumns
    out: str
    out_dtype: str
    out_roles: tuple[str, ...] | None
    total: str
    """The dtype of sums."""
    computed: str
    """The tensor whose elements the sums are."""
    stages: tuple[Stage, ...]
    """The elementwise stages behind the contraction."""
    image: Image | None = None
    """What the rows of the left operand are windows of."""
    columns: Columns | None = None
    """What the columns of the right operand are windows of, if the left one was packed."""
    phase: Phase | None = None
    """What this is the form of, if that is not the whole workload."""
    phases: tuple[Form, ...] = ()
    """All phases of a whole one; this is the one of them with the most steps."""

    @property
    def each(self) -> tuple[Form, ...]:
        """The forms of all phases; this one where there are none."""
        return self.phases or (self,)

    @property
    def joined(self) -> bool:
        return self.out_roles is None

    @property
    def is_turned(self) -> bool:
        """Whether vectors run along n, and the output lies along m."""
        return isinstance(self.left, TurnedRows)

    @property
    def last(self) -> str:
        """The role that the output lies along, where results are written in place."""
        return "m" if self.is_turned else "n"

    @property
    def join(self) -> int:
        """The choice of ``join`` that it is."""
        return JOINED if self.joined else TURNED if self.is_turned else APART

    @property
    def can_hold_partial(self) -> bool:
        """Whether partial sums can be kept where results are written."""
        return self.joined or can_hold_partial(self.out_dtype)

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
        """Extents of the program's axes by their depths here."""
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

    @cached_property
    def product(self) -> Product:
        """The form as the loops and the theory see it."""
        right = self.right
        if isinstance(right, gathered.GatheredColumns):
            right = replace(right, columns=self.columns)
        scattered = gathered.ScatteredResult(self.total, dtype=self.out_dtype, computed=self.computed)
        kind = TurnedResult if self.is_turned else ViewedResult
        direct = kind(dtype=self.out_dtype, computed=self.computed, epilogue=self.stages)
        return Product(
            axes={},
            left=self.left,
            right=right,
            result=scattered if self.joined else direct,
            dynamic=self.dynamic,
            depth=self.steps,
            atoms=self.dots,
            has_batch=bool(self.outer),
            sizes=self.by_role,
            is_by_panel=not self.is_turned,
        )

    @cached_property
    def steps(self) -> int | None:
        """The extent of k, None where it is dynamic."""
        return size_of(self.parts, self.k)

    def dots(self, hardware: Hardware) -> Mapping[int, Atom]:
        """The instructions that there are for it, by their depth."""
        found = {FMA.depth: FMA} if self.total == DTYPE else {}
        left, right = self.left.read_dtype, self.right.read_dtype
        if left is None or right is None:
            return found
        # The last one of a group is kept.
        every = reversed(atoms_either_way(left, right, self.total, hardware))
        found |= {atom.depth: atom for atom in every if atom.depth > 1 and self._is_possible(atom)}
        return dict(sorted(found.items()))

    def _is_possible(self, atom: Atom) -> bool:
        """Whether operands are read in whole words, and what compensates an offset is known ahead."""
        if (self.left.is_viewed or self.right.is_viewed) and not in_words(self.parts, self.k, atom.group):
            return False
        shifted, other = (self.right, self.left) if atom.is_swapped else (self.left, self.right)
        return not atom.offset or (not shifted.is_packed_ahead and other.is_packed_ahead)

    def few(self, lanes: int) -> int:
        """The columns behind whole vectors, where they are few and may be computed along k; else 0."""
        columns = size_of(self.parts, self.n)
        is_gathered = not self.right.is_packed_ahead and not self.phases and self.phase is None
        is_float = self.total == self.left.read_dtype == self.right.read_dtype == DTYPE
        if columns is None or columns < lanes or not (is_gathered and is_float):
            return 0
        return columns % lanes if columns % lanes <= MAX_FEW else 0

    def copies_columns(self, hardware: Hardware) -> bool:
        """Whether panels may be read in a copy of an image."""
        columns, lanes = self.columns, hardware.lanes()
        if columns is None:
            return False
        return columns.is_straight(lanes) or (permutes(hardware) and are_in_two(columns, lanes))

    @property
    def dynamic(self) -> frozenset[str]:
        """The roles whose extents depend on symbols."""
        return frozenset(role for role, group in self.groups.items() if size_of(self.parts, group) is None)
