"""Pictures of benchmarks, from their JSON: `python -m benchmarks.pictures RUN.json CURVE.json ... -o DIRECTORY`.

From benchmarks.kernels: speed over the shapes and the search over time, for each workload; with --keep-trials also
regret over the number of kernels, and the cost model's calibration. From benchmarks.curve: quality over tuning time.
From benchmarks.policies: the best so far over the trials, for each workload and budget.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.alternating import geomean
from benchmarks.picture import FAINT, NUMPY, OURS, TORCH

# Okabe and Ito's colours again, and a dash for each: told apart by everyone, in print as well.
RIVAL_COLOURS = (TORCH, "#009E73", "#CC79A7", "#E69F00", "#000000", FAINT, "#F0E442", NUMPY)
DASHES = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)), (0, (2, 4)))
Draw = Callable[[Axes], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "documents", type=Path, nargs="+", help="what benchmarks.kernels, .curve and .policies wrote with --json"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="a directory")
    options = parser.parse_args()
    matplotlib.rcParams.update({"font.size": 10})
    options.output.mkdir(parents=True, exist_ok=True)
    for path in options.documents:
        for name, draw in pictures_of(json.loads(path.read_text())):
            file = options.output / f"{path.stem}-{name}.png"
            save(draw, file)
            print(file)


def save(draw: Draw, file: Path) -> None:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained", facecolor="white")
    draw(figure.subplots())
    figure.savefig(file, dpi=150, metadata={"Software": None})


def pictures_of(document: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """A name and what to draw, for everything that the document has data for."""
    races = document.get("policies", [])
    for workload, budget in dict.fromkeys((row["workload"], row["budget"]) for row in races):
        rows = [row for row in races if (row["workload"], row["budget"]) == (workload, budget)]
        yield f"{workload}-{budget.replace(' ', '-')}-policies", partial(policies, rows=rows)
    for curve in document.get("curves", []):
        yield f"{curve['workload']}-quality", partial(quality, curve=curve)
    rows = document.get("rows", [])
    for workload in dict.fromkeys(row["workload"] for row in rows if "workload" in row):
        own = [row for row in rows if row["workload"] == workload]
        yield f"{workload}-speed", partial(speed, rows=own)
    for search in document.get("searches", []):
        name = search["workload"]
        if any(point["objective_s"] for point in search["progress"]):
            yield f"{name}-search", partial(best_so_far, progress=search["progress"])
        if search["results"]:
            yield f"{name}-kernels", partial(kernels, search=search)
            yield f"{name}-calibration", partial(calibration, results=search["results"])


def speed(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """GFLOP/s over the shape variable, with rivals and the tuned shapes marked; over the work if there are several."""
    variables = list(rows[0]["shape"])
    single = len(variables) == 1
    rows = sorted(rows, key=lambda row: row["shape"][variables[0]] if single else row["flops"])
    at = [row["shape"][variables[0]] if single else row["flops"] / 1e9 for row in rows]
    for index, name in enumerate(dict.fromkeys(name for row in rows for name in row["rivals_s"])):
        timed = [(x, row) for x, row in zip(at, rows, strict=True) if name in row["rivals_s"]]
        ratio = geomean([row["rivals_s"][name] / row["ours_s"] for _, row in timed])
        style: dict[str, Any] = {"color": RIVAL_COLOURS[index % 8], "linestyle": DASHES[index % 8], "linewidth": 1}
        rates = [row["flops"] / row["rivals_s"][name] / 1e9 for _, row in timed]
        axes.plot([x for x, _ in timed], rates, label=f"{name} (ours is {ratio:.2f}x in the mean)", **style)
    ours = [row["flops"] / row["ours_s"] / 1e9 for row in rows]
    axes.plot(at, ours, color=OURS, linewidth=1.6, label="shapewright")
    tuned = [(x, rate) for x, rate, row in zip(at, ours, rows, strict=True) if row["tuned_on"]]
    axes.scatter([x for x, _ in tuned], [rate for _, rate in tuned], color=OURS, s=18, label="tuned on", zorder=3)
    unit = f"{variables[0]} (a shape variable)" if single else "work of a call (GFLOP)"
    axes.set(title=rows[0]["workload"], xlabel=unit, ylabel="speed (GFLOP/s)", ylim=(0, None))
    axes.legend(loc="best", frameon=False, fontsize=8)


def best_so_far(axes: Axes, progress: Sequence[Mapping[str, Any]]) -> None:
    """Weighted time of all tuned shapes with the best kernels so far, over the search's wall time."""
    points = [point for point in progress if point["objective_s"]]
    seconds = [point["elapsed_s"] for point in points]
    axes.step(seconds, [1e3 * point["objective_s"] for point in points], where="post", color=OURS, label="best so far")
    default = 1e3 * points[-1]["default_objective_s"]
    axes.axhline(default, color=NUMPY, linestyle="--", linewidth=1, label="the library of theory")
    axes.set(title="The search", xlabel="time (s)", ylabel="weighted time of the tuned shapes (ms)")
    axes.legend(loc="upper right", frameon=False)


