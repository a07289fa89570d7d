"""Search policies against each other: the libraries that they come to with equal trials, and in equal seconds.

Every policy searches each workload from nothing, once with a budget of trials alone and once of seconds alone; 0 leaves
one of them out. All libraries of a workload, a seed and a budget are then timed at the tuned shapes, in alternating
samples of one run, and so is the reference's once more: what that differs by is noise. The objective is what a search
minimises: the sum of weight times latency. Policies are compared with the default policy, or with the first one named
where that is not among them. With ``--oracle TRIALS`` one search of so many trials stands beside them all, and theory's
library, ``untuned``: what there was to gain and what is left of it, without which policies that are alike and policies
that find nothing look the same.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.rows import time_libraries
from benchmarks.compare.searched import best_so_far, search
from benchmarks.harness.results import Row, count, finish, grouped, names, say
from benchmarks.harness.suite import Benchmark, suite_here, suite_parser
from benchmarks.harness.turns import geomean, turns
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import Budget, check_policy
from tuner.program.job.policies import DEFAULT_POLICY, POLICIES

ORACLE, UNTUNED = "oracle", "untuned"
"""The libraries of the long search and of no trial, among those of the policies."""
AGAIN = "again"
"""The reference's library, timed a second time."""


def main() -> int:
    parser = suite_parser(__doc__, seeds=(0, 1, 2), trials=128, seconds=60.0)
    parser.add_argument("--policies", type=policies, default=tuple(POLICIES), help="comma-separated; default: all")
    parser.add_argument("--oracle", type=count, metavar="TRIALS", help="a long search to compare with")
    options = parser.parse_args()
    budgets = budgets_of(options)
    if not budgets:
        parser.error("give --trials or --seconds above 0")
    protocol, benchmarks = suite_here(options)
    given = options.policies, options.seeds, budgets, options.oracle
    rows = [row for benchmark in benchmarks for row in race(benchmark, *given)]
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
    benchmark: Benchmark, names: Sequence[str], seeds: Sequence[int], budgets: Mapping[str, Budget],
    oracle: int | None = None,
) -> Iterator[Row]:  # fmt: skip
    """A row for each budget, seed and policy, and for a search of ``oracle`` trials. Which policy is the first to
    search changes with the seed."""
    reference = reference_of(names)
    with tempfile.TemporaryDirectory(prefix="shapewright-policies-") as folder:
        best, at = {}, {name: Path(folder) / name for name in (ORACLE, UNTUNED)}
        for name, trials in {ORACLE: oracle, UNTUNED: 0}.items() if oracle else ():
            best[name] = search(benchmark.task, seeds[0], at[name], policy=reference, trials=trials)
        for (label, budget), (seed, order) in itertools.product(
            budgets.items(), zip(seeds, turns(names, len(seeds)), strict=True)
        ):
            searched = {}
            for name in order:
                at[name] = Path(folder) / f"{label}-{seed}" / name
                given = {"policy": name, "trials": budget.trials, "seconds": budget.seconds}
                searched[name] = search(benchmark.task, seed, at[name], **given)
                say(f"{benchmark.name}, {label}, seed {seed}: {name}, {searched[name].summary['trials']} trials")
            libraries = {name: at[name] for name in searched | best}
            objective_s = objectives(benchmark, libraries | {AGAIN: libraries[reference]})
            noise = abs(math.log(objective_s[AGAIN] / objective_s[reference]))
            for name, each in ({name: searched[name] for name in names} | best).items():
                yield {
                    "workload": benchmark.name, "budget": label, "seed": seed, "policy": name,
                    "objective_s": objective_s[name], "vs_reference": objective_s[name] / objective_s[reference],
                    "noise": noise, **{figure: each.summary[figure] for figure in ("trials", "elapsed_s", "ended_by")},
                    "curve": best_so_far(benchmark.task, each.results),
                }  # fmt: skip


def reference_of(names: Sequence[str]) -> str:
    return DEFAULT_POLICY if DEFAULT_POLICY in names else names[0]


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
    mean difference between two timings of one library, as a share, by budget. ``to_gain`` and ``left_to_gain``: by
    budget and workload how much longer than the oracle's library theory's takes, and the reference's, as shares."""
    by_budget, noise, to_gain, left = {}, {}, {}, {}
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
        untuned, of_oracle = (_by_workload(own, name) for name in (UNTUNED, ORACLE))
        to_gain[label] = {name: untuned[name] / best - 1 for name, best in of_oracle.items()}
        left[label] = {name: 1 / best - 1 for name, best in of_oracle.items()}
    reference = reference_of(list(grouped(rows, "policy")))
    gains = {"to_gain": to_gain, "left_to_gain": left}
    return {"reference": reference, "by_budget": by_budget, "noise": noise, **gains}


def _by_workload(rows: Sequence[Row], policy: str) -> dict[str, float]:
    """What the library of ``policy`` takes at each workload, over the reference's."""
    own = grouped([row for row in rows if row["policy"] == policy], "workload")
    return {name: geomean([row["vs_reference"] for row in its]) for name, its in own.items()}


if __name__ == "__main__":
    sys.exit(main())
