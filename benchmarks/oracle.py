"""The oracle: the best of many kernels measured for one very shape, and what the dispatcher loses to it there.

Candidates are the library's own kernels, those of the search that the model ranks highest at the shape, in whatever
packed layout, and fresh ones evolved on the model for this shape alone (each verified on a device process before it is
run here). All are timed in alternating samples; then the best few and the library itself are timed again, from new
samples, and regret is read from these alone: the best of many noisy times is too good to be believed at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm_ffi

import shapewright as sw
from benchmarks.harness.calls import Shape, inputs_of, library_call, outputs_of
from benchmarks.harness.turns import alternate, sampler
from shapewright.library import Library
from shapewright.session import TuneResult
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import ENTRY
from tuner.measure import BuildResult, KeptBuilds, Runner, RunRequest
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule import layouts_of, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured, latency_table, normalized


@dataclass(frozen=True, slots=True)
class Settings:
    """How many candidates of each kind, and how long the two timings may take."""

    known: int = 16
    fresh: int = 16
    population: int = 256
    generations: int = 4
    finalists: int = 3
    first_budget_s: float = 3.0
    second_budget_s: float = 1.5
    second_rounds: int = 15


@dataclass(frozen=True, slots=True)
class Finding:
    """Both times are of the second timing. ``regret``: dispatched over the best, less 1; below 0 only by noise."""

    oracle_s: float
    dispatched_s: float
    kernel: str
    candidates: int

    @property
    def regret(self) -> float:
        return self.dispatched_s / self.oracle_s - 1.0


class Oracle:
    """The oracle of a search's result. ``directory`` holds its library. Use ``oracle_of``, which ends the processes."""

    def __init__(
        self, tuned: TuneResult, directory: Path, builds: KeptBuilds, runner: Runner, seed: int, settings: Settings
    ) -> None:
        self._task, self._settings = tuned.task, settings
        self._builds, self._runner = builds, runner
        self._space = space_of(self._task)
        self._rng = np.random.default_rng(seed)
        results = normalized(tuned.results)
        self._measured, self._model = Measured(results), PairCostModel(self._task, seed)
        self._model.update(results)
        self._library = sw.load(directory)

    def at(self, shape: Shape) -> Finding:
        """Raises ValueError if no candidate can be built."""
        settings, task = self._settings, self._task
        inputs, outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)
        libraries = {
            build.kernel.id: library_of_one(task, build)
            for build in self._builds.build(self._candidates(shape))
            if build.binary is not None
        }
        if not libraries:
            raise ValueError(f"no candidate for {task.workload} at {dict(shape)} could be built")
        samplers = {name: sampler(library_call(each, inputs, outputs)) for name, each in libraries.items()}
        first = alternate(samplers, budget_s=settings.first_budget_s)
        best = sorted(first, key=lambda name: first[name])[: settings.finalists]
        finalists = {name: samplers[name] for name in best}
        finalists["dispatched"] = sampler(library_call(self._library, inputs, outputs))
        second = alternate(finalists, rounds=settings.second_rounds, budget_s=settings.second_budget_s)
        dispatched = second.pop("dispatched")
        winner = min(second, key=lambda name: second[name])
        return Finding(second[winner], dispatched, winner, len(samplers))

    def _candidates(self, shape: Shape) -> list[MicroKernel]:
        known = self._measured.kernels
        ranked = []
        if known:
            expected = latency_table(self._task, self._model, self._measured, known, [shape])[:, 0]
            ranked = [known[index] for index in expected.argsort()[: self._settings.known]]
        own = list(self._library.kernels)
        return list(dict.fromkeys([*own, *ranked, *self._verified(self._fresh(shape, [*own, *ranked]), shape)]))

    def _fresh(self, shape: Shape, known: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The best new kernels for the shape by the model, evolved from the known ones."""
        settings, rng = self._settings, self._rng
        pool = [*known, *(self._space.sample(rng) for _ in range(settings.population))]
        for _ in range(settings.generations):
            parents = self._ranked(pool, shape)[: settings.population // 8]
            picks = rng.integers(len(parents), size=(settings.population, 2))
            children = [
                self._space.mutate(self._space.crossover(parents[a], parents[b], rng), rng) for a, b in picks.tolist()
            ]
            pool = [*parents, *children]
        tried = set(self._measured.kernels) | self._measured.failed
        return [kernel for kernel in self._ranked(pool, shape) if kernel not in tried][: settings.fresh]

    def _ranked(self, pool: Sequence[MicroKernel], shape: Shape) -> list[MicroKernel]:
        distinct = list(dict.fromkeys(pool))
        return [distinct[index] for index in self._model.predict(distinct, [shape]).latency_s[:, 0].argsort()]

    def _verified(self, kernels: Sequence[MicroKernel], shape: Shape) -> list[MicroKernel]:
        """The kernels that compute what they should: what runs in this process must not crash it."""
        if not kernels:
            return []
        instances = (WorkloadInstance.of(shape),)
        requests = [RunRequest(build, instances) for build in self._builds.build(kernels)]
        return [result.kernel for result in self._runner.run(self._task, requests) if result.ok]


@contextmanager
def oracle_of(tuned: TuneResult, directory: Path, seed: int = 0, settings: Settings | None = None) -> Iterator[Oracle]:
    """An oracle with a builder and a private device of its own."""
    from tuner.measure.local import local_tools  # noqa: PLC0415 - TVM, once the threads are limited

    with local_tools() as (builder, runner), closing(KeptBuilds(tuned.task, builder)) as builds:
        yield Oracle(tuned, directory, builds, runner, seed, settings or Settings())


def library_of_one(task: SearchTask, build: BuildResult) -> Library:
    """A candidate behind the same Python entry as a library, so that both pay the same for a call."""
    layouts = {name: layout.to_json() for name, layout in layouts_of(task, build.kernel).items()}
    manifest = {"digest": build.kernel.id, "packed_layouts": layouts, "threads": task.threads}
    with tempfile.NamedTemporaryFile(prefix="shapewright-oracle-", suffix=".so") as file:
        file.write(build.binary or b"")
        file.flush()
        module = tvm_ffi.load_module(file.name)
    assert module[ENTRY] is not None
    return Library(Path(), manifest, Dispatcher(task, (build.kernel,), 0, Leaf(0)), module)
