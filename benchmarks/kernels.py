"""Kernels against vendor libraries: tune each workload of a suite, then time its library and every rival.

    python -m benchmarks.kernels SUITE.yaml [--workload NAME] [--threads N] [--trials N] [--seconds S] [--seed N]
        [--against mm,bmm,linear,mkl,onednn,compile,metaschedule,dietcode,bucket,single,oracle] --json OUT

Every library is first checked against a float64 reference at every test shape. One thread: all sides in this process,
in alternating samples. More: each side in a process of its own, in alternating rounds.

Rivals that take long: ``dietcode`` searches with as many trials as ours did; ``oracle`` measures dozens of kernels for
each held-out shape and gives the regret of the dispatcher; ``metaschedule`` tunes each tuned shape on its own, keeps
what it found in --metaschedule-dir and goes on from there. It serves only shapes that it was tuned for.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.sides import METASCHEDULE, PEAK, inputs_of, library_call, limit_threads
from benchmarks.suite import Benchmark, read_suite, suite_parser

if TYPE_CHECKING:
    from benchmarks.document import Report
    from benchmarks.timing import Row, Serves
    from shapewright.session import TuneResult

DEFAULT_RIVALS = "mm,bmm,linear,mkl,onednn"
ABLATIONS = ("bucket", "single")
SECONDS = 150.0
TRIALS = 512
METASCHEDULE_TRIALS = 256


def main() -> int:
    options = _options()
    limit_threads(options.threads)
    # Only now: PyTorch and TVM read the environment when they are loaded.
    from benchmarks.document import Report, document_of  # noqa: PLC0415
    from tuner.measure.roof import peak_work  # noqa: PLC0415
    from tuner.program.target import native  # noqa: PLC0415

    target = native()
    name, benchmarks = read_suite(options.suite, target, options.threads)
    report, work = Report(), options.threads * peak_work(target)
    for benchmark in benchmarks:
        if options.workload in (None, benchmark.name):
            with tempfile.TemporaryDirectory(prefix="shapewright-bench-") as folder:
                _one(benchmark, options, work, Path(folder), report)
    if not report.rows:
        print(f"{name} has no workload {options.workload!r}", file=sys.stderr)
        return 2
    protocol = {"suite": name, "threads": options.threads, "seed": options.seed, "target": target.fingerprint}
    document = document_of(report, protocol)
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = suite_parser(__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--against", default=DEFAULT_RIVALS, help="rivals, comma-separated")
    parser.add_argument("--oracle-shapes", type=int, help="held-out shapes for the oracle; default: all")
    parser.add_argument("--metaschedule-trials", type=int, default=METASCHEDULE_TRIALS, help="for each shape")
    parser.add_argument("--metaschedule-seconds", type=float, help="in place of trials: for all shapes together")
    parser.add_argument("--keep-trials", action="store_true", help="every trial in the JSON, for pictures of them")
    return parser.parse_args()


def _one(benchmark: Benchmark, options: argparse.Namespace, work: float, folder: Path, report: Report) -> None:
    """Tune, check and time one workload. ``work``: what all threads do in a call of the peak."""
    from benchmarks.timing import OURS, TIMINGS, add_timing, doubtful, open_sides, row_of, time_at  # noqa: PLC0415
    from shapewright.session import tune_here  # noqa: PLC0415 - after the threads are limited

    progress: list[dict[str, object]] = []
    tuned = tune_here(
        benchmark.task, trials=options.trials, seconds=options.seconds, seed=options.seed, callbacks=[progress.append]
    )
    libraries = {OURS: tuned.save(folder / OURS)}
    report.tuning.append({"workload": benchmark.name, **tuned.summary})
    kept = [result.to_json() for result in tuned.results] if options.keep_trials else []
    search = {"workload": benchmark.name, "task": tuned.task.to_json(), "progress": progress, "results": kept}
    report.searches.append(search)
    _say(f"{benchmark.name}: {tuned.summary['trials']} trials, {tuned.summary['elapsed_s']:.0f} s")
    errors = _errors(benchmark, libraries[OURS])
    rivals = [name for name in options.against.split(",") if name]
    serves = _prepare(rivals, benchmark, tuned, options, folder, libraries, report)
    timed = [OURS, PEAK, *(name for name in rivals if name != "oracle" and (name != METASCHEDULE or name in libraries))]
    rows = []
    with open_sides(benchmark, timed, libraries, options.threads, report.skipped) as sides:
        for shape in benchmark.test:
            rows.append(row_of(benchmark, shape, time_at(sides, shape, serves), work, errors[str(shape)]))
            _say_row(rows[-1])
        for row in doubtful(rows):
            for _ in range(TIMINGS - 1):
                add_timing(row, time_at(sides, row["shape"], serves), work)
            _say_row(row, "again: ")
    if "oracle" in rivals:
        _add_oracle(rows, tuned, libraries[OURS], options)
    report.rows += rows


def _prepare(
    rivals: list[str], benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, folder: Path,
    libraries: dict[str, Path], report: Report,
) -> dict[str, Serves]:  # fmt: skip
    """Make the libraries of rivals that are searched for; which shapes those serve that do not serve all."""
    for name in sorted(set(rivals) & set(ABLATIONS)):
        from benchmarks.ablations import save_ablation  # noqa: PLC0415

        libraries[name] = save_ablation(name, tuned, folder / name)
    if "dietcode" in rivals:
        from benchmarks.dietcode import save_dietcode  # noqa: PLC0415

        libraries["dietcode"] = folder / "dietcode"
        spent = save_dietcode(tuned.task, tuned.summary["trials"], options.seed, libraries["dietcode"])
        report.rival_tuning.append({"workload": benchmark.name, "rival": "dietcode", **spent})
        _say(f"  dietcode: {spent['trials']} trials, {spent['elapsed_s']:.0f} s, {spent['kernels']} kernels")
    return _prepare_metaschedule(benchmark, tuned, options, libraries, report) if METASCHEDULE in rivals else {}


def _prepare_metaschedule(
    benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, libraries: dict[str, Path], report: Report
) -> dict[str, Serves]:
    from benchmarks import metaschedule  # noqa: PLC0415
    from benchmarks.rivals import DoesNotApply  # noqa: PLC0415

    shapes = [instance.shape for instance in tuned.task.instances]
    budget = metaschedule.Budget(options.metaschedule_trials, options.metaschedule_seconds)
    directory = options.metaschedule_dir or metaschedule.default_directory()
    try:
        place = metaschedule.tune_shapes(tuned.task, shapes, budget, directory, _say, options.seed)
    except DoesNotApply as reason:
        report.skipped[f"{benchmark.name}/{METASCHEDULE}"] = str(reason)
        return {}
    libraries[METASCHEDULE] = place
    report.rival_tuning.append({"workload": benchmark.name, "rival": METASCHEDULE, **metaschedule.spent(place)})
    return {METASCHEDULE: partial(metaschedule.serves, place)}


def _add_oracle(rows: list[Row], tuned: TuneResult, library: Path, options: argparse.Namespace) -> None:
    from benchmarks.oracle import oracle_of  # noqa: PLC0415

    held_out = [row for row in rows if not row["tuned_on"]]
    count = len(held_out) if options.oracle_shapes is None else min(options.oracle_shapes, len(held_out))
    chosen = [held_out[index * len(held_out) // count] for index in range(count)]
    with oracle_of(tuned, library, options.seed) as oracle:
        for row in chosen:
            found = oracle.at(row["shape"])
            row["oracle_s"] = row["rivals_s"]["oracle"] = found.oracle_s
            row |= {"dispatched_s": found.dispatched_s, "regret": found.regret}
            row |= {"oracle_kernel": found.kernel, "oracle_candidates": found.candidates}
            _say(f"  {row['shape']}  regret {100 * found.regret:6.2f} %")


def _errors(benchmark: Benchmark, directory: Path) -> dict[str, float]:
    """The largest difference from the float64 reference at each test shape. Raises ValueError if one is no rounding."""
    import numpy as np  # noqa: PLC0415

    import shapewright as sw  # noqa: PLC0415
    from tuner.program.reference import compute, tolerance  # noqa: PLC0415

    library, workload, found = sw.load(directory), benchmark.task.workload, {}
    for shape in benchmark.test:
        inputs = inputs_of(workload, shape)
        expected = compute(workload, inputs)
        out = np.full(expected.shape, np.nan, np.float32)
        library_call(library, inputs, out)()
        rtol, atol = tolerance(workload, workload.extents(shape)["k"])
        if not np.allclose(out, expected, rtol, atol):
            raise ValueError(f"{benchmark.name} at {shape}: wrong by {np.abs(out - expected).max():g}")
        found[str(shape)] = float(np.abs(out - expected).max(initial=0.0))
    return found


def _say_row(row: Row, prefix: str = "") -> None:
    from benchmarks.timing import against_best  # noqa: PLC0415

    ratio, speed = against_best(row), row["flops"] / row["ours_s"] / 1e9
    text = f"  {prefix}{row['shape']}  {row['ours_s'] * 1e6:10.1f} us  {speed:7.1f} GFLOP/s"
    _say(text + (f"  {ratio:5.2f}x the best rival" if ratio else ""))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
