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
import json
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

from benchmarks.alternating import geomean
from benchmarks.options import count, numbers
from benchmarks.suite import Benchmark, suite_here, suite_parser
from tuner.program.target.rates import NUMBERS, Rates

if TYPE_CHECKING:
    from tuner.program.job.task import SearchTask

AGAIN = "again"
"""The undisturbed library, timed a second time."""
Row = dict[str, Any]


def main() -> int:
    options = _options()
    name, target, benchmarks = suite_here(options)
    rows = [row for benchmark in benchmarks for row in _of_workload(benchmark, options)]
    protocol = {"suite": name, "threads": options.threads, "target": target.fingerprint, "seed": options.seed}
    protocol |= {"most": options.most, "timing": "all libraries at the test shapes in alternating samples"}
    document = {"rows": rows, "summary": summary_of(rows), "protocol": protocol}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["summary"], indent=1))
    return 0


def _options() -> argparse.Namespace:
    parser = suite_parser(__doc__)
    parser.add_argument("--draws", type=count, default=5)
    parser.add_argument("--seconds", type=numbers, default=(0.0, 60.0, 180.0), help="comma-separated; 0: theory alone")
    parser.add_argument("--most", type=float, default=3.0, help="the largest factor, and the reciprocal of the least")
    return parser.parse_args()


# -- a machine that nobody knows --------------------------------------------------------------------------------------
def disturbed(rates: Rates, draw: int, most: float) -> Rates:
    """Every rate times a factor of its own between ``1/most`` and ``most``."""
    factors = _factors(len(NUMBERS), draw, most)
    return replace(rates, **{name: getattr(rates, name) * by for name, by in zip(NUMBERS, factors, strict=True)})


MAX_CYCLES = 1e6


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

    found = [
        *walk_packages(rules.__path__, "tuner.schedule.rules."),
        *walk_packages(product.__path__, "tuner.schedule.product."),
    ]
    return [import_module(each.name) for each in found]


def _is_constant(name: str, value: object) -> bool:
    """Whether it is a number of cycles, or a share: no limit of a dtype, and no address."""
    return name.isupper() and isinstance(value, float) and 0 < value < MAX_CYCLES


def _factors(number: int, draw: int, most: float) -> list[float]:
    spread = math.log(most)
    return [float(by) for by in np.exp(np.random.default_rng(draw).uniform(-spread, spread, number))]


# -- searches ---------------------------------------------------------------------------------------------------------
def _of_workload(benchmark: Benchmark, options: argparse.Namespace) -> Iterator[Row]:
    from shapewright.calibrations import at_kept_rates  # noqa: PLC0415

    task = at_kept_rates(benchmark.task)
    with tempfile.TemporaryDirectory(prefix="shapewright-unknown-") as folder:
        for seconds in options.seconds:
            libraries = {"undisturbed": _searched(task, seconds, options.seed, Path(folder) / f"{seconds}")}
            for draw in range(options.draws):
                unknown = task.at_rates(disturbed(task.rates, draw, options.most))
                with disturbed_constants(draw, options.most):
                    path = Path(folder) / f"{seconds}-{draw}"
                    libraries[str(draw)] = _searched(unknown, seconds, options.seed, path)
                print(f"{benchmark.name}, {seconds:g} s, draw {draw}", file=sys.stderr, flush=True)
            yield from _timed(benchmark, seconds, libraries)


def _searched(task: SearchTask, seconds: float, seed: int, folder: Path) -> tuple[Mapping[str, Any], Path]:
    from shapewright.session import tune_here  # noqa: PLC0415

    budget = {"seconds": seconds} if seconds else {"trials": 0}
    result = tune_here(task, seed=seed, **budget)
    return result.summary, result.save(folder)


def _timed(
    benchmark: Benchmark, seconds: float, searched: Mapping[str, tuple[Mapping[str, Any], Path]]
) -> Iterator[Row]:
    from benchmarks.timing import open_contenders, time_at  # noqa: PLC0415

    libraries = {name: path for name, (_, path) in searched.items()}
    libraries[AGAIN] = libraries["undisturbed"]
    ratios: dict[str, list[float]] = {name: [] for name in libraries}
    with open_contenders(benchmark, list(libraries), libraries, benchmark.task.threads, {}) as contenders:
        for shape in benchmark.test:
            times, _ = time_at(contenders, shape)
            for name in libraries:
                ratios[name].append(times[name] / times["undisturbed"])
    for name in libraries:
        summary = searched[name][0] if name in searched else {}
        yield {
            "workload": benchmark.name, "seconds": seconds, "draw": name, "vs_undisturbed": geomean(ratios[name]),
            "worst": max(ratios[name]), "trials": summary.get("trials"), "ended_by": summary.get("ended_by"),
            "elapsed_s": summary.get("elapsed_s"), "interval_coverage": summary.get("interval_coverage"),
        }  # fmt: skip


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """The time of disturbed searches' libraries over undisturbed ones' for each budget, its geometric mean and its
    worst by workload and draw; ``noise``: what two timings of one library differ by at the most."""
    result = {}
    for seconds in dict.fromkeys(row["seconds"] for row in rows):
        own = [row for row in rows if row["seconds"] == seconds]
        ratios = [row["vs_undisturbed"] for row in own if row["draw"] not in ("undisturbed", AGAIN)]
        noise = [abs(math.log(row["vs_undisturbed"])) for row in own if row["draw"] == AGAIN]
        result[f"{seconds:g} s"] = {
            "geomean_vs_undisturbed": geomean(ratios), "worst_vs_undisturbed": max(ratios), "draws": len(ratios),
            "noise": math.expm1(max(noise)),
        }  # fmt: skip
    return result


if __name__ == "__main__":
    sys.exit(main())
