"""What the results of a search could have come to: more for one very shape, which is the oracle, or less for all.

The oracle is the best of many kernels measured for a shape; regret is what the dispatcher loses to it there. Candidates
are the library's own kernels, those of the search that the model ranks highest at the shape, in whatever packed layout,
and those of another search for this shape alone. All are timed in alternating samples; then the best few and the
library itself are timed again, from new samples, and regret is read from these alone: the best of many noisy times is
too good to be believed at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import shapewright as sw
from benchmarks.harness.calls import Shape, inputs_of, library_call, library_of_one, outputs_of
from benchmarks.harness.results import Row
from benchmarks.harness.turns import alternate, sampler
from shapewright.library import Library
from shapewright.session import TuneResult, tune_here
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured, latency_table, normalized

KNOWN, FRESH, FINALISTS = 16, 16, 3
"""Candidates of the search, trials of the one for a shape, and how many of all are timed again."""


def findings(tuned: TuneResult, directory: Path, shapes: Iterable[Shape], seed: int = 0) -> Iterator[Row]:
    """At each shape, from the second timing: ``oracle_s``, ``dispatched_s``, and ``regret``, dispatched over the best,
    less 1; below 0 only by noise. ``directory`` holds the library of the search."""
    task, results, library = tuned.task, normalized(tuned.results), sw.load(directory)
    measured, model = Measured(results), PairCostModel(task, seed)
    model.update(results)
    libraries = dict[MicroKernel, Library]()
    with tempfile.TemporaryDirectory(prefix="shapewright-oracle-") as folder:
        for shape in shapes:
            candidates = list(library.kernels)
            if known := measured.kernels:
                expected = latency_table(task, model, measured, known, [shape])[:, 0]
                candidates += [known[index] for index in expected.argsort()[:KNOWN]]
            # All have run on a device process before: what runs in this process must not crash it.
            alone = SearchTask(
                task.workload, shape_vars=task.shape_vars, instances=(WorkloadInstance.of(shape),), target=task.target,
                threads=task.threads,
            )  # fmt: skip
            fresh = tune_here(alone, trials=FRESH, seed=seed).results
            candidates += [result.kernel for result in fresh if result.ok]
            for kernel in dict.fromkeys(candidates):
                if kernel not in libraries:
                    libraries[kernel] = sw.load(library_of_one(task, kernel, Path(folder) / kernel.id))
            yield _finding(library, shape, {kernel.id: libraries[kernel] for kernel in candidates})


def _finding(library: Library, shape: Shape, candidates: Mapping[str, Library]) -> Row:
    task = library.dispatcher.task
    inputs, outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)
    samplers = {name: sampler(library_call(each, inputs, outputs)) for name, each in candidates.items()}
    first = alternate(samplers, budget_s=3.0)
    finalists = {name: samplers[name] for name in sorted(first, key=first.__getitem__)[:FINALISTS]}
    finalists["dispatched"] = sampler(library_call(library, inputs, outputs))
    second = alternate(finalists, rounds=15, budget_s=1.5)
    dispatched_s = second.pop("dispatched")
    winner = min(second, key=second.__getitem__)
    return {"oracle_s": second[winner], "dispatched_s": dispatched_s, "regret": dispatched_s / second[winner] - 1,
            "oracle_kernel": winner, "oracle_candidates": len(samplers)}  # fmt: skip


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
    return library_of_one(task, kernel, directory)
