"""Search policies against each other: the libraries that they come to with equal trials, and in equal seconds.

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
from typing import Any

from benchmarks.compare.rows import time_libraries
from benchmarks.compare.searched import Searched, best_so_far, search
from benchmarks.harness.results import Row, finish, grouped, names, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, turns
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import Budget, check_policy
from tuner.program.job.policies import DEFAULT_POLICY, POLICIES
from tuner.program.job.task import SearchTask

AGAIN = "again"
"""The reference's library, timed a second time."""
Tune = Callable[[SearchTask, str, int, Budget, Path], Searched]
"""Searches with a policy, a seed and a budget; the library goes to a folder that is not there yet."""
Time = Callable[[Benchmark, Mapping[str, Path]], Mapping[str, float]]
"""The objective of each library, in seconds, all timed in one run."""


def main() -> int:
    parser = suite_parser(__doc__, seeds=(0, 1, 2), trials=128, seconds=60.0)
    parser.add_argument("--policies", type=policies, default=tuple(POLICIES), help="comma-separated; default: all")
    options = parser.parse_args()
    budgets = budgets_of(options)
    if not budgets:
        parser.error("give --trials or --seconds above 0")
    protocol, benchmarks = suite_here(options)
    rows: list[Row] = []
    for benchmark in benchmarks:
        rows += race(benchmark, options.policies, options.seeds, budgets, tuned, objectives)
    protocol |= {"seeds": options.seeds, "timing": "libraries at the tuned shapes in alternating samples; medians"}
    return finish(options.json, {"policies": rows, "summary": summary_of(rows), "protocol": protocol})


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
    reference = reference_of(names)
    for label, budget in budgets.items():
        for seed, order in zip(seeds, turns(names, len(seeds)), strict=True):
            searched: dict[str, Searched] = {}
            with tempfile.TemporaryDirectory(prefix="shapewright-policies-") as folder:
                for name in order:
                    searched[name] = tune(benchmark.task, name, seed, budget, Path(folder) / name)
                    say(f"{benchmark.name}, {label}, seed {seed}: {name}, {searched[name].summary['trials']} trials")
                libraries = {name: each.library for name, each in searched.items()}
                objective_s = time(benchmark, libraries | {AGAIN: libraries[reference]})
            noise = abs(math.log(objective_s[AGAIN] / objective_s[reference]))
            for name in names:
                yield {
                    "workload": benchmark.name, "budget": label, "seed": seed, "policy": name,
                    "objective_s": objective_s[name], "vs_reference": objective_s[name] / objective_s[reference],
                    "noise": noise,
                    **{figure: searched[name].summary[figure] for figure in ("trials", "elapsed_s", "ended_by")},
                    "curve": best_so_far(benchmark.task, searched[name].results),
                }  # fmt: skip


def reference_of(names: Sequence[str]) -> str:
    return DEFAULT_POLICY if DEFAULT_POLICY in names else names[0]


def tuned(task: SearchTask, policy: str, seed: int, budget: Budget, folder: Path) -> Searched:
    return search(task, seed, folder, policy=policy, trials=budget.trials, seconds=budget.seconds)


def objectives(benchmark: Benchmark, libraries: Mapping[str, Path]) -> dict[str, float]:
    """Libraries in turns on this machine, at the shapes that they were tuned for."""
    instances = benchmark.task.instances
    times = time_libraries(benchmark, libraries, [instance.shape for instance in instances])
    weights = [instance.weight for instance in instances]
    return {name: sum(w * at[name] for w, at in zip(weights, times, strict=True)) for name in libraries}


# -- what it comes to -------------------------------------------------------------------------------------------------
def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Figures of each budget and policy over all workloads and seeds: the geometric mean and the largest of its
    objective over the reference's (below 1 is better), the median of its trials and of its seconds. ``noise``: the
    mean difference between two timings of one library, as a share, by budget."""
    by_budget, noise = {}, {}
    for label, own in grouped(rows, "budget").items():
        by_budget[label] = {
            name: {
                "geomean_vs_reference": geomean([row["vs_reference"] for row in its]),
                "worst_vs_reference": max(row["vs_reference"] for row in its),
                **{each: statistics.median(row[each] for row in its) for each in ("trials", "elapsed_s")},
            }
            for name, its in grouped(own, "policy").items()
        }
        noise[label] = math.expm1(statistics.fmean(row["noise"] for row in own))
    return {"reference": reference_of(list(grouped(rows, "policy"))), "by_budget": by_budget, "noise": noise}


if __name__ == "__main__":
    sys.exit(main())
