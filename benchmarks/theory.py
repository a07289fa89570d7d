"""What theory alone is worth: libraries of no trials, by typical rates and by the device's, against a search.

    python -m benchmarks.theory SUITE.yaml [--workload NAME] [--seconds 60] [--threads N] [--seed N] --json OUT

Each workload has a library chosen by theory with the typical rates, one by the rates that `shapewright device
calibrate` measured of this machine (left out where it did not), and one of a search of so many seconds. All are timed
at the test shapes, in alternating samples of one run. The regret of theory is its time over the search's, less one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.alternating import geomean
from benchmarks.suite import Benchmark, suite_here, suite_parser

if TYPE_CHECKING:
    from tuner.program.job.task import SearchTask

TYPICAL, CALIBRATED, SEARCHED = "typical", "calibrated", "searched"
Row = dict[str, Any]


def main() -> int:
    parser = suite_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the search")
    options = parser.parse_args()
    name, target, benchmarks = suite_here(options)
    rows = [row for benchmark in benchmarks for row in _of_workload(benchmark, options.seconds, options.seed)]
    protocol = {"suite": name, "threads": options.threads, "target": target.fingerprint, "seed": options.seed}
    document = {"rows": rows, "summary": summary_of(rows), "protocol": protocol | {"seconds": options.seconds}}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _of_workload(benchmark: Benchmark, seconds: float, seed: int) -> list[Row]:
    from shapewright.calibrations import at_kept_rates  # noqa: PLC0415 - after the threads are limited

    task = benchmark.task
    calibrated = at_kept_rates(task)
    with tempfile.TemporaryDirectory(prefix="shapewright-theory-") as folder:
        libraries = {TYPICAL: _library(task, {"trials": 0}, seed, Path(folder) / TYPICAL, is_typical=True)}
        if calibrated.rates != task.rates:
            libraries[CALIBRATED] = _library(calibrated, {"trials": 0}, seed, Path(folder) / CALIBRATED)
        libraries[SEARCHED] = _library(calibrated, {"seconds": seconds}, seed, Path(folder) / SEARCHED)
        return _timed(benchmark, libraries)


def _library(task: SearchTask, budget: Mapping[str, Any], seed: int, folder: Path, *, is_typical: bool = False) -> Path:
    from shapewright.session import tune_here  # noqa: PLC0415

    return tune_here(task, seed=seed, **budget, calibrated=not is_typical).save(folder)


def _timed(benchmark: Benchmark, libraries: Mapping[str, Path]) -> list[Row]:
    from benchmarks.timing import open_contenders, time_at  # noqa: PLC0415

    rows: list[Row] = []
    with open_contenders(benchmark, list(libraries), libraries, benchmark.task.threads, {}) as contenders:
        for shape in benchmark.test:
            seconds, _ = time_at(contenders, shape)
            own = {name: seconds[name] for name in libraries}
            rows.append({"workload": benchmark.name, "shape": shape, "tuned_on": benchmark.tuned_on(shape), "s": own})
    print(f"{benchmark.name}: {summary_of(rows)}", file=sys.stderr, flush=True)
    return rows


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The regret of theory over all shapes, and the largest at one, by contender."""
    names = [name for name in (TYPICAL, CALIBRATED) if all(name in row["s"] for row in rows)]
    ratios = {name: [row["s"][name] / row["s"][SEARCHED] for row in rows] for name in names}
    return {name: {"regret": geomean(each) - 1, "worst": max(each) - 1} for name, each in ratios.items()}


if __name__ == "__main__":
    sys.exit(main())
