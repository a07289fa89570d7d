"""Chains of products, fused and not: how much the order that a search dispatches loses to the better one.

    python -m benchmarks.orders [--d 64,128,256,768] [--rows 1,4,16,64,256,512] [--chain mlp,swiglu_mlp]
        [--seconds S] [--trials N] [--top N] [--seed N] [--threads N] --json OUT

A chain is dense, gelu, dense (``mlp``) or gate, silu, dense (``swiglu_mlp``), f = 4 d, tuned for 1 to 512 rows. Then,
at each number of rows, the kernels that theory ranks best of either order (``whole=0``: fused by blocks of rows,
``whole=1``: one product after the other) and those of the library are timed in alternating samples; the best three of
either order, the same kernels in the other one and, twice, the library's call are timed again. The figures are of these
samples alone, the least of each. ``loss``: how much slower the library is than the best of all. ``order``: how much
slower the best kernel of its order is than the best of all. ``noise``: how far the library's two contenders, the same
call, differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.alternating import Sampler, alternate, geomean, sampler
from benchmarks.contenders import inputs_of, library_call, limit_threads, outputs_of
from benchmarks.operator_cases import Values, benchmark_of
from benchmarks.operator_programs import CHAINS, FIELDS
from benchmarks.options import count, integers
from benchmarks.service import cpu_name
from benchmarks.suite import Benchmark
from tuner.program.target import Target, native

if TYPE_CHECKING:
    from shapewright.library import Library
    from tuner.measure import KeptBuilds
    from tuner.program.job.task import SearchTask
    from tuner.schedule.space import MicroKernel

PROGRAMS = ("mlp", "swiglu_mlp")
AXIS, ORDERS = "whole", {0: "fused", 1: "unfused"}
TUNED = (2, 8, 32, 128, 512)
SAMPLES, GENERATIONS, PARENTS = 2000, 4, 16
FINALISTS = 3
FIRST_ROUNDS, SECOND_ROUNDS, BUDGET_S, SAMPLE_S = 15, 60, 4.0, 0.001
"""Many short samples: the least of them was not disturbed."""
DISPATCHED, AGAIN = "dispatched", "dispatched, again"


def main() -> int:
    options = _options()
    limit_threads(options.threads)
    target, rows = native(), list[dict[str, Any]]()
    for d in options.d:
        for program in options.chain.split(","):
            rows += _chain(benchmark(program, d, options.rows, target, options.threads), options)
            document = {"rows": rows, "summary": summary(rows), "protocol": _protocol(options, target)}
            options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))
    return 0


def benchmark(program: str, d: int, rows: Sequence[int], target: Target, threads: int) -> Benchmark:
    """The chain over T rows."""
    workload = {"program": CHAINS[program], "extents": {"m": "T", "k": d, "f": 4 * d, "n": d}, **FIELDS[program]}
    return benchmark_of(f"{program} {d}", program, workload, Values(TUNED, tuple(rows)), target, threads)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means and the worst of what is lost; ``fused_wins``: at how many rows by more than 3 %."""
    result: dict[str, Any] = {"rows": len(rows)}
    for figure in ("loss", "order", "noise"):
        values = [float(row[figure]) for row in rows]
        result[figure] = geomean([1.0 + value for value in values]) - 1.0
        result[f"{figure}_worst"] = max(values)
    result["fused_wins"] = sum(row["fused_s"] * 1.03 < row["unfused_s"] for row in rows)
    result["unfused_wins"] = sum(row["unfused_s"] * 1.03 < row["fused_s"] for row in rows)
    result["order_over_3_percent"] = sum(row["order"] > 0.03 for row in rows)
    return result


def _protocol(options: argparse.Namespace, target: Target) -> dict[str, Any]:
    search = {"seconds": options.seconds, "trials": options.trials, "seed": options.seed, "tuned": TUNED}
    return {"cpu": cpu_name(), "target": target.fingerprint, "threads": options.threads, "search": search,
            "top": options.top, "samples": SAMPLES}  # fmt: skip


