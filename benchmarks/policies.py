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
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Row, names, say, write
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, medians, turns
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import DEFAULT_POLICY, POLICIES, Budget, check_policy
from tuner.program.job.task import SearchTask

if TYPE_CHECKING:
    from benchmarks.compare.searched import Searched

AGAIN = "again"
"""The reference's library, timed a second time."""
Tune = Callable[[SearchTask, str, int, Budget, Path], "Searched"]
"""Searches with a policy, a seed and a budget; the library goes to a folder that is not there yet."""
Time = Callable[[Benchmark, Mapping[str, Path]], Mapping[str, float]]
"""The objective of each library, in seconds, all timed in one run."""


def main() -> int:
    options = _options()
    protocol, benchmarks = suite_here(options)
    rows: list[Row] = []
    for benchmark in benchmarks:
        rows += race(benchmark, options.policies, options.seeds, budgets_of(options), tuned, objectives)
    protocol |= {"seeds": options.seeds, "timing": "libraries at the tuned shapes in alternating samples; medians"}
    summary = summary_of(rows)
    write(options.json, {"policies": rows, "summary": summary, "protocol": protocol})
    show(summary)
    return 0


def _options() -> argparse.Namespace:
    parser = suite_parser(__doc__, seeds=(0, 1, 2), trials=128, seconds=60.0)
    parser.add_argument("--policies", type=policies, default=POLICIES, help="comma-separated; default: all")
    options = parser.parse_args()
    if not budgets_of(options):
        parser.error("give --trials or --seconds above 0")
    return options


def policies(text: str) -> tuple[str, ...]:
    """Names of policies, as in roller,droplet, each once."""
    try:
        return tuple(check_policy(name) for name in names(text))
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
        for seed, order in zip(seeds, turns(names, len(seeds)), strict=True):
            with tempfile.TemporaryDirectory(prefix="shapewright-policies-") as folder:
                searched: dict[str, Searched] = {}
                for name in order:
                    searched[name] = tune(benchmark.task, name, seed, budget, Path(folder) / name)
                    say(f"{benchmark.name}, {label}, seed {seed}: {name}, {searched[name].summary['trials']} trials")
                yield from _timed(benchmark, {name: searched[name] for name in names}, label, seed, time)


def _timed(benchmark: Benchmark, searched: Mapping[str, Searched], label: str, seed: int, time: Time) -> Iterator[Row]:
    from benchmarks.compare.searched import best_so_far  # noqa: PLC0415

    reference = reference_of(list(searched))
    libraries = {name: each.library for name, each in searched.items()}
    objective_s = time(benchmark, libraries | {AGAIN: libraries[reference]})
    for name, each in searched.items():
        yield {
            "workload": benchmark.name, "budget": label, "seed": seed, "policy": name,
            "objective_s": objective_s[name],
            "vs_reference": objective_s[name] / objective_s[reference],
            "noise": abs(math.log(objective_s[AGAIN] / objective_s[reference])),
            **{figure: each.summary[figure] for figure in ("trials", "elapsed_s", "ended_by")},
            "curve": best_so_far(benchmark.task, each.results),
        }  # fmt: skip


def reference_of(names: Sequence[str]) -> str:
    """The policy that others are compared with."""
    return DEFAULT_POLICY if DEFAULT_POLICY in names else names[0]


def tuned(task: SearchTask, policy: str, seed: int, budget: Budget, folder: Path) -> Searched:
    """A search on this machine."""
    from benchmarks.compare.searched import search  # noqa: PLC0415

    return search(task, seed, folder, policy=policy, trials=budget.trials, seconds=budget.seconds)


def objectives(benchmark: Benchmark, libraries: Mapping[str, Path]) -> dict[str, float]:
    """Libraries in turns on this machine, at the shapes that they were tuned for."""
    from benchmarks.compare.rows import time_libraries  # noqa: PLC0415

    instances = benchmark.task.instances
    times = map(medians, time_libraries(benchmark, libraries, [instance.shape for instance in instances]))
    weighted = [(instance.weight, each) for instance, each in zip(instances, times, strict=True)]
    return {name: sum(weight * each[name] for weight, each in weighted) for name in libraries}


# -- what it comes to -------------------------------------------------------------------------------------------------
def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures of each budget and policy over all workloads and seeds: the geometric mean and the largest of its
    objective over the reference's (below 1 is better), the median of its trials and of its seconds. ``noise``: the
    mean difference between two timings of one library, as a share, by budget."""
    names = list(dict.fromkeys(row["policy"] for row in rows))
    by_budget, noise = {}, {}
    for label in dict.fromkeys(row["budget"] for row in rows):
        own = [row for row in rows if row["budget"] == label]
        by_budget[label] = {name: _figures([row for row in own if row["policy"] == name]) for name in names}
        noise[label] = math.expm1(statistics.fmean(row["noise"] for row in own))
    return {"reference": reference_of(names), "by_budget": by_budget, "noise": noise}


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
        print(f"{label}: time of the library over that of {summary['reference']} ({noise})")
        print(f"{'policy':14}{'mean':>8}{'worst':>8}{'trials':>8}{'seconds':>9}")
        for name, each in figures.items():
            ratios = f"{each['geomean_vs_reference']:8.3f}{each['worst_vs_reference']:8.3f}"
            print(f"{name:14}{ratios}{each['trials']:8g}{each['elapsed_s']:9.0f}")


if __name__ == "__main__":
    sys.exit(main())
