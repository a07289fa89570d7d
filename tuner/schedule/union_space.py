"""What policies draw micro-kernels from: the union of the spaces of all rules that take a task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tuner.errors import IllegalKernel
from tuner.schedule.space import Axis, MicroKernel, SearchSpace, Step


class KernelSpace(Protocol):
    """What a policy draws micro-kernels from: the space of one rule, or the union of several."""

    @property
    def size(self) -> int:
        """How many points there are before their check."""

    def points(self) -> Iterator[MicroKernel]:
        """Every legal micro-kernel; only for spaces small enough to list."""

    def sample(self, rng: np.random.Generator) -> MicroKernel:
        """A legal micro-kernel."""

    def mutate(self, kernel: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """A legal micro-kernel near ``kernel``; itself if there is none."""

    def neighbours(self, kernel: MicroKernel) -> list[MicroKernel]:
        """The legal micro-kernels one step away."""

    def steps(self, kernel: MicroKernel) -> dict[Step, MicroKernel]:
        """The same by axis and direction."""

    def position(self, kernel: MicroKernel) -> list[float]:
        """For each axis of the kernel's rule where its choice stands among all of them, from 0 to 1."""

    def axes_of(self, kernel: MicroKernel) -> tuple[Axis, ...]:
        """The axes of the kernel's rule, in order."""

    def smallest(self) -> list[MicroKernel]:
        """The legal micro-kernels with the first choice of every axis, or of all but one."""

    def crossover(self, first: MicroKernel, second: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """A legal mix of two; ``first`` if there is none."""


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
