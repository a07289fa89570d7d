"""Quality over tuning time: libraries of searches of several lengths against each other and the vendor libraries.

    python -m benchmarks.curve SUITE.yaml [--workload NAME] [--threads N] [--seconds 10,30,60,180] [--seed N]
        [--against mm,bmm,linear,mkl,onednn,metaschedule] [--metaschedule-dir DIR] --json OUT

Each length is a search of its own from nothing; 0 is the library of theory (no trials). With metaschedule among the
rivals, TVM's search gets the longest of the times (for all tuned shapes together, in a folder of its own).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contenders import METASCHEDULE
from benchmarks.suite import Benchmark, suite_here, suite_parser

SECONDS = "10,30,60,180"
RIVALS = "mm,bmm,linear,mkl,onednn"
THEORY = "theory"


def main() -> int:
    options = _options()
    name, target, benchmarks = suite_here(options)
    curves = []
    for benchmark in benchmarks:
        with tempfile.TemporaryDirectory(prefix="shapewright-curve-") as folder:
            curves.append(curve_of(benchmark, options, Path(folder)))
    protocol = {"suite": name, "threads": options.threads, "seed": options.seed, "target": target.fingerprint}
    protocol |= {"timing": "all libraries and rivals at each test shape in alternating samples; medians; warm cache"}
    document = {"curves": curves, "summary": _summary(curves), "protocol": protocol}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = suite_parser(__doc__)
    parser.add_argument("--seconds", default=SECONDS, help="the searches' lengths, comma-separated")
    parser.add_argument("--against", default=RIVALS, help="rivals, comma-separated")
    return parser.parse_args()


def curve_of(benchmark: Benchmark, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """``points`` by library (theory, then the searches by length); ``rows``: seconds by contender at a test shape."""
    from benchmarks.timing import open_contenders, time_at  # noqa: PLC0415
    from shapewright.session import tune_here  # noqa: PLC0415

    lengths = [float(text) for text in options.seconds.split(",") if text]
    libraries: dict[str, Path] = {}
    points: list[dict[str, Any]] = []
    for seconds in (0.0, *lengths):
        name = f"{seconds:g} s" if seconds else THEORY
        budget: dict[str, Any] = {"seconds": seconds} if seconds else {"trials": 0}
        tuned = tune_here(benchmark.task, seed=options.seed, **budget)
        libraries[name] = tuned.save(folder / name)
        points.append({"name": name, "seconds": seconds, **tuned.summary})
        _say(f"{benchmark.name}: {name}, {tuned.summary['trials']} trials")
    rivals, skipped = [rival for rival in options.against.split(",") if rival], dict[str, str]()
    if METASCHEDULE in rivals:
        libraries[METASCHEDULE] = _metaschedule(benchmark, options, max(lengths, default=0.0))
    names = [*libraries, *(rival for rival in rivals if rival not in libraries and rival != METASCHEDULE)]
    rows = []
    with open_contenders(benchmark, names, libraries, options.threads, skipped) as contenders:
        for shape in benchmark.test:
            seconds_by_name, _ = time_at(contenders, shape)
            rows.append({"shape": shape, "tuned_on": benchmark.tuned_on(shape), "seconds": seconds_by_name})
    for point in points:
        point.update(_quality(rows, point["name"], rivals))
    curve = {"workload": benchmark.name, "points": points, "rows": rows, "skipped": skipped}
    return curve | ({METASCHEDULE: _quality(rows, METASCHEDULE, rivals)} if METASCHEDULE in libraries else {})


def _metaschedule(benchmark: Benchmark, options: argparse.Namespace, seconds: float) -> Path:
    from benchmarks import metaschedule  # noqa: PLC0415

    directory = (options.metaschedule_dir or metaschedule.default_directory()) / f"{seconds:g}s"
    shapes = [instance.shape for instance in benchmark.task.instances]
    budget = metaschedule.Budget(0, seconds)
    return metaschedule.tune_shapes(benchmark.task, shapes, budget, directory, _say, options.seed)


def _quality(rows: list[dict[str, Any]], name: str, rivals: list[str]) -> dict[str, float | None]:
    """Geometric means, over the shapes that ``name`` serves, of the best rival's time over its own and of theory's."""
    from benchmarks.alternating import geomean  # noqa: PLC0415

    against_best, against_theory = [], []
    for row in rows:
        seconds = row["seconds"]
        vendors = [seconds[rival] for rival in rivals if rival in seconds and rival != METASCHEDULE]
        if name in seconds:
            against_theory.append(seconds[THEORY] / seconds[name])
            against_best += [min(vendors) / seconds[name]] if vendors else []
    return {
        "geomean_vs_best": geomean(against_best) if against_best else None,
        "geomean_vs_theory": geomean(against_theory) if against_theory else None,
    }


def _summary(curves: list[dict[str, Any]]) -> dict[str, Any]:
    """How each search compares with the best rival and with theory, by workload and length of the search."""
    figures = ("geomean_vs_best", "geomean_vs_theory", "trials")
    return {
        curve["workload"]: {point["name"]: {figure: point[figure] for figure in figures} for point in curve["points"]}
        | ({METASCHEDULE: curve[METASCHEDULE]} if METASCHEDULE in curve else {})
        for curve in curves
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
