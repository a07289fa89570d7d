"""The picture of a search in the README, from what the demo wrote; and what other pictures share with it.

    python -m examples.demo --json demo.json
    python -m benchmarks.picture demo.json -o docs/images/search.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.turns import geomean
from tuner.records import MeasureResult

# Okabe and Ito's colours, and a dash for each: told apart by everyone, in print as well.
OURS, NUMPY, TORCH, FAINT = "#0072B2", "#999999", "#D55E00", "#56B4E9"
RIVAL_COLOURS = (TORCH, "#009E73", "#CC79A7", "#E69F00", "#000000", FAINT, "#F0E442", NUMPY)
DASHES = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)), (0, (2, 4)))
COLOURS = {"numpy": NUMPY, "torch": TORCH, "theory": FAINT}
Rows = Sequence[Mapping[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="what the demo wrote with --json")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    data = json.loads(options.demo.read_text())
    matplotlib.rcParams.update({"svg.fonttype": "none", "font.size": 10, "svg.hashsalt": "shapewright"})
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    best_so_far(left, data["trials"])
    speed(right, data["rows"])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, metadata={"Date": None})


def best_so_far(axes: Axes, trials: list[dict[str, Any]]) -> None:
    """Each trial's speed relative to the default at its instance, and the best so far in the mean of all instances."""
    results = [MeasureResult.from_json(trial.get("result", trial)) for trial in trials]
    timed = [(number, result) for number, result in enumerate(results, start=1) if result.latency_s]
    default: dict[str, float] = {}
    for _, result in timed:
        if result.is_theory:
            name = str(result.instance)
            default[name] = min(result.latency_s or 0.0, default.get(name, float("inf")))
    best, line, speeds = dict(default), [], []
    for _, result in timed:
        name, latency_s = str(result.instance), result.latency_s or 0.0
        best[name] = min(best.get(name, latency_s), latency_s)
        line.append(geomean([default[each] / best[each] for each in default]))
        speeds.append(default[name] / latency_s)
    numbers = [number for number, _ in timed]
    axes.scatter(numbers, speeds, s=9, color=FAINT, label="one trial")
    axes.step(numbers, line, where="post", color=OURS, label="best so far, mean of the tuned shapes")
    axes.axhline(1.0, color=NUMPY, linewidth=0.8)
    axes.set(title="The search", xlabel="trials", ylabel="speed relative to the library of theory", ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)


def speed(axes: Axes, rows: Rows) -> None:
    """GFLOP/s over the shape variable for the library and its rivals; the tuned shapes are marked."""
    shapes = [row["shape"] for row in rows]
    for name in rows[0]["rivals_s"]:
        rival_line(axes, shapes, rows, name, {"color": COLOURS.get(name, NUMPY)})
    marked_speed(axes, shapes, rows)
    axes.set(title="The library, one thread", xlabel="T (m = 16 T)", ylabel="GFLOP/s", ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)


def rival_line(axes: Axes, at: Sequence[float], rows: Rows, name: str, style: Mapping[str, Any]) -> None:
    """A rival's GFLOP/s where it was timed; the legend has how many times faster ours is in the mean."""
    timed = [(x, row) for x, row in zip(at, rows, strict=True) if name in row["rivals_s"]]
    ratio = geomean([row["rivals_s"][name] / row["ours_s"] for _, row in timed])
    rates = [row["flops"] / row["rivals_s"][name] / 1e9 for _, row in timed]
    axes.plot([x for x, _ in timed], rates, label=f"{name} (ours is {ratio:.2f}x in the mean)", linewidth=1, **style)


def marked_speed(axes: Axes, at: Sequence[float], rows: Rows) -> None:
    """Our own GFLOP/s, with dots where the search has seen the shape."""
    rates = [row["flops"] / row["ours_s"] / 1e9 for row in rows]
    axes.plot(at, rates, color=OURS, linewidth=1.6, label="shapewright")
    tuned = [(x, rate) for x, rate, row in zip(at, rates, rows, strict=True) if row["tuned_on"]]
    axes.scatter([x for x, _ in tuned], [rate for _, rate in tuned], color=OURS, s=18, label="tuned on", zorder=3)


if __name__ == "__main__":
    main()
