"""The shapes that a library is verified at: those that are never left out, and those added as far as time allows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tuner.library.dispatcher import Dispatcher
from tuner.program.job.budget_plan import reference_work
from tuner.schedule.space import MicroKernel

VERIFY_SHAPES = 24
VERIFY_WORK = 6e10
"""Operations (see ``reference_work``) of all verified shapes together: the float64 reference takes some seconds for it
on one core."""
EDGES = (0, 1, 2, 7)
NEAR = (1, 3, 5, 7)
"""How far from the least shape that a kernel serves a ragged one of it is looked for."""
PAST = (1, 13)
"""How far beyond the largest shape."""

Dims = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VerifiedAt:
    """Values of the symbols to verify a library at. ``floor``: a little past the end of the seconds, if need be, and
    the first ``least`` of it always; ``more``: as far as time allows, in this order."""

    floor: tuple[Dims, ...]
    more: tuple[Dims, ...]
    least: int

    @property
    def all(self) -> tuple[Dims, ...]:
        return self.floor + self.more


def verified_at(dispatcher: Dispatcher, verified: Collection[MicroKernel] = ()) -> VerifiedAt:
    """The floor: the least sizes, and for each kernel the smallest shape that it serves and a ragged one next to it;
    the least work first. Of it that one shape never is left out, for each kernel that is none of those that were
    ``verified`` before, as what was timed is.

    More: the tuned shapes, some past the range, many of it, and ragged ones in between; VERIFY_WORK in all.
    """
    workload = dispatcher.task.workload
    range_dims = [workload.dims(shape) for shape in dispatcher.task.shapes()]
    edges = [dict.fromkeys(workload.symbols, small) for small in EDGES]
    wanted = [dims for dims in _wanted(dispatcher, range_dims) if workload.is_consistent(dims)]
    least = _least_served(dispatcher, [*range_dims, *edges, *wanted])
    near = [dims for kernel, smallest in least.items() for dims in _ragged_near(dispatcher, kernel, smallest)]
    floor = _distinct([*(dims for dims in edges if workload.is_consistent(dims)), *least.values(), *near])
    always = _distinct(dims for index, dims in least.items() if dispatcher.kernels[index] not in verified)
    floor = [*always, *(dims for dims in sorted(floor, key=workload.work) if dims not in always)]
    spent = sum(reference_work(workload, dims) for dims in floor)
    more: list[Dims] = []
    for dims in _distinct(wanted):
        cost = reference_work(workload, dims)
        if dims not in floor and spent + cost <= VERIFY_WORK:
            more.append(dims)
            spent += cost
    return VerifiedAt(tuple(floor), tuple(more), len(always))


def _wanted(dispatcher: Dispatcher, range_dims: list[dict[str, int]]) -> Iterable[Dims]:
    task = dispatcher.task
    names = task.workload.symbols
    largest = {name: max(dims[name] for dims in range_dims) for name in names}
    rng = np.random.default_rng(0)
    sample = [range_dims[index] for index in rng.permutation(len(range_dims))[:VERIFY_SHAPES]]
    # Sizes between those of the range are served too: ragged ones, whatever their expressions.
    ragged = [{name: int(rng.integers(1, size + 2)) for name, size in largest.items()} for _ in sample]
    yield range_dims[0]
    yield from (task.workload.dims(instance.shape) for instance in task.instances)
    yield from ({name: size + extra for name, size in largest.items()} for extra in PAST)
    yield range_dims[-1]
    for of_range, between in zip(sample, ragged, strict=True):
        yield between
        yield of_range


def _least_served(dispatcher: Dispatcher, every: Iterable[Dims]) -> dict[int, Dims]:
    """The shape of least work that is dispatched to each kernel, among those with any points, by the kernel's index."""
    workload = dispatcher.task.workload
    served: dict[int, Dims] = {}
    for dims in sorted((dims for dims in every if workload.is_consistent(dims)), key=workload.work):
        if workload.points(dims) > 0:
            served.setdefault(dispatcher.index_for(dims), dims)
    return served


def _ragged_near(dispatcher: Dispatcher, kernel: int, smallest: Dims) -> list[Dims]:
    """The first shape a few steps above that the same kernel serves; none where its shape is static."""
    workload = dispatcher.task.workload
    for extra in NEAR if smallest else ():
        dims = {name: size + extra for name, size in smallest.items()}
        if workload.is_consistent(dims) and dispatcher.index_for(dims) == kernel:
            return [dims]
    return []


def _distinct(every: Iterable[Dims]) -> list[Dims]:
    result: list[Dims] = []
    for dims in every:
        if dims not in result:
            result.append(dims)
    return result
