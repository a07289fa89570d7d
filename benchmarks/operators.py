"""Operators of the catalogue and programs of one's own, against PyTorch, TVM's schedulers and the memory bandwidth.

Each is tuned at eight values of T and timed at these and, mostly, at held-out ones, in alternating samples beside every
rival and a stream that reads and writes as many bytes. ``--op`` (repeatable) names operators of
suites/operators.yaml, ``resnet50`` or a layer of it, ``fused`` for all fused operators, or ``all``; or operators,
layers and families of suites/published.yaml, whose sizes are those of others' tables, or ``published``. The default are
norms, softmax, sums of rows and elementwise chains. ``--sizes`` takes the first N workloads of each.

Rivals: ``torch`` is PyTorch's kernel, and MKL and oneDNN with packed weights where they have a routine; ``compile`` is
torch.compile with dynamic shapes (it may compile for a minute); ``dlight`` is TVM's schedule without a search, and
``metaschedule`` TVM's search, at two of the shapes, kept in a folder that later runs go on from. A fused operator is
also timed against a library of the bare operator followed by one of the rest (``separate``), each tuned like the fused
one. The document says where a rival does not apply, and why.

The document is written after each search; ``--resume`` goes on from it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.compare.rows import TIMING, timed_rows
from benchmarks.compare.searched import tuned_library
from benchmarks.compare.summary import over_seeds
from benchmarks.harness.remote import limit_threads
from benchmarks.harness.results import Document, Report, count, integers, options_of
from benchmarks.harness.suite import Benchmark, benchmarks_of, is_fused, names_of, parts_of
from benchmarks.rivals import DLIGHT, METASCHEDULE, OURS, SEPARATE, STREAM, metaschedule
from tuner.errors import InvalidInput
from tuner.program.target import native

METASCHEDULE_SHAPES = 2
AGAINST = {"torch": ("torch", "mkl", "onednn"), **{each: (each,) for each in ("compile", DLIGHT, METASCHEDULE)}}
"""The contenders by what ``--against`` calls them."""


def main() -> int:
    parser = options_of(
        __doc__, sizes=count, against=["torch"], seeds=(0,), threads=1, trials=128, seconds=30.0, shapes=integers,
        metaschedule=Path, metaschedule_trials=64, resume=False,
    )  # fmt: skip
    parser.add_argument("--op", action="append")
    options = parser.parse_args()
    limit_threads(options.threads)
    try:
        contenders = contenders_of(options.against)
        chosen = [
            benchmark
            for name in names_of(options.op or ["default"])
            for benchmark in benchmarks_of(name, native(), options.threads, options.shapes)[: options.sizes]
        ]
        protocol = {
            "threads": options.threads, "target": native().fingerprint, "l2_bytes": native().hardware.l2_bytes,
            "search": {"trials": options.trials, "seconds": options.seconds}, "against": options.against,
            "shapes": list(options.shapes) if options.shapes else None,
            "metaschedule_trials": options.metaschedule_trials, "timing": TIMING,
        }  # fmt: skip
        document = Document(options.json, protocol, over_seeds, options.resume)
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    # Seed after seed: a run that ends early has every operator before it has one three times.
    for seed in options.seeds:
        for benchmark in chosen:
            if not document.has(benchmark.name, seed):
                try:
                    document.add(benchmark.name, seed, _one(benchmark, seed, contenders, options))
                except Exception as error:  # one that fails is named, and the next ones go on
                    document.fail(benchmark.name, seed, error)
    document.print_summary()
    return 1 if document.failed else 0


def contenders_of(against: Sequence[str]) -> list[str]:
    """Raises InvalidInput for a rival that is none."""
    for name in against:
        if name not in AGAINST:
            raise InvalidInput("against", f"{name!r} is no rival", f"any of: {', '.join(AGAINST)}")
    return [contender for name in against for contender in AGAINST[name]]


def _one(benchmark: Benchmark, seed: int, contenders: Sequence[str], options: argparse.Namespace) -> Report:
    report, budget = Report(), {"trials": options.trials, "seconds": options.seconds}
    with tempfile.TemporaryDirectory(prefix="shapewright-operators-") as name:
        folder = Path(name)
        tuned_library(benchmark, budget, seed, folder, report)
        libraries = {OURS: folder / OURS}
        if is_fused(benchmark.operator):
            for number, part in enumerate(parts_of(benchmark)):
                tuned_library(part, budget, seed, folder / SEPARATE / f"{number:03}", report)
            libraries[SEPARATE] = folder / SEPARATE
        if METASCHEDULE in contenders:
            # One search for all seeds of ours: what is kept is used again.
            root = metaschedule.tune_shapes(
                benchmark.task, some_of(benchmark.test), options.metaschedule_trials, options.metaschedule
            )
            report.rival_tuning.append({"workload": benchmark.name, "rival": METASCHEDULE, **metaschedule.spent(root)})
            libraries[METASCHEDULE] = root
        report.rows = timed_rows(benchmark, [*libraries, STREAM, *contenders], libraries, report.skipped)
    return report


def some_of(shapes: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """METASCHEDULE_SHAPES of the shapes, at equal distances from one another and from both ends."""
    count = min(METASCHEDULE_SHAPES, len(shapes))
    return [shapes[(2 * index + 1) * len(shapes) // (2 * count)] for index in range(count)]


if __name__ == "__main__":
    sys.exit(main())
