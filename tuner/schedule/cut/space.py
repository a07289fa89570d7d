"""The space of a program in pieces: the product of the pieces' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tuner.schedule.space import MicroKernel, SearchSpace


@dataclass(frozen=True)
class CutSpace(SearchSpace):
    """Axes are those of ``parts``, each behind the number of its part: ``0.mr``."""

    parts: tuple[SearchSpace, ...] = field(kw_only=True)

    @staticmethod
    def of(rule: str, version: int, parts: Sequence[SearchSpace]) -> CutSpace:
        """The space of kernels of ``rule``, one of each part."""
        axes = tuple(replace(axis, name=f"{at}.{axis.name}") for at, part in enumerate(parts) for axis in part.axes)

        def check(kernel: MicroKernel) -> None:
            for part, own in zip(parts, _split(dict(kernel.values), len(parts)), strict=True):
                part.check(MicroKernel(part.rule, part.rule_version, tuple(own.items())))

        def canonical(values: Mapping[str, int]) -> dict[str, int]:
            each = zip(parts, _split(values, len(parts)), strict=True)
            return _together([part.canonicalise(own) for part, own in each])

        return CutSpace(rule, version, axes, check, canonical, parts=tuple(parts))

    @staticmethod
    def joined(rule: str, version: int, kernels: Sequence[MicroKernel]) -> MicroKernel:
        """The kernel that consists of one of each part."""
        return MicroKernel(rule, version, tuple(_together([dict(kernel.values) for kernel in kernels]).items()))

    def sample(self, rng: np.random.Generator) -> MicroKernel:
        """A legal micro-kernel: of every part one that its own space draws."""
        return self.joined(self.rule, self.rule_version, [part.sample(rng) for part in self.parts])

    def crossover(self, first: MicroKernel, second: MicroKernel, rng: np.random.Generator) -> MicroKernel:
        """The kernels of some parts from one parent, those of the others from the other: each is good with itself."""
        taken = rng.random(len(self.parts)) < 0.5
        parents = [_split(dict(parent.values), len(self.parts)) for parent in (first, second)]
        values = _together([parents[int(other)][at] for at, other in enumerate(taken)])
        return MicroKernel(self.rule, self.rule_version, tuple(values.items()))


def _split(values: Mapping[str, int], count: int) -> list[dict[str, int]]:
    """The values of each part, under their names there."""
    own: list[dict[str, int]] = [{} for _ in range(count)]
    for name, value in values.items():
        number, _, axis = name.partition(".")
        own[int(number)][axis] = value
    return own


def _together(each: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {f"{at}.{axis}": value for at, values in enumerate(each) for axis, value in values.items()}
