"""Programs that no rule takes whole, each as one library of pieces against separate libraries of the same pieces.

The pieces are those of the way to cut that theory expects to be fastest. Each of their libraries is tuned for an equal
share of ``--seconds``, the program's own for all of them. Both are called with packed constants and with outputs that
are allocated once, in alternating samples of one run; the results are compared first. With ``--fallback`` the default
kernel of the fallback is timed beside them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shapewright as sw
from benchmarks.compare.searched import search
from benchmarks.harness.results import Row, finish, grouped, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, interval, sampler, take_turns
from shapewright.download import write
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.part import Part
from tuner.schedule import rules_of
from tuner.schedule.cut.rule import Cut
from tuner.schedule.rules.fallback import Fallback

Arrays = dict[str, NDArray[Any]]
TOGETHER, APART, FALLBACK = "together", "apart", "fallback"


def main() -> int:
    parser = suite_parser(__doc__, seconds=60.0)
    parser.add_argument("--fallback", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    protocol, benchmarks = suite_here(options)
    rows = list[Row]()
    for benchmark in benchmarks:
        cut = next((rule for rule in rules_of(benchmark.task) if isinstance(rule, Cut)), None)
        if cut is None:
            say(f"{benchmark.name}: a rule takes it whole")
            continue
        with tempfile.TemporaryDirectory(prefix="shapewright-pieces-") as folder:
            rows += _rows(benchmark, cut, Path(folder), options)
        say(f"{benchmark.name}, {cut.described(benchmark.task.workload)}: {summary_of(rows)[benchmark.name]}")
    protocol |= {"seconds": options.seconds, "value": "median of alternating samples"}
    return finish(options.json, {"rows": rows, "summary": summary_of(rows), "protocol": protocol})


def alone(task: SearchTask, part: Part) -> SearchTask:
    """The task of a part as a program of its own."""
    variables = part.whole.symbol_exprs
    data = {
        "program": str(part.program), "outputs": list(part.program.outputs), "constant": list(part.constants),
        "extents": {name: str(dim) for name, dim in part.extents}, "dtype": dict(part.dtypes),
        "padded": dict(part.padding),
        "shapes": {each.name: [str(dim.substituted(variables)) for dim in each.dims] for each in part.inputs},
    }  # fmt: skip
    return SearchTask(
        workload_from_json(data), shape_vars=task.shape_vars, instances=task.instances, target=task.target,
        threads=task.threads,
    )  # fmt: skip


def _rows(benchmark: Benchmark, cut: Cut, folder: Path, options: argparse.Namespace) -> list[Row]:
    task, parts = benchmark.task, [alone(benchmark.task, part) for part in cut.parts(benchmark.task.workload)]
    search(task, options.seed, folder / TOGETHER, seconds=options.seconds)
    for number, part in enumerate(parts):
        search(part, options.seed, folder / str(number), seconds=options.seconds / len(parts))
    if options.fallback:
        kernel = Fallback().default_kernel(task)
        write(build_library(Dispatcher(task, (kernel,), 0, Leaf(0)), None).files, folder / FALLBACK)
    rows = list[Row]()
    for shape in benchmark.test:
        inputs = random_inputs(task.workload, task.workload.dims(shape))
        arrays = dict(zip(task.workload.program.inputs, inputs, strict=True))
        contenders, results = dict[str, Callable[[], object]](), dict[str, Arrays]()
        for name, tasks in {TOGETHER: [task], APART: parts, FALLBACK: [task]}.items():
            if name != FALLBACK or options.fallback:
                folders = [folder / str(at) for at in range(len(parts))] if name == APART else [folder / name]
                contenders[name], results[name] = _calls(tasks, folders, arrays, shape)
        _check_equal(task, results)
        samples = take_turns({name: sampler(call) for name, call in contenders.items()}, rounds=51, budget_s=2.0)
        rounded = {name: [float(f"{each:.4g}") for each in times] for name, times in samples.items()}
        seconds = {name: statistics.median(times) for name, times in rounded.items()}
        rows.append({"workload": benchmark.name, "shape": shape, "s": seconds, "samples_s": rounded, "cut": cut.name})
    return rows


def _calls(
    tasks: list[SearchTask], folders: list[Path], arrays: Arrays, shape: Mapping[str, int]
) -> tuple[Callable[[], object], Arrays]:
    """A call of one library after the other, what one computes being read by those after it; and all arrays there are
    once it was made."""
    known, calls = dict(arrays), list[Callable[[], object]]()
    for task, folder in zip(tasks, folders, strict=True):
        workload, library = task.workload, sw.load(folder)
        dims = workload.dims(shape)
        packed = {name: library.pack(name, known[name]) for name in workload.constants}
        known |= {tensor.name: np.empty(tensor.shape(dims), tensor.dtype) for tensor in workload.outputs}
        operands = [packed.get(tensor.name, known[tensor.name]) for tensor in workload.operands]
        calls.append(lambda library=library, operands=operands: library(*operands))  # type: ignore[misc]

    def call() -> None:
        for each in calls:
            each()

    call()
    return call, known


def _check_equal(task: SearchTask, results: Mapping[str, Arrays]) -> None:
    for name in task.workload.program.outputs:
        for other, arrays in results.items():
            wanted = results[TOGETHER][name]
            # Sums in another order: of what cancels, the error is of the size of the terms.
            np.testing.assert_allclose(arrays[name], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max(), err_msg=other)


def summary_of(rows: list[Row]) -> dict[str, Any]:
    """By program how many times faster it is than apart (the mean of the shapes, its interval, the least) and than the
    fallback."""
    result = dict[str, Any]()
    for name, own in grouped(rows, "workload").items():
        pairs = [(row["samples_s"][APART], row["samples_s"][TOGETHER]) for row in own]
        ratios = [row["s"][APART] / row["s"][TOGETHER] for row in own]
        result[name] = {"vs_apart": geomean(ratios), "interval": interval(pairs), "least": min(ratios)}
        if all(FALLBACK in row["s"] for row in own):
            result[name]["vs_fallback"] = geomean([row["s"][FALLBACK] / row["s"][TOGETHER] for row in own])
    return result


if __name__ == "__main__":
    sys.exit(main())
