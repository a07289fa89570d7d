"""Micro-kernels: frozen vectors of tile sizes and annotations, and the spaces that they are drawn from: that of a rule,
and the union of all that take a task."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tuner.errors import IllegalKernel

if TYPE_CHECKING:
    import numpy as np

Step = tuple[str, int]
"""A direction of a space: an axis by name, and -1 or 1 for the choice before or after."""

DEFAULT_CHOICE = 1
"""The first choice of every axis that is added to a version of a rule (Axis.is_optional)."""
READABLE: Mapping[str, str] = {
    "mr": "m_tile", "nv": "n_vectors", "mb": "block_rows", "nb": "strip_panels", "kc": "k_block", "ku": "unroll",
    "near": "prefetch_stream", "ahead": "prefetch_next", "fetch": "prefetch_output",
    "pack": "pack_panels", "tail": "exact_tail", "edge": "exact_edge", "tb": "threads_batch", "tn": "threads_n",
    "group": "k_atom", "panel": "panel_layout", "join": "join_axes", "ev": "value_vectors", "cols": "block_columns",
}  # fmt: skip
"""What people are shown of axes whose names in records, files and code are short."""


def readable(axis: str) -> str:
    """An axis by the name that people are shown; that of a piece (``1.mr``) with its number before it."""
    piece, dot, own = axis.rpartition(".")
    return f"{piece}{dot}{READABLE.get(own, own)}"


@dataclass(frozen=True, slots=True, repr=False)
class MicroKernel:
    """A point of a rule's search space: how one tile of the computation is carried out, whatever the shape.

    ``values`` gives each axis of the space its choice, sorted by the axes' names so that it does not matter in which
    order a database or a file gives them back. The meaning of each axis stands with the rule that names it.
    """

    rule: str
    rule_version: int
    values: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(self.values)))

    def __getitem__(self, axis: str) -> int:
        for name, value in self.values:
            if name == axis:
                return value
        raise KeyError(axis)

    def get(self, axis: str, default: int = DEFAULT_CHOICE) -> int:
        """The choice of an axis that not every kernel has."""
        return dict(self.values).get(axis, default)

    @property
    def id(self) -> str:
        """Twelve hex digits that name this micro-kernel everywhere."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"<MicroKernel {self.id}: {self}>"

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "rule_version": self.rule_version, "values": dict(self.values)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MicroKernel:
        return MicroKernel(data["rule"], data["rule_version"], tuple(data["values"].items()))

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)

    @property
    def named(self) -> dict[str, int]:
        """Its values by the names that people are shown."""
        return {readable(name): value for name, value in self.values}

    @property
    def shown(self) -> str:
        """``m_tile=8 k_unroll=4``: the same as text."""
        return " ".join(f"{name}={value}" for name, value in self.named.items())


@dataclass(frozen=True, slots=True)
class Axis:
    """One decision of a space: its name, what it means, and the values it can take in ascending order.

    ``is_optional``: kernels of this version of the rule were stored before there was such an axis. They are those with
    its first choice, DEFAULT_CHOICE, which stands in no kernel's values.
    """

    name: str
    doc: str
    choices: tuple[int, ...]
    is_optional: bool = False

    @property
    def shown(self) -> str:
        """The name that people are shown."""
        return readable(self.name)

    def __post_init__(self) -> None:
        if self.is_optional and self.choices[0] != DEFAULT_CHOICE:
            raise ValueError(f"axis {self.name}: an added axis begins with {DEFAULT_CHOICE}, not {self.choices[0]}")


