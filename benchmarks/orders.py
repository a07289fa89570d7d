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
from benchmarks.service import cpu_name
from benchmarks.suite import Benchmark
from tuner.program.target import Target, native

if TYPE_CHECKING:
    from shapewright.library import Library
    from tuner.measure import KeptBuilds
    from tuner.program.task import SearchTask
    from tuner.rules.space import MicroKernel

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
    """Of either order the ``top`` kernels that theory ranks best at a shape, of many samples and their neighbours."""
    from tuner.rules import prior_latency_s, rules_of  # noqa: PLC0415

    rule, rng = rules_of(task)[0], np.random.default_rng(seed)
    space = rule.space(task)
    extents = {axis: np.array([size]) for axis, size in task.workload.axis_sizes(task.workload.dims(shape)).items()}

    def ranked(pool: Sequence[MicroKernel], order: int) -> list[MicroKernel]:
        own = [kernel for kernel in dict.fromkeys(pool) if kernel[AXIS] == order]
        return [own[index] for index in prior_latency_s(task, own, extents)[:, 0].argsort()]

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
    from benchmarks.oracle import library_of_one  # noqa: PLC0415

    inputs, outputs = inputs_of(task.workload, shape), outputs_of(task.workload, shape)

    def calls_of(pool: Iterable[MicroKernel]) -> dict[str, Sampler]:
        for kernel, build in zip(own := list(dict.fromkeys(pool)), builds.build(own), strict=True):
            if build.binary is not None:
                names[kernel.id] = kernel
                calls[kernel.id] = sampler(library_call(library_of_one(task, build), inputs, outputs))
        return calls

    names: dict[str, MicroKernel] = {}
    calls: dict[str, Sampler] = {}
    first = _least(calls_of([*kernels, *library.kernels]), FIRST_ROUNDS)
    best_ids = [
        name
        for order in ORDERS
        for name in sorted((each for each in first if names[each][AXIS] == order), key=first.__getitem__)[:FINALISTS]
    ]
    # An order must not look slow because theory ranks other tiles first in it.
    twins = _twins(task, [names[name] for name in best_ids])
    calls_of(twin for twin in twins if twin.id not in names)
    wanted = dict.fromkeys([*best_ids, *(twin.id for twin in twins)])
    finalists = {name: calls[name] for name in wanted if name in calls}
    dispatched = library_call(library, inputs, outputs)
    finalists |= {DISPATCHED: sampler(dispatched), AGAIN: sampler(dispatched)}
    second = _least(finalists, SECOND_ROUNDS)
    its, again = second.pop(DISPATCHED), second.pop(AGAIN)
    kernel = library.kernel_for(**shape)
    chosen = min(its, again)
    # The library's own call counts for its order, too.
    times = {order: min(second[name] for name in second if names[name][AXIS] == order) for order in ORDERS}
    times[kernel[AXIS]] = min(times[kernel[AXIS]], chosen)
    best = min(times.values())
    return {
        **{f"{name}_s": times[order] for order, name in ORDERS.items()},
        "dispatched_s": chosen, "chosen": ORDERS[kernel[AXIS]], "kernel": str(kernel), "loss": chosen / best - 1.0,
        "order": times[kernel[AXIS]] / best - 1.0, "noise": abs(its - again) / chosen, "candidates": len(calls),
        "finalists": {str(names[name]): seconds for name, seconds in second.items()},
    }  # fmt: skip


def _least(contenders: Mapping[str, Sampler], rounds: int) -> dict[str, float]:
    return alternate(contenders, rounds=rounds, sample_s=SAMPLE_S, budget_s=BUDGET_S, figure=min)


def _twins(task: SearchTask, kernels: Sequence[MicroKernel]) -> list[MicroKernel]:
    """The same kernels in the other order, where they are legal there."""
    from tuner.rules import rules_of  # noqa: PLC0415

    space = rules_of(task)[0].space(task)
    twins = (space.legal({**dict(kernel.values), AXIS: 1 - kernel[AXIS]}) for kernel in kernels)
    return [twin for twin in twins if twin]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--d", type=_values, default=(64, 128, 256, 768), help="widths")
    parser.add_argument("--rows", type=_values, default=(1, 4, 16, 64, 256, 512))
    parser.add_argument("--chain", default=",".join(PROGRAMS), help="of these")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each search")
    parser.add_argument("--trials", type=int, default=256, help="of each search, at most")
    parser.add_argument(
        "--top", type=int, default=12, help="kernels of theory, of either order, at each number of rows"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    return parser.parse_args()


def _values(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
