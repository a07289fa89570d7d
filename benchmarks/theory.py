"""What theory alone is worth, and what the seconds of a search buy: libraries of no trials, by typical rates and by
this machine's, against searches and the vendors.

Each workload has a library chosen by theory with the typical rates, one with what is read of this machine in a second,
one with the rates that `shapewright device calibrate` measured of it (left out where it did not), and one of a search
for each number of seconds, each from nothing; several numbers give quality over tuning time. All are timed at the test
shapes, in alternating samples of one run, and so are the vendors' routines that ``--against`` names. The regret of
theory is its time over that of the longest search, less one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.rows import open_contenders, time_at
from benchmarks.compare.searched import read_here, search
from benchmarks.harness.results import Row, finish, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, interval, medians
from shapewright.calibrations import kept

TYPICAL, READ, CALIBRATED, SEARCHED = "typical", "read", "calibrated", "searched"


def main() -> int:
    options = suite_parser(__doc__, seconds=(60.0,), against=list[str]()).parse_args()
    protocol, benchmarks = suite_here(options)
    rows, points = list[Row](), dict[str, Any]()
    for benchmark in benchmarks:
        with tempfile.TemporaryDirectory(prefix="shapewright-theory-") as folder:
            points[benchmark.name] = searched(benchmark, options.seconds, options.seed, Path(folder))
            libraries = {name: Path(folder) / name for name in points[benchmark.name]}
            rows += timed(benchmark, libraries, options.against)
        say(f"{benchmark.name}: {summary_of(rows)}")
    protocol |= {"seconds": options.seconds, "against": options.against}
    return finish(options.json, {"rows": rows, "points": points, "summary": summary_of(rows), "protocol": protocol})


def searched(benchmark: Benchmark, seconds: Sequence[float], seed: int, folder: Path) -> dict[str, Row]:
    """Figures of searches by the name of the library, which is that of its folder, too; the longest search has the name
    SEARCHED, others that of their seconds."""
    task = benchmark.task
    known = {READ: read_here(task)}
    if (calibration := kept(task.known_target, task.threads)) is not None:
        known[CALIBRATED] = calibration.rates
    libraries = {TYPICAL: search(task, seed, folder / TYPICAL, trials=0, calibrated=False)}
    for name, rates in known.items():
        libraries[name] = search(task.at_rates(rates), seed, folder / name, trials=0)
    for each in sorted(seconds):
        name = SEARCHED if each == max(seconds) else f"{each:g} s"
        libraries[name] = search(task.at_rates(known.get(CALIBRATED, known[READ])), seed, folder / name, seconds=each)
        say(f"{benchmark.name}, {each:g} s: {libraries[name].summary['trials']} trials")
    return {name: {figure: each.summary[figure] for figure in ("trials", "elapsed_s", "kernels")}
            for name, each in libraries.items()}  # fmt: skip


def timed(benchmark: Benchmark, libraries: Mapping[str, Path], against: Sequence[str]) -> list[Row]:
    rows = list[Row]()
    with open_contenders(benchmark, [*libraries, *against], libraries) as contenders:
        for shape in benchmark.test:
            samples, _ = time_at(contenders, shape)
            rounded = {name: [float(f"{each:.4g}") for each in times] for name, times in samples.items()}
            seen = {"workload": benchmark.name, "shape": shape, "tuned_on": benchmark.tuned_on(shape)}
            rows.append({**seen, "s": medians(rounded), "samples_s": rounded, "libraries": list(libraries)})
    return rows


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """By library in the rows of all shapes: its regret against the longest search, the largest at one shape, and, where
    rivals were timed, how many times faster than the fastest of them it is: the mean, its interval, the least."""
    common = [name for name in rows[0]["libraries"] if all(name in row["s"] for row in rows)]
    fastest = [
        (row, min(rivals, key=row["s"].__getitem__)) for row in rows if (rivals := row["s"].keys() - row["libraries"])
    ]
    result = {}
    for name in common:
        over = [row["s"][name] / row["s"][SEARCHED] for row in rows]
        result[name] = {"regret": geomean(over) - 1, "worst": max(over) - 1}
        if fastest:
            vs = [row["s"][rival] / row["s"][name] for row, rival in fastest]
            bounds = interval([(row["samples_s"][rival], row["samples_s"][name]) for row, rival in fastest])
            result[name] |= {"geomean_vs_best": geomean(vs), "interval_vs_best": bounds, "worst_vs_best": min(vs)}
    return result


if __name__ == "__main__":
    sys.exit(main())
