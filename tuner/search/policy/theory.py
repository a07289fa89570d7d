"""The kernel set that the cost model chooses before anything is measured: the default that every search must beat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tuner.library.selection import select
from tuner.program.job.task import SearchTask
from tuner.schedule import default_kernel, extents_of, layout_group, rules_of
from tuner.schedule.cut.rule import Cut, Piece
from tuner.schedule.serial import Serial
from tuner.schedule.space import KernelSpace, MicroKernel
from tuner.search.cost_model import CostModel
from tuner.search.policy._base import Pick


@dataclass(frozen=True, slots=True)
class TheorySettings:
    """How much of the space is predicted."""

    samples: int = 3000
    generations: int = 6
    """Rounds of mutation around the best of the samples."""


def theory_set(
    task: SearchTask,
    space: KernelSpace,
    model: CostModel,
    rng: np.random.Generator,
    settings: TheorySettings,
    failed: Collection[MicroKernel] = (),
) -> list[MicroKernel]:
    """The set that the model alone chooses now: of many samples, and of the neighbours of the best ones.

    None of ``failed`` is in it.
    """
    shapes = [instance.shape for instance in task.instances]

    def predict(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        return model.predict(kernels, shapes).latency_s

    first = [default_kernel(task), *_of_pieces(task, rng, settings)]
    return _best_set(task, space, predict, first, rng, settings, failed)


def shortlist(
    task: SearchTask, space: KernelSpace, model: CostModel, rng: np.random.Generator, count: int,
    settings: TheorySettings | None = None,
) -> list[MicroKernel]:  # fmt: skip
    """Up to ``count`` kernels, from which a set can be chosen although some of them are refused: the set that the model
    chooses, the set that it would choose without that one, and so on; the default kernel last."""
    found, last = list[MicroKernel](), default_kernel(task)
    while len(found) < count:
        more = theory_set(task, space, model, rng, settings or TheorySettings(), found)
        if not more:
            break
        found += more
    others = [kernel for kernel in found if kernel != last]
    return [*others[: count - 1], last]


def _best_set(
    task: SearchTask,
    space: KernelSpace,
    predict: Callable[[Sequence[MicroKernel]], NDArray[np.float64]],
    first: Sequence[MicroKernel],
    rng: np.random.Generator,
    settings: TheorySettings,
    failed: Collection[MicroKernel] = (),
) -> list[MicroKernel]:
    """The set that is best by ``predict`` ([kernels, instances] seconds): of ``first``, samples, and neighbours."""

    def usable(kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
        return [kernel for kernel in dict.fromkeys(kernels) if kernel not in failed]

    pool = usable([*first, *(space.sample(rng) for _ in range(settings.samples))])
    for _ in range(settings.generations):
        best = [pool[index] for row in predict(pool).argsort(axis=0)[:8] for index in row]
        pool = usable(pool + [space.mutate(kernel, rng) for kernel in best for _ in range(4)])
    if not pool:
        return []
    weights = np.array([instance.weight for instance in task.instances])
    layouts = [layout_group(task, kernel) for kernel in pool]
    chosen = select(predict(pool), weights / weights.sum(), task.max_kernels, layouts)
    return [pool[index] for index in chosen]


def _of_pieces(task: SearchTask, rng: np.random.Generator, settings: TheorySettings) -> list[MicroKernel]:
    """Kernels of programs in pieces that have at each instance what theory expects to be best of each piece: samples of
    all pieces at once are hardly ever good at each of them. Those for one thread among them, too."""
    extents = extents_of(task.workload, [instance.shape for instance in task.instances])
    known: dict[tuple[Piece, int], tuple[list[MicroKernel], NDArray[np.int64]]] = {}
    kernels: list[MicroKernel] = []
    for rule in rules_of(task):
        cut, of_all = (rule.rule, task.for_threads(1)) if isinstance(rule, Serial) else (rule, task)
        if not isinstance(cut, Cut):
            continue
        for piece, own in zip(cut.pieces, cut.tasks(of_all), strict=True):
            if (piece, own.threads) not in known:
                estimated = partial(piece.rule.estimate_s, own, extents=extents)
                first = [piece.rule.default_kernel(own)]
                found = _best_set(own, piece.rule.space(own), estimated, first, rng, settings)
                known[piece, own.threads] = found, estimated(found).argmin(axis=0)
        each = [known[piece, of_all.threads] for piece in cut.pieces]
        joined = [cut.joined([found[best[at]] for found, best in each]) for at in range(len(task.instances))]
        kernels += map(rule.named, joined) if isinstance(rule, Serial) else joined
    return list(dict.fromkeys(kernels))


def dispatched(
    task: SearchTask, model: CostModel, kernels: Sequence[MicroKernel], instances: Sequence[int]
) -> list[Pick]:
    """Each kernel with those of ``instances`` (indices) where the model expects it to be the fastest."""
    serves = model.predict(kernels, [instance.shape for instance in task.instances]).latency_s.argmin(axis=0)
    picks = [(kernel, [at for at in instances if serves[at] == index]) for index, kernel in enumerate(kernels)]
    return [(kernel, indices) for kernel, indices in picks if indices]


def first_round(
    task: SearchTask, model: CostModel, kernels: Sequence[MicroKernel], failed: Collection[MicroKernel] = ()
) -> list[Pick]:
    """Theory's set and the safe kernel: each on every instance that it serves, and on a few others.

    So every instance has a measured time of the default. Those that serve most come first, in case the budget ends
    before all are measured. A rule without a kernel in the set is tried by its own safe kernel: how far its theory is
    off nothing else can tell. None of ``failed`` is among them.
    """
    count = len(task.instances)
    ends = {0, count // 2, count - 1}
    serves = dict(dispatched(task, model, kernels, range(count)))
    picks = [(kernel, sorted(ends.union(serves.get(kernel, ())))) for kernel in kernels]
    preferred, *others = rules_of(task)
    tried = {kernel.rule for kernel in kernels}
    safe = [preferred.default_kernel(task), *(rule.default_kernel(task) for rule in others if rule.name not in tried)]
    picks += [(kernel, sorted(ends)) for kernel in safe if kernel not in kernels]
    picks = [pick for pick in picks if pick[0] not in failed]
    return sorted(picks, key=lambda pick: -len(serves.get(pick[0], ())))
