"""Searches led by a theory that is wrong by factors, as on a machine that nobody knows, against searches that are not.

    python -m benchmarks.unknown_machine SUITE.yaml [--workload NAME] [--draws 5] [--seconds 0,60,180] [--most 3]
        [--seed N] [--threads N] --json OUT

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
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.results import Row, finish, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, medians
from tuner.program.target.rates import NUMBERS, Rates

if TYPE_CHECKING:
    from benchmarks.compare.searched import Searched

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
    named = [
        (module, name) for module in _estimates() for name, value in vars(module).items() if _is_constant(name, value)
    ]
    before = [getattr(module, name) for module, name in named]
    try:
        for (module, name), value, by in zip(named, before, _factors(len(named), draw + 1000, most), strict=True):
            setattr(module, name, value * by)
        yield len(named)
    finally:
        for (module, name), value in zip(named, before, strict=True):
            setattr(module, name, value)


def _estimates() -> list[ModuleType]:
    """The modules that hold constants of theory."""
    from tuner.schedule import product, rules  # noqa: PLC0415 - after the threads are limited

    found = [each for package in (rules, product) for each in walk_packages(package.__path__, f"{package.__name__}.")]
    return [import_module(each.name) for each in found]


def _is_constant(name: str, value: object) -> bool:
    """Whether it is a number of cycles, or a share: no limit of a dtype, and no address."""
    return name.isupper() and isinstance(value, float) and 0 < value < MAX_CYCLES


def _factors(number: int, draw: int, most: float) -> list[float]:
    spread = math.log(most)
    return [float(by) for by in np.exp(np.random.default_rng(draw).uniform(-spread, spread, number))]


# -- searches ---------------------------------------------------------------------------------------------------------
def _of_workload(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[Row]:
    from benchmarks.compare.searched import for_seconds, search  # noqa: PLC0415
    from shapewright.calibrations import at_kept_rates  # noqa: PLC0415

    task = at_kept_rates(benchmark.task)
    with tempfile.TemporaryDirectory(prefix="shapewright-unknown-") as name:
        for seconds in options.seconds:
            folder, budget = Path(name) / f"{seconds}", for_seconds(seconds)
            searched = {UNDISTURBED: search(task, options.seed, folder / UNDISTURBED, **budget)}
            for draw in range(options.draws):
                unknown = task.at_rates(disturbed(task.rates, draw, options.most))
                with disturbed_constants(draw, options.most):
                    searched[str(draw)] = search(unknown, options.seed, folder / str(draw), **budget)
                say(f"{benchmark.name}, {seconds:g} s, draw {draw}")
            yield from _timed(benchmark, seconds, searched)


def _timed(benchmark: Benchmark, seconds: float, searched: Mapping[str, Searched]) -> Iterator[Row]:
    from benchmarks.compare.rows import time_libraries  # noqa: PLC0415

    libraries = {name: each.library for name, each in searched.items()}
    libraries[AGAIN] = libraries[UNDISTURBED]
    times = [medians(samples) for samples in time_libraries(benchmark, libraries, benchmark.test)]
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
    for seconds in dict.fromkeys(row["seconds"] for row in rows):
        own = [row for row in rows if row["seconds"] == seconds]
        ratios = [row["vs_undisturbed"] for row in own if row["draw"] not in (UNDISTURBED, AGAIN)]
        noise = [abs(math.log(row["vs_undisturbed"])) for row in own if row["draw"] == AGAIN]
        result[f"{seconds:g} s"] = {
            "geomean_vs_undisturbed": geomean(ratios), "worst_vs_undisturbed": max(ratios), "draws": len(ratios),
            "noise": math.expm1(max(noise)),
        }  # fmt: skip
    return result


if __name__ == "__main__":
    sys.exit(main())
