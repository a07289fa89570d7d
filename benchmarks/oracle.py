"""What the results of a search could have come to: more for one very shape, which is the oracle, or less for all.

The oracle is the best of many kernels measured for a shape; regret is what the dispatcher loses to it there. Candidates
are the library's own kernels, those of the search that the model ranks highest at the shape, in whatever packed layout,
and those of another search for this shape alone. All are timed in alternating samples; then the best few and the
library itself are timed again, from new samples, and regret is read from these alone: the best of many noisy times is
too good to be believed at once.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi

import shapewright as sw
from benchmarks.harness.calls import Shape, inputs_of, library_call, outputs_of
from benchmarks.harness.turns import alternate, sampler
from shapewright.download import write
from shapewright.library import Library
from shapewright.session import TuneResult, tune_here
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import ENTRY
from tuner.measure import BuildResult, KeptBuilds
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule import layouts_of
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured, latency_table, normalized

KNOWN, FRESH, FINALISTS = 16, 16, 3
"""Candidates of the search, trials of the one for a shape, and how many of all are timed again."""


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
    """The oracle of a search's result. ``directory`` holds its library. Use ``oracle_of``, which ends the builder."""

    def __init__(self, tuned: TuneResult, directory: Path, builds: KeptBuilds, seed: int) -> None:
        self._task, self._builds, self._seed = tuned.task, builds, seed
        results = normalized(tuned.results)
        self._measured, self._model = Measured(results), PairCostModel(self._task, seed)
        self._model.update(results)
        self._library = sw.load(directory)

    def at(self, shape: Shape) -> Finding:
        """Raises ValueError if no candidate can be built."""
        task = self._task
        inputs, outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)
        samplers = {
            build.kernel.id: sampler(library_call(library_of_one(task, build), inputs, outputs))
            for build in self._builds.build(self._candidates(shape))
            if build.binary is not None
        }
        if not samplers:
            raise ValueError(f"no candidate for {task.workload} at {dict(shape)} could be built")
        first = alternate(samplers, budget_s=3.0)
        finalists = {name: samplers[name] for name in sorted(first, key=lambda name: first[name])[:FINALISTS]}
        finalists["dispatched"] = sampler(library_call(self._library, inputs, outputs))
        second = alternate(finalists, rounds=15, budget_s=1.5)
        dispatched = second.pop("dispatched")
        winner = min(second, key=lambda name: second[name])
        return Finding(second[winner], dispatched, winner, len(samplers))

    def _candidates(self, shape: Shape) -> list[MicroKernel]:
        """All have run on a device process before: what runs in this process must not crash it."""
        task, known = self._task, self._measured.kernels
        candidates = list(self._library.kernels)
        if known:
            expected = latency_table(task, self._model, self._measured, known, [shape])[:, 0]
            candidates += [known[index] for index in expected.argsort()[:KNOWN]]
        alone = SearchTask(
            task.workload, shape_vars=task.shape_vars, instances=(WorkloadInstance.of(shape),), target=task.target,
            threads=task.threads,
        )  # fmt: skip
        found = tune_here(alone, trials=FRESH, seed=self._seed).results
        return list(dict.fromkeys([*candidates, *(result.kernel for result in found if result.ok)]))


@contextmanager
def oracle_of(tuned: TuneResult, directory: Path, seed: int = 0) -> Iterator[Oracle]:
    from tuner.measure.local import local_tools  # noqa: PLC0415 - TVM, once the threads are limited

    with local_tools() as (builder, _), closing(KeptBuilds(tuned.task, builder)) as builds:
        yield Oracle(tuned, directory, builds, seed)


def library_of_one(task: SearchTask, build: BuildResult) -> Library:
    """A candidate behind the same Python entry as a library, so that both pay the same for a call."""
    layouts = {name: layout.to_json() for name, layout in layouts_of(task, build.kernel).items()}
    manifest = {"digest": build.kernel.id, "packed_layouts": layouts, "threads": task.threads}
    with tempfile.NamedTemporaryFile(prefix="shapewright-oracle-", suffix=".so") as file:
        file.write(build.binary or b"")
        file.flush()
        module, code = tvm_ffi.load_module(file.name), ctypes.CDLL(file.name)
    assert module[ENTRY] is not None
    return Library(Path(), manifest, Dispatcher(task, (build.kernel,), 0, Leaf(0)), module, code)


# -- less than the library --------------------------------------------------------------------------------------------
def save_ablation(name: str, tuned: TuneResult, directory: Path) -> Path:
    """Build the ablation ``name`` and write it into ``directory``.

    ``single``: the one kernel that serves the whole range best. ``bucket``: the kernel that is best at the largest
    shape, for all of them (as Nimble, MLSys 2021, tunes for one large shape).
    """
    task, results = tuned.task, normalized(tuned.results)
    measured, model = Measured(results), PairCostModel(task)
    model.update(results)
    if name == "single":
        kernel = finalize.choose_set(task, model, measured, measured.candidates, 1)[0]
    else:
        largest = latency_table(task, model, measured, measured.candidates, [task.shapes()[-1]])[:, 0]
        kernel = measured.candidates[int(largest.argmin())]
    dispatcher = finalize.make_dispatcher(task, model, measured, [kernel])
    write(build_library(dispatcher, None).files, directory)
    return directory