def _chain(case: Benchmark, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Tune one chain, then a row for each number of rows."""
    # Only now, with the threads limited: TVM reads the environment when it is loaded.
    from benchmarks.running import say  # noqa: PLC0415
    from shapewright.session import tune_here  # noqa: PLC0415
    from tuner.measure import KeptBuilds  # noqa: PLC0415
    from tuner.measure.local import local_tools  # noqa: PLC0415

    tuned = tune_here(case.task, seconds=options.seconds, trials=options.trials, seed=options.seed)
    say(f"{case.name}: {tuned.summary['trials']} trials")
    rows = []
    with tempfile.TemporaryDirectory(prefix="shapewright-orders-") as folder, local_tools() as (builder, _):
        library = tuned.build(Path(folder) / "library")
        with closing(KeptBuilds(tuned.task, builder)) as builds:
            for shape in case.test:
                kernels = candidates(tuned.task, shape, options.top, options.seed)
                rows.append(
                    {
                        "workload": case.name,
                        "trials": tuned.summary["trials"],
                        "rows": shape["T"],
                        **_lost(tuned.task, shape, kernels, library, builds),
                    }
                )
                say(f"  {shape['T']:4} rows: {line(rows[-1])}")
    return rows


def line(row: Mapping[str, Any]) -> str:
    times = "  ".join(f"{name} {row[f'{name}_s'] * 1e6:8.1f} us" for name in (*ORDERS.values(), DISPATCHED))
    return f"{times} ({row['chosen']})  loss {100 * row['loss']:5.1f} %  order {100 * row['order']:5.1f} %"


def candidates(task: SearchTask, shape: Mapping[str, int], top: int, seed: int) -> list[MicroKernel]:
    """The ``top`` kernels of either order that theory ranks best at a shape, of many samples and their neighbours."""
    from tuner.schedule import estimate_s, rules_of  # noqa: PLC0415

    rule, rng = rules_of(task)[0], np.random.default_rng(seed)
    space = rule.space(task)
    extents = {axis: np.array([size]) for axis, size in task.workload.axis_sizes(task.workload.dims(shape)).items()}

    def ranked(pool: Sequence[MicroKernel], order: int) -> list[MicroKernel]:
        own = [kernel for kernel in dict.fromkeys(pool) if kernel[AXIS] == order]
        return [own[index] for index in estimate_s(task, own, extents)[:, 0].argsort()]

    sampled, chosen = [space.sample(rng) for _ in range(SAMPLES)], []
    for order in ORDERS:
        pool = ranked(sampled, order)
        for _ in range(GENERATIONS):
            children = [space.mutate(kernel, rng) for kernel in pool[:PARENTS] for _ in range(PARENTS)]
            pool = ranked([*pool[: 4 * PARENTS], *children], order)
        chosen += pool[:top]
    return chosen


def _lost(
    task: SearchTask, shape: Mapping[str, int], kernels: Sequence[MicroKernel], library: Library, builds: KeptBuilds
) -> dict[str, Any]:
    """The figures at one number of rows."""
    calls = _Calls(task, shape, builds)
    calls.add([*kernels, *library.kernels])
    best = calls.best(_least(calls.sampler, FIRST_ROUNDS))
    # An order must not look slow because theory ranks other tiles first in it.
    twins = _twins(task, best)
    calls.add(twins)
    finalists = {kernel.id: calls.sampler[kernel.id] for kernel in (*best, *twins) if kernel.id in calls.sampler}
    dispatched = library_call(library, calls.inputs, calls.outputs)
    seconds = _least({**finalists, DISPATCHED: sampler(dispatched), AGAIN: sampler(dispatched)}, SECOND_ROUNDS)
    readings = seconds.pop(DISPATCHED), seconds.pop(AGAIN)
    by_kernel = {calls.kernels[name]: second for name, second in seconds.items()}
    return {**figures(by_kernel, library.kernel_for(**shape), readings), "candidates": len(calls.sampler)}


class _Calls:
    """Calls of single kernels at one number of rows, by the kernels' ids."""

    def __init__(self, task: SearchTask, shape: Mapping[str, int], builds: KeptBuilds) -> None:
        self.task, self.builds = task, builds
        self.inputs, self.outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)
        self.kernels: dict[str, MicroKernel] = {}
        self.sampler: dict[str, Sampler] = {}

    def add(self, kernels: Iterable[MicroKernel]) -> None:
        """One that cannot be built is left out."""
        from benchmarks.oracle import library_of_one  # noqa: PLC0415

        new = [kernel for kernel in dict.fromkeys(kernels) if kernel.id not in self.kernels]
        for kernel, build in zip(new, self.builds.build(new), strict=True):
            if build.binary is not None:
                self.kernels[kernel.id] = kernel
                call = library_call(library_of_one(self.task, build), self.inputs, self.outputs)
                self.sampler[kernel.id] = sampler(call)

    def best(self, seconds: Mapping[str, float]) -> list[MicroKernel]:
        """The fastest FINALISTS of either order."""
        ranked = [self.kernels[name] for name in sorted(seconds, key=seconds.__getitem__)]
        return [kernel for order in ORDERS for kernel in [k for k in ranked if k[AXIS] == order][:FINALISTS]]


def figures(
    seconds: Mapping[MicroKernel, float], chosen: MicroKernel, readings: tuple[float, float]
) -> dict[str, Any]:  # fmt: skip
    """What kernels of both orders took, and what the library's call, of the kernel ``chosen``, took twice."""
    # The first reading alone: the least of two would be of twice the samples that each kernel has.
    dispatched = readings[0]
    times = {order: min(second for kernel, second in seconds.items() if kernel[AXIS] == order) for order in ORDERS}
    # The library's own call counts for its order, too.
    own = times[chosen[AXIS]] = min(times[chosen[AXIS]], dispatched)
    best = min(times.values())
    return {
        **{f"{name}_s": times[order] for order, name in ORDERS.items()},
        "dispatched_s": dispatched, "chosen": ORDERS[chosen[AXIS]], "kernel": str(chosen),
        "loss": dispatched / best - 1.0, "order": own / best - 1.0,
        "noise": abs(readings[0] - readings[1]) / dispatched,
        "finalists": {str(kernel): second for kernel, second in seconds.items()},
    }  # fmt: skip


def _least(contenders: Mapping[str, Sampler], rounds: int) -> dict[str, float]:
    return alternate(contenders, rounds=rounds, sample_s=SAMPLE_S, budget_s=BUDGET_S, figure=min)


def _twins(task: SearchTask, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
    """The kernels in the other order, where they are legal there."""
    from tuner.schedule import rules_of  # noqa: PLC0415

    space = rules_of(task)[0].space(task)
    twins = (space.legal({**dict(kernel.values), AXIS: 1 - kernel[AXIS]}) for kernel in kernels)
    return [twin for twin in twins if twin]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--d", type=integers, default=(64, 128, 256, 768), help="widths")
    parser.add_argument("--rows", type=integers, default=(1, 4, 16, 64, 256, 512))
    parser.add_argument("--chain", default=",".join(PROGRAMS), help="of these")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each search")
    parser.add_argument("--trials", type=int, default=256, help="of each search, at most")
    parser.add_argument(
        "--top", type=count, default=12, help="kernels of theory, of either order, at each number of rows"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