@dataclass(frozen=True)
class SearchSpace:
    """All legal micro-kernels of one rule for one workload and target.

    Axes are sampled jointly; ``check`` raises IllegalKernel, with the need and the limit, for a point that the
    hardware cannot carry. Sampling is by rejection, so ``check`` must let a fair share of points pass. ``canonicalise``
    sets don't-care axes (those without effect beside the other choices) to one value.
    """

    rule: str
    rule_version: int
    axes: tuple[Axis, ...]
    check: Callable[[MicroKernel], None]
    canonicalise: Callable[[Mapping[str, int]], dict[str, int]] = dict

    def kernel(self, values: Mapping[str, int]) -> MicroKernel:
        """The micro-kernel with these values, checked. Raises IllegalKernel."""
        chosen = self._chosen(values)
        for axis in self.axes:
            if chosen[axis.name] not in axis.choices:
                raise IllegalKernel(f"{axis.name}={chosen[axis.name]} is not one of {axis.choices}")
        for name, added in self._added.items():
            if chosen[name] == added:
                del chosen[name]
        kernel = MicroKernel(self.rule, self.rule_version, tuple(chosen.items()))
        self.check(kernel)
        return kernel

    @cached_property
    def _added(self) -> dict[str, int]:
        """What the values of a kernel leave out."""
        return {axis.name: DEFAULT_CHOICE for axis in self.axes if axis.is_optional}

    @cached_property
    def _bounds(self) -> list[int]:
        """The number of choices of each axis."""
        return [len(axis.choices) for axis in self.axes]

    def has_axes_of(self, kernel: MicroKernel) -> bool:
        """Whether a kernel has a value for each axis, and for no other: a file may hold kernels of a later release."""
        names, every = {name for name, _ in kernel.values}, {axis.name for axis in self.axes}
        return every - self._added.keys() <= names <= every

    def values_of(self, kernel: MicroKernel) -> dict[str, int]:
        """A kernel's choice of every axis, of those that its values leave out, too."""
        return self._chosen(dict(kernel.values))

    def _chosen(self, values: Mapping[str, int]) -> dict[str, int]:
        chosen = {**self._added, **values}
        return {axis.name: chosen[axis.name] for axis in self.axes}

    def legal(self, values: Mapping[str, int]) -> MicroKernel | None:
        """The micro-kernel with these values, canonicalised; None if it is not legal."""
        try:
            return self.kernel(self.canonicalise(values))
        except IllegalKernel:
            return None

    @property
    def size(self) -> int:
        """How many points there are before ``check``."""
        return math.prod(len(axis.choices) for axis in self.axes)

    def points(self) -> Iterator[MicroKernel]:
        """Every legal micro-kernel; only for spaces small enough to list."""
        for choices in itertools.product(*(axis.choices for axis in self.axes)):
            values = {axis.name: choice for axis, choice in zip(self.axes, choices, strict=True)}
            if self.canonicalise(values) == values and (kernel := self.legal(values)) is not None:
                yield kernel

    def sample(self, rng: np.random.Generator) -> MicroKernel:
        """A legal micro-kernel, each point as likely as any other."""
        for _ in range(100_000):
            drawn = zip(self.axes, rng.integers(self._bounds).tolist(), strict=True)
            values = {axis.name: axis.choices[index] for axis, index in drawn}
            if (kernel := self.legal(values)) is not None:
                return kernel
        raise IllegalKernel("no legal micro-kernel found in 100,000 draws: the limits exclude the space")

    def mutate(self, kernel: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """``kernel`` with one or two axes changed, mostly to a neighbouring choice; itself if nothing legal is near."""
        for _ in range(64):
            values = self.values_of(kernel)
            count = min(int(rng.integers(1, 3)), len(self.axes))
            for index in rng.choice(len(self.axes), size=count, replace=False):
                axis = self.axes[int(index)]
                here = axis.choices.index(values[axis.name])
                step = (
                    int(rng.choice([-1, 1]))
                    if rng.random() < 0.7
                    else int(rng.integers(-len(axis.choices), len(axis.choices)))
                )
                values[axis.name] = axis.choices[min(max(here + step, 0), len(axis.choices) - 1)]
            mutant = self.legal(values)
            if mutant is not None and mutant != kernel:
                return mutant
        return kernel

    def steps(self, kernel: MicroKernel) -> dict[Step, MicroKernel]:
        """By axis and direction the legal micro-kernels one choice away; without those that are ``kernel`` again,
        where the axis has no effect beside the other choices."""
        steps: dict[Step, MicroKernel] = {}
        values = self.values_of(kernel)
        for axis in self.axes:
            here = axis.choices.index(values[axis.name])
            for direction in (-1, 1):
                if 0 <= here + direction < len(axis.choices):
                    near = self.legal(values | {axis.name: axis.choices[here + direction]})
                    if near is not None and near != kernel:
                        steps[axis.name, direction] = near
        return steps

    def neighbours(self, kernel: MicroKernel) -> list[MicroKernel]:
        """The legal micro-kernels that differ from ``kernel`` by one step of one axis."""
        return list(dict.fromkeys(self.steps(kernel).values()))

    def position(self, kernel: MicroKernel) -> list[float]:
        """For each axis in order where its choice stands among all of them, from 0 to 1."""
        values = self.values_of(kernel)
        return [axis.choices.index(values[axis.name]) / max(1, len(axis.choices) - 1) for axis in self.axes]

    def axes_of(self, kernel: MicroKernel) -> tuple[Axis, ...]:
        """The axes of this space, whichever of its kernels is given."""
        return self.axes

    def smallest(self) -> list[MicroKernel]:
        """The micro-kernel with the first choice of every axis or, where that is not legal, those with so in all axes
        but one."""
        lowest = {axis.name: axis.choices[0] for axis in self.axes}
        if (kernel := self.legal(lowest)) is not None:
            return [kernel]
        raised = (self.legal(lowest | {axis.name: choice}) for axis in self.axes for choice in axis.choices[1:])
        return list(dict.fromkeys(kernel for kernel in raised if kernel is not None))

    def crossover(self, first: MicroKernel, second: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """Each axis from one parent or the other; ``first`` if no legal mix is found."""
        parents = self.values_of(first), self.values_of(second)
        for _ in range(32):
            values = {axis.name: parents[0 if rng.random() < 0.5 else 1][axis.name] for axis in self.axes}
            if (child := self.legal(values)) is not None:
                return child
        return first


@dataclass(frozen=True)
class UnionSpace:
    """The spaces of several rules as one. A kernel belongs to the space of the rule that it names."""

    spaces: tuple[SearchSpace, ...]

    def space_of(self, kernel: MicroKernel) -> SearchSpace:
        """Raises IllegalKernel for a kernel of a rule that is not among these."""
        for space in self.spaces:
            if space.rule == kernel.rule:
                return space
        raise IllegalKernel(f"{kernel} is of rule {kernel.rule}, not one of {', '.join(s.rule for s in self.spaces)}")

    def has_rule_of(self, kernel: MicroKernel) -> bool:
        """Whether the kernel is of one of these rules, and of the same version of it."""
        return (kernel.rule, kernel.rule_version) in {(space.rule, space.rule_version) for space in self.spaces}

    @property
    def size(self) -> int:
        """How many points there are before ``check``."""
        return sum(space.size for space in self.spaces)

    def points(self) -> Iterator[MicroKernel]:
        """Every legal micro-kernel; only for spaces small enough to list."""
        return itertools.chain.from_iterable(space.points() for space in self.spaces)

    def sample(self, rng: np.random.Generator) -> MicroKernel:
        """A legal micro-kernel of any of the spaces, each space as likely as any other."""
        index = int(rng.integers(len(self.spaces))) if len(self.spaces) > 1 else 0
        return self.spaces[index].sample(rng)

    def mutate(self, kernel: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """As SearchSpace.mutate, within the kernel's own space."""
        return self.space_of(kernel).mutate(kernel, rng)

    def neighbours(self, kernel: MicroKernel) -> list[MicroKernel]:
        """As SearchSpace.neighbours, within the kernel's own space."""
        return self.space_of(kernel).neighbours(kernel)

    def steps(self, kernel: MicroKernel) -> dict[Step, MicroKernel]:
        """As SearchSpace.steps, within the kernel's own space."""
        return self.space_of(kernel).steps(kernel)

    def position(self, kernel: MicroKernel) -> list[float]:
        """As SearchSpace.position, within the kernel's own space."""
        return self.space_of(kernel).position(kernel)

    def axes_of(self, kernel: MicroKernel) -> tuple[Axis, ...]:
        """The axes of the kernel's own space."""
        return self.space_of(kernel).axes

    def smallest(self) -> list[MicroKernel]:
        """Those of every space."""
        return [kernel for space in self.spaces for kernel in space.smallest()]

    def crossover(self, first: MicroKernel, second: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """As SearchSpace.crossover; ``first`` if the parents are of different rules."""
        return first if first.rule != second.rule else self.space_of(first).crossover(first, second, rng)


KernelSpace = SearchSpace | UnionSpace
"""What policies draw micro-kernels from."""
