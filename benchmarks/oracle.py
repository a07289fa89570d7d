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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import tvm_ffi

import shapewright as sw
from benchmarks.harness.calls import Shape, inputs_of, library_call, outputs_of
from benchmarks.harness.results import Row
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
from tuner.search import finalize
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured, latency_table, normalized

KNOWN, FRESH, FINALISTS = 16, 16, 3
"""Candidates of the search, trials of the one for a shape, and how many of all are timed again."""


def findings(tuned: TuneResult, directory: Path, shapes: Iterable[Shape], seed: int = 0) -> Iterator[Row]:
    """At each shape, from the second timing: ``oracle_s``, ``dispatched_s``, and ``regret``, dispatched over the best,
    less 1; below 0 only by noise. ``directory`` holds the library of the search."""
    from tuner.measure.local import local_tools  # noqa: PLC0415 - TVM, once the threads are limited

    task, results, library = tuned.task, normalized(tuned.results), sw.load(directory)
    measured, model = Measured(results), PairCostModel(task, seed)
    model.update(results)
    with local_tools() as (builder, _), closing(KeptBuilds(task, builder)) as builds:
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
            yield _finding(library, shape, builds.build(list(dict.fromkeys(candidates))))


def _finding(library: Library, shape: Shape, builds: Sequence[BuildResult]) -> Row:
    """Raises ValueError if no candidate could be built."""
    task = library.dispatcher.task
    inputs, outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)
    samplers = {
        build.kernel.id: sampler(library_call(library_of_one(task, build), inputs, outputs))
        for build in builds
        if build.binary is not None
    }
    if not samplers:
        raise ValueError(f"no candidate for {task.workload} at {dict(shape)} could be built")
    first = alternate(samplers, budget_s=3.0)
    finalists = {name: samplers[name] for name in sorted(first, key=first.__getitem__)[:FINALISTS]}
    finalists["dispatched"] = sampler(library_call(library, inputs, outputs))
    second = alternate(finalists, rounds=15, budget_s=1.5)
    dispatched_s = second.pop("dispatched")
    winner = min(second, key=second.__getitem__)
    return {"oracle_s": second[winner], "dispatched_s": dispatched_s, "regret": dispatched_s / second[winner] - 1,
            "oracle_kernel": winner, "oracle_candidates": len(samplers)}  # fmt: skip


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
