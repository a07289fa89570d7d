"""DietCode's search on our space and our rule: what the choice of an algorithm brings, everything else being equal.

As published (Zheng et al., MLSys 2022) and as its code has it:

- score(kernel, shape) = f(kernel) x occupancy x padding, in flops a second. Padding is the product of
  L / roundup(L, tile) over the spatial axes (a reduction's is ignored); occupancy is g / roundup(g, cores) for g tiles.
  f is XGBoost on features of the kernel alone, and learns measured speed / (occupancy x padding).
- A candidate's fitness is its *largest* score over the instances, unweighted. A population evolves by tile mutation
  only; the best of all generations and 5 % random ones are measured, once each, on the one instance where occupancy x
  padding is highest (the largest of several such, where a call's own cost matters least).
- Each instance gets the kernel with the best score at it; nothing is timed again.

Where our setting has what DietCode's has not: a library's kernels share one packed layout, so the instances choose
within the layout whose total of weighted predicted times is the best (the rule that our own selection follows, on
DietCode's predictions). Above ``max_kernels`` those that the most instances chose are kept. In place of scikit-learn's
tree over kernel ids, our dispatcher is fitted to the predicted times at the tuned instances alone: halfway between two
of them it changes from the one's kernel to the other's.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np
import xgboost
from numpy.typing import NDArray

from benchmarks.rivals.torch_products import contraction_of
from shapewright.download import write
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, bounded, symbol_bounds
from tuner.library.fitting import fit
from tuner.measure import Builder, Runner, RunRequest
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule import layout_group
from tuner.schedule.rules.matmul import Matmul
from tuner.schedule.space import MicroKernel

Floats = NDArray[np.float64]
PARAMETERS = {"max_depth": 6, "eta": 0.2, "min_child_weight": 0.0, "nthread": 1}
BOOSTING_ROUNDS = 100
ADDED = {"nb"}
"""Axes that a kernel leaves out at their first choice."""
POPULATION, GENERATIONS, RANDOM_SHARE, MEASURED_SHARE = 2048, 4, 0.05, 0.2
"""DietCode's; the last is the largest share of the first generation that are the best kernels measured so far."""
MEASURES_PER_ROUND = 64
"""Ansor's size of a batch."""


def tile_of(task: SearchTask, kernel: MicroKernel) -> dict[str, int]:
    """The extent of one tile along each spatial axis."""
    axes = contraction_of(task.workload).axes
    tile = {axes["m"]: kernel["mr"], axes["n"]: kernel["nv"] * task.known_target.hardware.lanes()}
    return {axes["b"]: 1, **tile} if "b" in axes else tile


def adaption(task: SearchTask, kernel: MicroKernel, shape: Mapping[str, int]) -> float:
    """occupancy x padding, in (0, 1]: the share of its own speed that DietCode expects of a kernel at a shape."""
    extents = task.workload.axis_sizes(task.workload.dims(shape))
    padding, tiles = 1.0, 1
    for axis, tile in tile_of(task, kernel).items():
        count = max(1, math.ceil(extents[axis] / tile))
        padding *= max(extents[axis], 1) / (count * tile)
        tiles *= count
    return padding * tiles / (math.ceil(tiles / task.threads) * task.threads)


def _features(kernels: Sequence[MicroKernel]) -> NDArray[np.float32]:
    axes = sorted({name for kernel in kernels for name, _ in kernel.values} | ADDED)
    rows = [[*(math.log2(kernel.get(axis) + 1) for axis in axes), kernel["mr"] * kernel["nv"]] for kernel in kernels]
    return np.array(rows, np.float32)


