"""Search policies against each other: the libraries that they come to with equal trials, and in equal seconds.

    python -m benchmarks.policies SUITE.yaml [--workload NAME] [--policies evolutionary,annealing,...] [--seeds 0,1,2]
        [--trials N] [--seconds S] [--threads N] --json OUT

Every policy searches each workload from nothing, once with a budget of trials alone and once of seconds alone; 0 leaves
one of them out. All libraries of a workload, a seed and a budget are then timed at the tuned shapes, in alternating
samples of one run, and so is the reference's once more: what that differs by is noise. The objective is what a search
minimises: the sum of weight times latency. Policies are compared with the default policy, or with the first one named
where that is not among them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.alternating import geomean
from benchmarks.options import count, integers
from benchmarks.suite import Benchmark, suite_here
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import DEFAULT_POLICY, POLICIES, Budget, check_policy
from tuner.program.job.task import SearchTask
from tuner.records import MeasureResult

AGAIN = "again"
"""The reference's library, timed a second time."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Searched:
    """What one search came to: the figures of its summary, its results in order, and the folder of its library."""

    summary: Mapping[str, Any]
    results: Sequence[MeasureResult]
    library: Path


Tune = Callable[[SearchTask, str, int, Budget, Path], Searched]
"""Searches with a policy, a seed and a budget; the library goes to a folder that is not there yet."""
Time = Callable[[Benchmark, Mapping[str, Path]], Mapping[str, float]]
"""The objective of each library, in seconds, all timed in one run."""


def main() -> int:
    options = _options()
    name, target, benchmarks = suite_here(options)
    rows: list[Row] = []
    for benchmark in benchmarks:
        rows += race(benchmark, options.policies, options.seeds, budgets_of(options), tuned, objectives)
    protocol = {"suite": name, "threads": options.threads, "target": target.fingerprint, "seeds": options.seeds}
    protocol |= {"timing": "libraries at the tuned shapes in alternating samples; medians; warm cache"}
    summary = summary_of(rows)
    document = {"policies": rows, "summary": summary, "protocol": protocol}
    options.json.write_text(json.dumps(document, indent=1) + "\n")
    show(summary)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("suite", type=Path)
    parser.add_argument("--workload", help="only this one of the suite")
    parser.add_argument("--policies", type=policies, default=POLICIES, help="comma-separated; default: all")
    parser.add_argument("--seeds", type=integers, default=(0, 1, 2), help="comma-separated")
    parser.add_argument("--trials", type=int, default=128, help="of each search; 0: none with equal trials")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search; 0: none with equal seconds")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    if not budgets_of(options):
        parser.error("give --trials or --seconds above 0")
    return options


def policies(text: str) -> tuple[str, ...]:
    """Names of policies, as in roller,droplet, each once."""
    try:
        return tuple(dict.fromkeys(check_policy(name) for name in text.split(",")))
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def budgets_of(options: argparse.Namespace) -> dict[str, Budget]:
    """Budgets by the name that a table gives them."""
    equal = {f"{options.trials} trials": Budget(options.trials, None)} if options.trials > 0 else {}
    return equal | ({f"{options.seconds:g} s": Budget(None, options.seconds)} if options.seconds > 0 else {})


# -- the race ---------------------------------------------------------------------------------------------------------
def race(
    benchmark: Benchmark, names: Sequence[str], seeds: Sequence[int], budgets: Mapping[str, Budget], tune: Tune,
    time: Time,
) -> Iterator[Row]:  # fmt: skip
    """A row for each budget, seed and policy. Which policy is the first to search changes with the seed."""
    for label, budget in budgets.items():
        for turn, seed in enumerate(seeds):
            start = turn % len(names)
            with tempfile.TemporaryDirectory(prefix="shapewright-policies-") as folder:
                searched: dict[str, Searched] = {}
                for name in (*names[start:], *names[:start]):
                    searched[name] = tune(benchmark.task, name, seed, budget, Path(folder) / name)
                    _say(f"{benchmark.name}, {label}, seed {seed}: {name}, {searched[name].summary['trials']} trials")
                yield from _timed(benchmark, {name: searched[name] for name in names}, label, seed, time)


