"""What a dispatcher's choices cost by theory: regret over every shape of a range, against the best kernel of the set.

For each workload theory chooses two sets: `instances`, as a search of no trials does, and `range`, of kernels that are
best somewhere in the range. Each is dispatched by a tree of `extents` alone, fitted to the shapes of the dispatch
table, and by the tree that libraries have (`features`). `two_kernels` is what a call could gain at most that leaves the
last rows of a dim, those beyond whole tiles of one kernel, to another one: each part in its own best time, only along
dims that are outermost in memory. Nothing is timed, so that figures are the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.results import Row, finish, options_of
from tuner.library.dispatcher import Tree
from tuner.library.fitting import chosen, fit, leaves
from tuner.library.selection import select
from tuner.program.job.task import SearchTask
from tuner.program.language.dims import DimExpr
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target
from tuner.schedule import layout_group, space_of, tiles_of
from tuner.schedule.space import MicroKernel
from tuner.search.cost_model import PairCostModel
from tuner.search.finalize import make_dispatcher
from tuner.search.observations import Measured
from tuner.search.policy.theory import TheorySettings, theory_set

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
V4 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v4", "num-cores": 4})
AMX = Target.from_json({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 4})
MOST = 8
"""Kernels of a set."""
SAMPLED, AT_SHAPES = 1500, 250
AT_ONCE = 8192


def main() -> int:
    options = options_of(__doc__, most=256).parse_args()
    rows = [
        {"workload": name, "set": which, **figures(task, kernels)}
        for name, task in tasks(options.most).items() for which, kernels in sets_of(task).items()
    ]  # fmt: skip
    summary = {each: {figure: max(row[each][figure] for row in rows) for figure in ("mean", "p99", "max")}
               for each in ("extents", "features")}  # fmt: skip
    summary["two_kernels"] = {"mean": max(row["two_kernels"]["mean"] for row in rows)}
    protocol = {"rates": "typical", "most": options.most}
    return finish(options.json, {"rows": rows, "summary": summary, "protocol": protocol})


def tasks(most: int) -> dict[str, SearchTask]:
    """``most``: the largest value of each of two variables; of one twice as much."""
    t, m, n = (ShapeVar(name, range(1, end)) for name, end in (("T", 2 * most + 1), ("M", most + 1), ("N", most + 1)))
    one, two = dict[str, Any](shape_vars=(t,), target=V4), dict[str, Any](shape_vars=(m, n), target=V4)
    rows, batched = {"m": t, "n": 768, "k": 768}, {"b": 12, "m": m, "n": n, "k": 64}
    return {
        "dense, T rows": SearchTask("dense", rows, **one),
        "dense, T rows, 2 threads": SearchTask("dense", {"m": t, "n": 3072, "k": 768}, **one, threads=2),
        "dense in bfloat16, T rows": SearchTask("dense", rows, (t,), target=AMX, dtype="bfloat16"),
        "dense, M x N": SearchTask("dense", {"m": m, "n": n, "k": 256}, **two),
        "dense, M x N, 2 threads": SearchTask("dense", {"m": m, "n": n, "k": 768}, **two, threads=2),
        "matmul, M x N": SearchTask("matmul", {"m": m, "n": n, "k": 64}, **two),
        "batch_matmul_nt, M x N": SearchTask("batch_matmul_nt", batched, **two),
        "attention, M x N": SearchTask("attention", {"b": 1, "h": 12, "i": m, "j": n, "d": 64}, **two),
    }


def sets_of(task: SearchTask) -> dict[str, list[MicroKernel]]:
    model, space, rng = PairCostModel(task), space_of(task), np.random.default_rng(0)
    ours = theory_set(task, space, model, rng, TheorySettings())
    pool = list(dict.fromkeys([*ours, *(space.sample(rng) for _ in range(SAMPLED))]))
    shapes = task.shapes(AT_SHAPES)
    for _ in range(4):
        leading = [pool[at] for at in np.unique(model.predict(pool, shapes).latency_s.argsort(axis=0)[:2])]
        pool = list(dict.fromkeys([*pool, *(space.mutate(kernel, rng) for kernel in leading for _ in range(3))]))
    latency_s = model.predict(pool, shapes).latency_s
    wide = select(latency_s, 1 / latency_s.min(axis=0), MOST, [layout_group(task, kernel) for kernel in pool])
    return {"instances": ours, "range": [pool[at] for at in wide]}


def figures(task: SearchTask, kernels: Sequence[MicroKernel]) -> Row:
    model, names = PairCostModel(task), task.workload.symbols
    points, latency_s = _known(task, model, kernels, task.shapes(10**6))
    tree = fit(names, *_known(task, model, kernels, task.shapes()))
    ours = make_dispatcher(task, model, Measured(), kernels).tree
    return {
        "kernels": len(kernels), "shapes": len(points),
        "extents": _regret(tree, names, points, latency_s), "features": _regret(ours, names, points, latency_s),
        "two_kernels": two_kernels(task, kernels, points, latency_s),
    }  # fmt: skip


def _known(
    task: SearchTask, model: PairCostModel, kernels: Sequence[MicroKernel], shapes: Sequence[Mapping[str, int]]
) -> tuple[Ints, Floats]:
    """[shapes, dims] and [shapes, kernels]."""
    points = np.array([list(task.workload.dims(shape).values()) for shape in shapes], np.int64)
    parts = [model.predict(kernels, shapes[at : at + AT_ONCE]).latency_s for at in range(0, len(shapes), AT_ONCE)]
    return points, np.concatenate(parts, axis=1).T


def _regret(tree: Tree, names: Sequence[str], points: Ints, latency_s: Floats) -> dict[str, float]:
    served_s = latency_s[np.arange(len(points)), chosen(tree, names, points)]
    return {**_statistics(served_s / latency_s.min(axis=1) - 1), "leaves": leaves(tree)}


def _statistics(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "p99": float(np.quantile(values, 0.99)), "max": float(values.max())}


def two_kernels(task: SearchTask, kernels: Sequence[MicroKernel], points: Ints, latency_s: Floats) -> dict[str, float]:
    """The gain over the best kernel alone, along the best dim at each shape."""
    sizes = points.max(axis=0) + 1
    best_s, each_s = np.full(sizes, np.inf), np.full((*sizes, len(kernels)), np.inf)
    each_s[tuple(points.T)] = latency_s
    best_s[tuple(points.T)] = latency_s.min(axis=1)
    gain = np.ones(len(points))
    for axis, symbol in enumerate(task.workload.symbols):
        if not is_outermost(task, symbol):
            continue
        for number, kernel in enumerate(kernels):
            for tile in tiles_of(task, [kernel]).get(DimExpr.var(symbol), ()):
                whole, rest = points.copy(), points.copy()
                whole[:, axis] = points[:, axis] // tile * tile
                rest[:, axis] %= tile
                both_s = each_s[(*whole.T, number)] + best_s[tuple(rest.T)]
                gain = np.maximum(gain, latency_s.min(axis=1) / both_s)
    return _statistics(gain - 1)


def is_outermost(task: SearchTask, symbol: str) -> bool:
    """Whether all outputs begin with the symbol, and operands that have it anywhere have it there alone: what a call
    would need that only moves pointers."""
    has = {each.name: [symbol in dim.variables for dim in each.dims] for each in task.workload.operands}
    with_it = {name: each for name, each in has.items() if any(each)}
    alone = all(each[0] and not any(each[1:]) for each in with_it.values())
    return alone and set(task.workload.program.outputs) <= set(with_it)


if __name__ == "__main__":
    sys.exit(main())
