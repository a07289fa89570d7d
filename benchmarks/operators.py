"""Operators of the catalogue and programs of one's own, against PyTorch, TVM's schedulers and the memory bandwidth.

    python -m benchmarks.operators [--op NAME]... [--against torch,compile,metaschedule,dlight] [--seeds 0,1,2]
        [--sizes N] [--threads N] [--trials N] [--seconds S] [--shapes T,T,...] [--metaschedule DIR]
        [--metaschedule-trials N] [--resume] --json OUT

Each is tuned at eight values of T and timed at these and, mostly, at held-out ones, in alternating samples beside every
rival and a stream that reads and writes as many bytes (benchmarks/streaming.py). ``--op`` (repeatable) names operators,
programs, ``resnet50``, families of fused operators (``fused_...``, or ``fused`` for all), or ``all``. The default are
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import DLIGHT, METASCHEDULE, PEAK, SEPARATE, STREAM, limit_threads
from benchmarks.document import Report
from benchmarks.fused_cases import FUSED, parts_of
from benchmarks.operator_cases import DEFAULT, benchmarks_of, names_of
from benchmarks.operator_document import Document
from benchmarks.operator_summary import add_bandwidth, add_ratios
from benchmarks.options import count, integers
from benchmarks.suite import Benchmark
from tuner.errors import InvalidInput
from tuner.program.target import Target, native

if TYPE_CHECKING:
    from shapewright.session import TuneResult

SECONDS = 30.0
TRIALS = 128
METASCHEDULE_TRIALS = 64
METASCHEDULE_SHAPES = 2
TORCH = "torch"
AGAINST = {TORCH: (TORCH, "mkl", "onednn"), "compile": ("compile",), DLIGHT: (DLIGHT,), METASCHEDULE: (METASCHEDULE,)}
"""The contenders by what ``--against`` calls them."""


def main() -> int:
    options = _options()
    limit_threads(options.threads)
    target = native()
    try:
        contenders = contenders_of(options.against)
        chosen = [
            benchmark
            for name in names_of(options.op or DEFAULT)
            for benchmark in benchmarks_of(name, target, options.threads, options.shapes)[: options.sizes]
        ]
        document = Document.opened(options.json, _protocol(options, target), options.resume)
    except InvalidInput as error:
        print(error, file=sys.stderr)
        return 2
    for benchmark, seed in _left(chosen, options.seeds, document):
        _one(benchmark, seed, contenders, options, target, document)
    document.print_summary()
    return 1 if document.failed else 0


def contenders_of(against: str) -> list[str]:
    """Raises InvalidInput for a rival that is none."""
    names = [name for name in against.split(",") if name]
    for name in names:
        if name not in AGAINST:
            raise InvalidInput("against", f"{name!r} is no rival", f"any of: {', '.join(AGAINST)}")
    return [contender for name in names for contender in AGAINST[name]]


def _protocol(options: argparse.Namespace, target: Target) -> dict[str, Any]:
    """What must be the same for a run to go on from another's document."""
    return {
        "threads": options.threads, "target": target.fingerprint, "l2_bytes": target.hardware.l2_bytes,
        "search": {"trials": options.trials, "seconds": options.seconds}, "against": options.against,
        "shapes": list(options.shapes) if options.shapes else None, "metaschedule_trials": options.metaschedule_trials,
    }  # fmt: skip


def _left(benchmarks: Sequence[Benchmark], seeds: Sequence[int], document: Document) -> Iterator[tuple[Benchmark, int]]:
    """Seed after seed: a run that ends early has every operator before it has one three times."""
    for seed in seeds:
        yield from ((benchmark, seed) for benchmark in benchmarks if not document.has(benchmark.name, seed))


def _one(
    benchmark: Benchmark, seed: int, contenders: Sequence[str], options: argparse.Namespace, target: Target,
    document: Document,
) -> None:  # fmt: skip
    """Tune, check and time one workload with one seed. One that fails is named, and the next ones go on."""
    # Only now, with the threads limited: PyTorch and TVM read the environment when they are loaded.
    from benchmarks.running import say  # noqa: PLC0415

    report = Report()
    try:
        _timed(benchmark, argparse.Namespace(**{**vars(options), "seed": seed}), contenders, target, report)
    except Exception as error:
        say(f"{benchmark.name}, seed {seed}: {type(error).__name__}: {error}")
        document.fail(benchmark.name, seed, error)
        return
    for row in report.rows:
        row |= {"operator": benchmark.operator, "seed": seed}
        add_ratios(row)
        add_bandwidth(row, target.hardware.l2_bytes * options.threads)
    document.add(benchmark.name, seed, report)


def _timed(
    benchmark: Benchmark, options: argparse.Namespace, contenders: Sequence[str], target: Target, report: Report
) -> None:
    from benchmarks.running import timed_rows, tuned_library  # noqa: PLC0415
    from tuner.measure.roof import peak_work  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="shapewright-operators-") as folder:
        tuned, libraries = tuned_library(benchmark, options, Path(folder), report)
        if benchmark.operator in FUSED:
            libraries[SEPARATE] = _separate(benchmark, options, Path(folder) / SEPARATE, report)
        if METASCHEDULE in contenders:
            libraries[METASCHEDULE] = _metaschedule(benchmark, tuned, options, report)
        names = list(dict.fromkeys([*libraries, PEAK, STREAM, *contenders]))
        work = options.threads * peak_work(target)
        report.rows += timed_rows(benchmark, names, libraries, options.threads, work, report)


def _separate(benchmark: Benchmark, options: argparse.Namespace, folder: Path, report: Report) -> Path:
    """Libraries of the bare operator and of the rest, each from a search like that of the fused one."""
    from benchmarks.running import tuned_library  # noqa: PLC0415

    for part, its in parts_of(benchmark).items():
        tuned_library(its, options, folder / part, report)
    return folder


def _metaschedule(benchmark: Benchmark, tuned: TuneResult, options: argparse.Namespace, report: Report) -> Path:
    from benchmarks import metaschedule  # noqa: PLC0415
    from benchmarks.running import say  # noqa: PLC0415

    directory = options.metaschedule or metaschedule.default_directory()
    budget = metaschedule.Budget(options.metaschedule_trials)
    # One search for all seeds of ours: what is kept is used again.
    root = metaschedule.tune_shapes(tuned.task, some_of(benchmark.test), budget, directory, say)
    report.rival_tuning.append({"workload": benchmark.name, "rival": METASCHEDULE, **metaschedule.spent(root)})
    return root


def some_of(shapes: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """METASCHEDULE_SHAPES of the shapes, at equal distances from one another and from both ends."""
    count = min(METASCHEDULE_SHAPES, len(shapes))
    return [shapes[(2 * index + 1) * len(shapes) // (2 * count)] for index in range(count)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--op", action="append", help=f"operators or programs; default: {', '.join(DEFAULT)}")
    parser.add_argument("--sizes", type=count, metavar="N", help="the first N workloads of each; default: all")
    parser.add_argument("--against", default=TORCH, help=f"rivals, comma-separated, of: {', '.join(AGAINST)}")
    parser.add_argument("--seeds", type=integers, default=(0,), help="a search for each, as in 0,1,2")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--shapes", type=integers, help="the values of T that are timed, as in 1,24,128")
    parser.add_argument("--metaschedule", type=Path, metavar="DIR", help="where its results are kept (a cache)")
    parser.add_argument("--metaschedule-trials", type=count, default=METASCHEDULE_TRIALS, help="for each shape")
    parser.add_argument("--resume", action="store_true", help="go on from the document that is there")
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