def _timed(benchmark: Benchmark, searched: Mapping[str, Searched], label: str, seed: int, time: Time) -> Iterator[Row]:
    reference = reference_of(list(searched))
    libraries = {name: each.library for name, each in searched.items()}
    objective_s = time(benchmark, libraries | {AGAIN: libraries[reference]})
    for name, each in searched.items():
        yield {
            "workload": benchmark.name, "budget": label, "seed": seed, "policy": name,
            "objective_s": objective_s[name],
            "vs_reference": objective_s[name] / objective_s[reference],
            "noise": abs(math.log(objective_s[AGAIN] / objective_s[reference])),
            "trials": each.summary["trials"], "elapsed_s": each.summary["elapsed_s"],
            "ended_by": each.summary["ended_by"],
            "curve": best_so_far(benchmark.task, each.results),
        }  # fmt: skip


def reference_of(names: Sequence[str]) -> str:
    """The policy that others are compared with."""
    return DEFAULT_POLICY if DEFAULT_POLICY in names else names[0]


def best_so_far(task: SearchTask, results: Sequence[MeasureResult]) -> list[float | None]:
    """The weighted time of the best kernels so far after each trial, in seconds at one speed of the device; None until
    every instance has one."""
    from benchmarks.resubmission import curve  # noqa: PLC0415
    from tuner.search.observations import reference_anchor_s  # noqa: PLC0415

    return [value if math.isfinite(value) else None for value in curve(task, results, reference_anchor_s(results))]


def tuned(task: SearchTask, policy: str, seed: int, budget: Budget, folder: Path) -> Searched:
    """A search on this machine."""
    from shapewright.session import tune_here  # noqa: PLC0415

    result = tune_here(task, policy=policy, seed=seed, trials=budget.trials, seconds=budget.seconds)
    return Searched(result.summary, result.results, result.save(folder))


def objectives(benchmark: Benchmark, libraries: Mapping[str, Path]) -> dict[str, float]:
    """Libraries in turns on this machine, at the shapes that they were tuned for."""
    from benchmarks.timing import open_contenders, time_at  # noqa: PLC0415

    totals = dict.fromkeys(libraries, 0.0)
    with open_contenders(benchmark, list(libraries), libraries, benchmark.task.threads, {}) as contenders:
        for instance in benchmark.task.instances:
            seconds, _ = time_at(contenders, instance.shape)
            for name in totals:
                totals[name] += instance.weight * seconds[name]
    return totals


# -- what it comes to -------------------------------------------------------------------------------------------------
def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures of each budget and policy over all workloads and seeds: the geometric mean and the largest of its
    objective over the reference's (below 1 is better), the median of its trials and of its seconds. ``noise``: the
    mean difference between two timings of one library, as a share, by budget."""
    labels = list(dict.fromkeys(row["budget"] for row in rows))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    own = {
        (label, name): [r for r in rows if (r["budget"], r["policy"]) == (label, name)]
        for label in labels
        for name in names
    }
    return {
        "reference": reference_of(names),
        "by_budget": {label: {name: _figures(own[label, name]) for name in names} for label in labels},
        "noise": {
            label: math.expm1(statistics.fmean(row["noise"] for row in rows if row["budget"] == label))
            for label in labels
        },
    }  # fmt: skip


def _figures(rows: Sequence[Row]) -> dict[str, float]:
    ratios = [row["vs_reference"] for row in rows]
    return {
        "geomean_vs_reference": geomean(ratios),
        "worst_vs_reference": max(ratios),
        "trials": statistics.median(row["trials"] for row in rows),
        "elapsed_s": statistics.median(row["elapsed_s"] for row in rows),
    }


def show(summary: Mapping[str, Any]) -> None:
    """A table for each budget."""
    for label, figures in summary["by_budget"].items():
        noise = f"{100 * summary['noise'][label]:.1f} % noise"
        table = Table(title=f"{label}: time of the library over that of {summary['reference']} ({noise})")
        for column in ("policy", "mean", "worst", "trials", "seconds"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        for name, each in figures.items():
            ratios = (f"{each['geomean_vs_reference']:.3f}", f"{each['worst_vs_reference']:.3f}")
            table.add_row(name, *ratios, f"{each['trials']:g}", f"{each['elapsed_s']:.0f}")
        Console().print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