class DietCodeSearch:
    """One search; ``run`` spends the trials, ``dispatcher`` says what came of it. Its formulas are of matrix products:
    raises DoesNotApply for other workloads."""

    def __init__(self, task: SearchTask, seed: int = 0, population: int = POPULATION) -> None:
        self._task, self._population = task, population
        contraction_of(task.workload)
        self._space = Matmul().space(task)
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._booster: xgboost.Booster | None = None
        self._speeds: dict[MicroKernel, float] = {}
        self._tried: set[MicroKernel] = set()
        self._adaptions: dict[MicroKernel, Floats] = {}

    @property
    def trials(self) -> int:
        return len(self._tried)

    def run(self, builder: Builder, runner: Runner, trials: int) -> None:
        """Measure ``trials`` kernels, one instance each; fewer where the space has no more."""
        # A small budget is spent in rounds, too, or the model would never be used.
        batch = min(MEASURES_PER_ROUND, max(4, trials // 8))
        while (left := trials - self.trials) > 0:
            chosen = self.suggest(min(left, batch))
            if not chosen:
                return
            builds = builder.build(self._task, chosen)
            requests = [RunRequest(build, (self.instance_for(build.kernel),)) for build in builds]
            self.update(runner.run(self._task, requests))

    def suggest(self, count: int) -> list[MicroKernel]:
        """The best of all generations by the model, and a few random ones; none that was tried before."""
        pool = [kernel for kernel in self._evolved() if kernel not in self._tried]
        order = list((-self._fitness(pool)).argsort()) if pool else []
        random = [pool[i] for i in self._rng.permutation(len(pool))[: math.ceil(RANDOM_SHARE * count)]]
        best = [pool[i] for i in order if pool[i] not in random]
        return [*random, *best][:count]

    def update(self, results: Sequence[MeasureResult]) -> None:
        for result in results:
            self._tried.add(result.kernel)
            if result.latency_s is not None:
                speed = self._flops(result.instance) / result.latency_s
                self._speeds[result.kernel] = speed / adaption(self._task, result.kernel, result.instance.shape)
        if self._speeds:
            # f: the speed of a kernel without its penalties, as a share of the fastest, from the kernel alone.
            shares = np.array(list(self._speeds.values())) / max(self._speeds.values())
            data = xgboost.DMatrix(_features(list(self._speeds)), shares)
            self._booster = xgboost.train(PARAMETERS | {"seed": self._seed}, data, BOOSTING_ROUNDS)

    def instance_for(self, kernel: MicroKernel) -> WorkloadInstance:
        """The one instance that the kernel is measured on."""
        return max(self._task.instances, key=lambda each: (adaption(self._task, kernel, each.shape), self._flops(each)))

    def _flops(self, instance: WorkloadInstance) -> int:
        return self._task.workload.flops(self._task.workload.dims(instance.shape))

    def dispatcher(self) -> Dispatcher:
        """Each instance's predicted best kernel, of the layout whose predicted total is the best. Raises ValueError."""
        if not self._speeds:
            raise ValueError("DietCode's search measured no kernel")
        kernels = list(self._speeds)
        flops = np.array([self._flops(instance) for instance in self._task.instances], np.float64)
        latency = flops / self._scores(kernels)
        weights = np.array([instance.weight for instance in self._task.instances])
        groups: dict[Hashable, list[int]] = {}
        for index, kernel in enumerate(kernels):
            groups.setdefault(layout_group(self._task, kernel), []).append(index)
        members = min(groups.values(), key=lambda group: float(latency[group].min(axis=0) @ weights))
        chosen = Counter(members[int(column)] for column in latency[members].argmin(axis=0))
        kept = [index for index, _ in chosen.most_common(self._task.max_kernels)]
        return self._fitted([kernels[index] for index in kept], latency[kept].T)

    def _fitted(self, kernels: Sequence[MicroKernel], latency: Floats) -> Dispatcher:
        """``latency``: [instances, kernels]. Outside the range: what serves the largest instance."""
        task, names = self._task, self._task.workload.symbols
        dims = [task.workload.dims(instance.shape) for instance in task.instances]
        points = np.array([[row[name] for name in names] for row in dims], np.int64)
        largest = max(range(len(dims)), key=lambda index: task.workload.flops(dims[index]))
        safe = int(latency[largest].argmin())
        tree = bounded(fit(names, points, latency), symbol_bounds(task), safe)
        return Dispatcher(task, tuple(kernels), safe, tree)

    # -- evolution ------------------------------------------------------------------------------------------------
    def _evolved(self) -> list[MicroKernel]:
        """Every kernel of every generation. Parents are drawn in proportion to their fitness."""
        size, fastest = self._population, sorted(self._speeds, key=lambda kernel: -self._speeds[kernel])
        seeds = fastest[: int(size * MEASURED_SHARE)]
        population = [*seeds, *(self._space.sample(self._rng) for _ in range(size - len(seeds)))]
        seen = dict.fromkeys(population)
        for _ in range(GENERATIONS if self._speeds else 0):
            fitness = self._fitness(population)
            parents = self._rng.choice(len(population), size=size, p=fitness / fitness.sum())
            population = [self._space.mutate(population[parent], self._rng) for parent in parents]
            seen |= dict.fromkeys(population)
        return list(seen)

    def _fitness(self, kernels: Sequence[MicroKernel]) -> Floats:
        return np.asarray(self._scores(kernels).max(axis=1))

    def _scores(self, kernels: Sequence[MicroKernel]) -> Floats:
        """[kernels, instances], flops a second; before the first measurement every kernel counts the same."""
        for kernel in set(kernels) - self._adaptions.keys():
            shares = [adaption(self._task, kernel, instance.shape) for instance in self._task.instances]
            self._adaptions[kernel] = np.array(shares)
        penalties = np.stack([self._adaptions[kernel] for kernel in kernels])
        if self._booster is None:
            return penalties
        predicted = self._booster.predict(xgboost.DMatrix(_features(kernels))).astype(np.float64)
        return np.asarray(np.maximum(predicted, 1e-3)[:, None] * max(self._speeds.values()) * penalties)


def save_dietcode(task: SearchTask, trials: int, seed: int, directory: Path) -> dict[str, float]:
    """Search with ``trials`` on a private device of this machine and write the library. What it took: trials, seconds,
    kernels. Raises DoesNotApply."""
    from tuner.measure.local import local_tools  # noqa: PLC0415 - TVM, once the threads are limited

    started = time.monotonic()
    search = DietCodeSearch(task, seed)
    with local_tools() as (builder, runner):
        search.run(builder, runner, trials)
    dispatcher = search.dispatcher()
    write(build_library(dispatcher, None).files, directory)
    return {"trials": search.trials, "elapsed_s": time.monotonic() - started, "kernels": len(dispatcher.kernels)}
