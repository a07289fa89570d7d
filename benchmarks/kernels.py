"""Kernels against vendor libraries: tune each workload of a suite, then time its library and every rival.

    python -m benchmarks.kernels SUITE.yaml [--workload NAME] [--threads N] [--trials N] [--seconds S] [--seed N]
        [--against mm,bmm,linear,mkl,onednn,compile,torch,metaschedule,dietcode,bucket,single,oracle] [--mcpu CPU]
        --json OUT

Every library is first checked against the reference in float64 at every test shape. One thread: all contenders in this
process, in alternating samples. More: each in a process of its own, in alternating rounds. Workloads may be any that a
job file takes; a rival that has no routine for one is skipped, and named with the reason. With --mcpu all contenders
use the instructions of that CPU (``x86-64-v3`` has AVX2), and the peak is that of these.

Rivals that take long: ``dietcode`` searches with as many trials as ours did; ``oracle`` measures dozens of kernels for
each held-out shape and gives the regret of the dispatcher; ``metaschedule`` tunes each tuned shape on its own, keeps
its results in --metaschedule-dir and goes on from there. It serves only shapes that it was tuned for.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders import METASCHEDULE, OURS, PEAK
from benchmarks.instructions import limit_instructions, restricted
from benchmarks.suite import Benchmark, suite_here, suite_parser
from tuner.errors import InvalidInput
from tuner.program.target import native

if TYPE_CHECKING:
    from benchmarks.document import Report
    from benchmarks.timing import Row
    from shapewright.session import TuneResult

DEFAULT_RIVALS = "mm,bmm,linear,mkl,onednn"
ABLATIONS = ("bucket", "single")
DIETCODE, COMPILE = "dietcode", "compile"
SEARCHED = (DIETCODE, METASCHEDULE)
SECONDS = 150.0
TRIALS = 512
METASCHEDULE_TRIALS = 256


def main() -> int:
    options = _options()
    name, target, benchmarks = suite_here(options, partial(restricted, options.mcpu) if options.mcpu else native)
    try:
        limited = limit_instructions(target) if options.mcpu else None
    except (InvalidInput, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    # Only now: PyTorch and TVM read the environment when they are loaded.
    from benchmarks.document import Report, document_of, summary_of  # noqa: PLC0415
    from tuner.measure.roof import peak_work  # noqa: PLC0415

    report, work = Report(), options.threads * peak_work(target)
    for benchmark in benchmarks:
        with tempfile.TemporaryDirectory(prefix="shapewright-bench-") as folder:
            _one(benchmark, options, work, Path(folder), report)
    protocol = {"suite": name, "threads": options.threads, "seed": options.seed, "target": target.fingerprint}
    protocol |= {"rivals_limited": asdict(limited)} if limited else {}
    document = document_of(report, summary_of(report), protocol)
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
    parser.add_argument("--mcpu", help="the CPU, as LLVM names it, whose instructions all contenders are limited to")
    options = parser.parse_args()
    if options.mcpu and COMPILE in options.against.split(","):
        parser.error("--mcpu does not limit compile: Inductor compiles for the machine at hand")
    return options


def _one(benchmark: Benchmark, options: argparse.Namespace, work: float, folder: Path, report: Report) -> None:
    """Tune, check and time one workload. ``work``: what all threads do in a call of the peak."""
    from benchmarks.running import timed_rows, tuned_library  # noqa: PLC0415 - after the threads are limited

    tuned, libraries = tuned_library(benchmark, options, folder, report)
    rivals = [name for name in options.against.split(",") if name]
    _prepare(rivals, benchmark, tuned, options, folder, libraries, report)
    # What is searched for takes part if it has a library.
    timed = [name for name in rivals if name != "oracle" and (name not in SEARCHED or name in libraries)]
    rows = timed_rows(benchmark, [OURS, PEAK, *timed], libraries, options.threads, work, report)
    if "oracle" in rivals:
        _add_oracle(rows, tuned, libraries[OURS], options)
    report.rows += rows


def _prepare(
    rivals: list[str], benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, folder: Path,
    libraries: dict[str, Path], report: Report,
) -> None:  # fmt: skip
    """Make the libraries of rivals that are searched for."""
    for name in sorted(set(rivals) & set(ABLATIONS)):
        from benchmarks.ablations import save_ablation  # noqa: PLC0415

        libraries[name] = save_ablation(name, tuned, folder / name)
    if DIETCODE in rivals:
        _prepare_dietcode(benchmark, tuned, options, folder / DIETCODE, libraries, report)
    if METASCHEDULE in rivals:
        _prepare_metaschedule(benchmark, tuned, options, libraries, report)


def _prepare_dietcode(
    benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, directory: Path,
    libraries: dict[str, Path], report: Report,
) -> None:  # fmt: skip
    from benchmarks.dietcode import save_dietcode  # noqa: PLC0415
    from benchmarks.rivals import DoesNotApply  # noqa: PLC0415
    from benchmarks.running import say  # noqa: PLC0415

    try:
        spent = save_dietcode(tuned.task, tuned.summary["trials"], options.seed, directory)
    except DoesNotApply as reason:
        report.skipped[f"{benchmark.name}/{DIETCODE}"] = str(reason)
        return
    libraries[DIETCODE] = directory
    report.rival_tuning.append({"workload": benchmark.name, "rival": DIETCODE, **spent})
    say(f"  dietcode: {spent['trials']} trials, {spent['elapsed_s']:.0f} s, {spent['kernels']} kernels")


def _prepare_metaschedule(
    benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, libraries: dict[str, Path], report: Report
) -> None:
    from benchmarks import metaschedule  # noqa: PLC0415
    from benchmarks.running import say  # noqa: PLC0415

    shapes = [instance.shape for instance in tuned.task.instances]
    budget = metaschedule.Budget(options.metaschedule_trials, options.metaschedule_seconds)
    directory = options.metaschedule_dir or metaschedule.default_directory()
    root = metaschedule.tune_shapes(tuned.task, shapes, budget, directory, say, options.seed)
    libraries[METASCHEDULE] = root
    report.rival_tuning.append({"workload": benchmark.name, "rival": METASCHEDULE, **metaschedule.spent(root)})


def _add_oracle(rows: list[Row], tuned: TuneResult, library: Path, options: argparse.Namespace) -> None:
    from benchmarks.oracle import oracle_of  # noqa: PLC0415
    from benchmarks.running import say  # noqa: PLC0415

    held_out = [row for row in rows if not row["tuned_on"]]
    count = len(held_out) if options.oracle_shapes is None else min(options.oracle_shapes, len(held_out))
    chosen = [held_out[index * len(held_out) // count] for index in range(count)]
    with oracle_of(tuned, library, options.seed) as oracle:
        for row in chosen:
            finding = oracle.at(row["shape"])
            row["oracle_s"] = row["rivals_s"]["oracle"] = finding.oracle_s
            row |= {"dispatched_s": finding.dispatched_s, "regret": finding.regret}
            row |= {"oracle_kernel": finding.kernel, "oracle_candidates": finding.candidates}
            say(f"  {row['shape']}  regret {100 * finding.regret:6.2f} %")


if __name__ == "__main__":
    sys.exit(main())
