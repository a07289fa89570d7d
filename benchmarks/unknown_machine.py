"""Searches led by a theory that is wrong by factors, as on a machine that nobody knows, against searches that are not.

A draw multiplies every rate of the device that theory uses, and every number of cycles that a rule's own theory names,
by a factor of its own between ``1/most`` and ``most``. Each workload is searched once with theory as it is, and once
with each draw, in each number of seconds; 0 stands for no trials: theory alone. All its libraries are then timed at the
test shapes, in alternating samples of one run, and the undisturbed one of each budget once more: what that differs by
is noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np

from benchmarks.compare.rows import time_libraries
from benchmarks.compare.searched import Searched, read_here, search
from benchmarks.harness.results import Row, finish, grouped, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean
from shapewright.calibrations import kept
from tuner.program.target.rates import NUMBERS, Rates
from tuner.schedule import product, rules

UNDISTURBED, AGAIN = "undisturbed", "again"
MAX_CYCLES = 1e6


def main() -> int:
    options = suite_parser(__doc__, draws=5, seconds=(0.0, 60.0, 180.0), most=3.0).parse_args()
    protocol, benchmarks = suite_here(options)
    rows = [row for benchmark in benchmarks for row in _of_workload(benchmark, options)]
    protocol |= {"most": options.most, "timing": "all libraries at the test shapes in alternating samples"}
    return finish(options.json, {"rows": rows, "summary": summary_of(rows), "protocol": protocol})


# -- a machine that nobody knows --------------------------------------------------------------------------------------
def disturbed(rates: Rates, draw: int, most: float) -> Rates:
    """Every rate times a factor of its own between ``1/most`` and ``most``."""
    factors = _factors(len(NUMBERS), draw, most)
    return replace(rates, **{name: getattr(rates, name) * by for name, by in zip(NUMBERS, factors, strict=True)})


@contextmanager
def disturbed_constants(draw: int, most: float) -> Iterator[int]:
    """Every number of cycles that a rule's theory names times a factor, while the context is open; their count."""
    found = [each for package in (rules, product) for each in walk_packages(package.__path__, f"{package.__name__}.")]
    # Numbers of cycles, and shares: no limit of a dtype, and no address.
    named = [
        (module, name, value)
        for module in (import_module(each.name) for each in found)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, float) and 0 < value < MAX_CYCLES
    ]
    try:
        for (module, name, value), by in zip(named, _factors(len(named), draw + 1000, most), strict=True):
            setattr(module, name, value * by)
        yield len(named)
    finally:
        for module, name, value in named:
            setattr(module, name, value)


def _factors(number: int, draw: int, most: float) -> list[float]:
    spread = math.log(most)
    return [float(by) for by in np.exp(np.random.default_rng(draw).uniform(-spread, spread, number))]


# -- searches ---------------------------------------------------------------------------------------------------------
def _of_workload(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[Row]:
    task = benchmark.task
    calibration = kept(task.known_target, task.threads)
    task = task.at_rates(calibration.rates if calibration else read_here(task))
    with tempfile.TemporaryDirectory(prefix="shapewright-unknown-") as name:
        for seconds in options.seconds:
            folder, budget = Path(name) / f"{seconds}", {"seconds": seconds} if seconds else {"trials": 0}
            searched = {UNDISTURBED: search(task, options.seed, folder / UNDISTURBED, **budget)}
            for draw in range(options.draws):
                unknown = task.at_rates(disturbed(task.rates, draw, options.most))
                with disturbed_constants(draw, options.most):
                    searched[str(draw)] = search(unknown, options.seed, folder / str(draw), **budget)
                say(f"{benchmark.name}, {seconds:g} s, draw {draw}")
            yield from _timed(benchmark, seconds, searched)


def _timed(benchmark: Benchmark, seconds: float, searched: Mapping[str, Searched]) -> Iterator[Row]:
    libraries = {name: each.library for name, each in searched.items()} | {AGAIN: searched[UNDISTURBED].library}
    times = time_libraries(benchmark, libraries, benchmark.test)
    for name in libraries:
        ratios = [each[name] / each[UNDISTURBED] for each in times]
        told = searched[name].summary if name in searched else {}
        figures = {each: told.get(each) for each in ("trials", "ended_by", "elapsed_s", "interval_coverage")}
        yield {
            "workload": benchmark.name, "seconds": seconds, "draw": name, "vs_undisturbed": geomean(ratios),
            "worst": max(ratios), **figures,
        }  # fmt: skip


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The time of disturbed searches' libraries over undisturbed ones' for each budget, its geometric mean and its
    worst by workload and draw; ``noise``: what two timings of one library differ by at the most."""
    result = {}
    for seconds, own in grouped(rows, "seconds").items():
        ratios = [row["vs_undisturbed"] for row in own if row["draw"] not in (UNDISTURBED, AGAIN)]
        noise = [abs(math.log(row["vs_undisturbed"])) for row in own if row["draw"] == AGAIN]
        result[f"{seconds:g} s"] = {
            "geomean_vs_undisturbed": geomean(ratios), "worst_vs_undisturbed": max(ratios), "draws": len(ratios),
            "noise": math.expm1(max(noise)),
        }  # fmt: skip
    return result


if __name__ == "__main__":
    sys.exit(main())