def kernels(axes: Axes, search: Mapping[str, Any]) -> None:
    """Regret of the best set of at most k kernels, over k."""
    mean, worst = regret_by_kernels(search)
    counts = range(1, len(mean) + 1)
    axes.plot(counts, 100 * worst, color=TORCH, linestyle="--", marker="s", markersize=4, label="worst tuned shape")
    axes.plot(counts, 100 * mean, color=OURS, marker="o", markersize=4, label="mean of the tuned shapes")
    axes.set(title="A set of kernels", xlabel="kernels in the library", ylabel="regret (%)", ylim=(0, None))
    axes.set_xticks(list(counts))
    axes.legend(loc="upper right", frameon=False)


def regret_by_kernels(search: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean and the worst regret of the chosen set at the tuned shapes for k = 1..max_kernels: its best kernel's
    latency there over that of the best finalist, less 1. Latencies as measured, else as expected."""
    from tuner.program.job.task import SearchTask  # noqa: PLC0415
    from tuner.records import MeasureResult  # noqa: PLC0415
    from tuner.search import finalize  # noqa: PLC0415 - XGBoost, only for this picture
    from tuner.search.cost_model import PairCostModel  # noqa: PLC0415
    from tuner.search.observations import Measured, latency_table, normalized  # noqa: PLC0415

    task = SearchTask.from_json(search["task"])
    results = normalized([MeasureResult.from_json(result) for result in search["results"]])
    measured, model = Measured(results), PairCostModel(task)
    model.update(results)
    # Timed side by side: the others' few readings are noisier than what a further kernel brings.
    pool = measured.candidates
    table = latency_table(task, model, measured, pool, [instance.shape for instance in task.instances])
    regrets = []
    for count in range(1, task.max_kernels + 1):
        chosen = finalize.choose_set(task, model, measured, pool, count)
        own = table[[pool.index(kernel) for kernel in chosen]].min(axis=0)
        regrets.append(own / table.min(axis=0) - 1.0)
    return np.mean(regrets, axis=1), np.max(regrets, axis=1)


def calibration(axes: Axes, results: Sequence[Mapping[str, Any]]) -> None:
    """Measured over predicted latency of each trial of the search; the rank correlation of each round in the legend."""
    timed = [r for r in results if r["latency_s"] and r["predicted_s"] and r["phase"] != "final"]
    rounds = sorted({result["round"] for result in timed})
    shades = matplotlib.colormaps["cividis"](np.linspace(0, 0.95, max(1, len(rounds))))
    shown = {*rounds[:3], *rounds[-3:]}
    for number, shade in zip(rounds, shades, strict=True):
        own = [result for result in timed if result["round"] == number]
        predicted = np.array([1e6 * result["predicted_s"] for result in own])
        measured = np.array([1e6 * result["latency_s"] for result in own])
        rank = rank_correlation(predicted, measured)
        label = f"round {number}: rank correlation {rank:.2f}" if number in shown and rank is not None else None
        axes.scatter(predicted, measured, s=12, color=[shade], label=label)
    if timed:
        ends = [1e6 * pick(result["predicted_s"] for result in timed) for pick in (min, max)]
        axes.plot(ends, ends, color=NUMPY, linewidth=1)
    axes.set(title="The cost model", xlabel="predicted latency (us)", ylabel="measured latency (us)")
    axes.set(xscale="log", yscale="log")
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def rank_correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Spearman's; ties share their mean rank. None where it is not defined: fewer than two pairs, or all the same."""
    ranks = [_ranks(values) for values in (first, second)]
    if len(first) < 2 or any(np.ptp(each) == 0 for each in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse])


def quality(axes: Axes, curve: Mapping[str, Any]) -> None:
    """Speed relative to the best rival (to theory where none was timed) over the time that tuning took."""
    points = curve["points"]
    figure = "geomean_vs_best" if points[0]["geomean_vs_best"] else "geomean_vs_theory"
    searched = [point for point in points if point["seconds"]]
    seconds, ratios = [point["elapsed_s"] for point in searched], [point[figure] for point in searched]
    axes.plot(seconds, ratios, color=OURS, marker="o", label="searched")
    axes.axhline(points[0][figure], color=NUMPY, linestyle="--", label="the library of theory, no trials")
    if (rival := curve.get("metaschedule")) and rival[figure]:
        axes.axhline(rival[figure], color=TORCH, linestyle="-.", label="MetaSchedule, the longest time, tuned shapes")
    against = "the best rival" if figure == "geomean_vs_best" else "theory"
    axes.set(title=curve["workload"], xlabel="tuning time (s)", ylabel=f"speed relative to {against}")
    axes.legend(loc="lower right", frameon=False)


def policies(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Weighted time of the tuned shapes with the best kernels so far, over the trials: the median over the seeds, which
    ends where the first of them did."""
    for index, name in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        curves = [row["curve"] for row in rows if row["policy"] == name]
        length = min(map(len, curves))
        times = np.array([[np.nan if time is None else time for time in curve[:length]] for curve in curves])
        style: dict[str, Any] = {"color": RIVAL_COLOURS[index % 8], "linestyle": DASHES[index % 8]}
        # Until every instance has a time there is none of them all.
        axes.plot(range(1, length + 1), 1e3 * np.median(times, axis=0), label=name, **style)
    axes.set(title=f"{rows[0]['workload']}, {rows[0]['budget']}", xlabel="trials")
    axes.set(ylabel="weighted time of the tuned shapes (ms)")
    axes.legend(loc="upper right", frameon=False)


if __name__ == "__main__":
    main()
