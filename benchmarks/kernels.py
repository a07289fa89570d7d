"""Kernels against vendor libraries: tune each workload of a suite, then time its library and every rival.

Every library is first checked against the reference in float64 at every test shape. One thread: all contenders in this
process, in alternating samples. More: each in a process of its own, in alternating rounds. Workloads may be any that a
job file takes; a rival that has no routine for one is skipped, and named with the reason. With --mcpu all contenders
use the instructions of that CPU (``x86-64-v3`` has AVX2), and the peak is that of these.

``--against`` takes mm, bmm, linear, mkl, onednn, compile, torch, metaschedule, dietcode, bucket, single, separate and
oracle. Rivals that take long: ``dietcode`` searches with as many trials as ours did; ``separate`` tunes a library for
each piece of a program that no rule takes whole, each for an equal share of the budget; ``oracle`` measures dozens of
kernels for each held-out shape, and gives the regret of the dispatcher; ``metaschedule`` tunes each tuned shape on its
own, keeps its results in a folder and goes on from there. It serves only shapes that it was tuned for. The document is
written after each workload; ``--resume`` goes on from it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.compare.rows import TIMING, timed_rows
from benchmarks.compare.searched import tuned_library
from benchmarks.compare.summary import SHORTEST_S, of_kernels
from benchmarks.harness.calls import DoesNotApply
from benchmarks.harness.results import Document, Report, names, say
from benchmarks.harness.suite import Benchmark, parts_of, suite_here, suite_parser
from benchmarks.instructions import limit_instructions, restricted
from benchmarks.rivals import DIETCODE, METASCHEDULE, OURS, SEPARATE, metaschedule
from tuner.errors import InvalidInput
from tuner.program.target import native

if TYPE_CHECKING:
    from shapewright.session import TuneResult

DEFAULT_RIVALS = "mm,bmm,linear,mkl,onednn"
ABLATIONS = ("bucket", "single")
ORACLE, COMPILE = "oracle", "compile"


def main() -> int:
    parser = suite_parser(
        __doc__, trials=512, seconds=150.0, against=names(DEFAULT_RIVALS), metaschedule_dir=Path,
        metaschedule_trials=256, mcpu=str, resume=False,
    )  # fmt: skip
    options = parser.parse_args()
    if options.mcpu and COMPILE in options.against:
        parser.error("--mcpu does not limit compile: Inductor compiles for the machine at hand")
    protocol, benchmarks = suite_here(options, partial(restricted, options.mcpu) if options.mcpu else native)
    try:
        if options.mcpu:
            protocol["rivals_limited"] = limit_instructions(benchmarks[0].task.known_target)
        protocol |= {
            "against": options.against, "search": {"trials": options.trials, "seconds": options.seconds},
            "timing": TIMING, "left_out_of_means_below_s": SHORTEST_S,
        }  # fmt: skip
        document = Document(options.json, protocol, lambda report: {"summary": of_kernels(report)}, options.resume)
    except (InvalidInput, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    for benchmark in benchmarks:
        if not document.has(benchmark.name, options.seed):
            with tempfile.TemporaryDirectory(prefix="shapewright-bench-") as folder:
                document.add(benchmark.name, options.seed, _one(benchmark, options, Path(folder)))
    document.print_summary()
    return 0


def _one(benchmark: Benchmark, options: argparse.Namespace, folder: Path) -> Report:
    report, budget = Report(), {"trials": options.trials, "seconds": options.seconds}
    tuned, libraries = tuned_library(benchmark, budget, options.seed, folder, report), {OURS: folder / OURS}
    timed = []
    for name in (name for name in options.against if name != ORACLE):
        try:
            if (library := _prepared(name, benchmark, tuned, options, folder / name, report)) is not None:
                libraries[name] = library
            timed.append(name)
        except DoesNotApply as reason:
            report.skipped[f"{benchmark.name}/{name}"] = str(reason)
    report.rows = timed_rows(benchmark, timed, libraries, report.skipped)
    if ORACLE in options.against:
        from benchmarks.oracle import findings  # noqa: PLC0415

        held_out = [row for row in report.rows if not row["tuned_on"]]
        found = findings(tuned, libraries[OURS], [row["shape"] for row in held_out], options.seed)
        for row, finding in zip(held_out, found, strict=True):
            row.update(finding)
            row["rivals_s"][ORACLE] = row["oracle_s"]
            say(f"  {row['shape']}  regret {100 * row['regret']:6.2f} %")
    return report


def _prepared(
    rival: str, benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, folder: Path, report: Report
) -> Path | None:
    """The library of a rival that has one; what it took goes to the report. Raises DoesNotApply."""
    if rival in ABLATIONS:
        from benchmarks.oracle import save_ablation  # noqa: PLC0415 - TVM, once the threads are limited

        return save_ablation(rival, tuned, folder)
    if rival == SEPARATE:
        parts, aside = parts_of(benchmark), Report()
        budget = {"trials": options.trials // len(parts), "seconds": options.seconds / len(parts)}
        for number, part in enumerate(parts):
            tuned_library(part, budget, options.seed, folder / f"{number:03}", aside)
        report.rival_tuning += [{**each, "rival": SEPARATE} for each in aside.tuning]
        return folder
    if rival == METASCHEDULE:
        shapes = [instance.shape for instance in tuned.task.instances]
        folder = metaschedule.tune_shapes(
            tuned.task, shapes, options.metaschedule_trials, options.metaschedule_dir, options.seed
        )
        spent = metaschedule.spent(folder)
    elif rival == DIETCODE:
        from benchmarks.rivals.dietcode import save_dietcode  # noqa: PLC0415

        spent = save_dietcode(tuned.task, tuned.summary["trials"], options.seed, folder)
        say(f"  dietcode: {spent['trials']} trials, {spent['elapsed_s']:.0f} s, {spent['kernels']} kernels")
    else:
        return None
    report.rival_tuning.append({"workload": benchmark.name, "rival": rival, **spent})
    return folder


if __name__ == "__main__":
    sys.exit(main())
