"""The picture of a search in the README, from what the demo wrote.

    python -m examples.demo --json demo.json
    python -m examples.picture demo.json -o docs/images/search.svg
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

# Okabe and Ito's colours: told apart by everyone.
OURS, NUMPY, FAINT = "#0072B2", "#999999", "#56B4E9"
COLOURS = {"numpy": NUMPY, "torch": "#D55E00", "theory": FAINT}


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


def speed(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """GFLOP/s over the shape variable; the tuned shapes are marked, and the legend has how many times faster ours is
    than each rival in the mean."""
    at = [row["shape"] for row in rows]
    for name in rows[0]["rivals_s"]:
        ratio = geomean([row["rivals_s"][name] / row["ours_s"] for row in rows])
        rates = [row["flops"] / row["rivals_s"][name] / 1e9 for row in rows]
        label = f"{name} (ours is {ratio:.2f}x in the mean)"
        axes.plot(at, rates, label=label, linewidth=1, color=COLOURS.get(name, NUMPY))
    rates = [row["flops"] / row["ours_s"] / 1e9 for row in rows]
    axes.plot(at, rates, color=OURS, linewidth=1.6, label="shapewright")
    tuned = [(x, rate) for x, rate, row in zip(at, rates, rows, strict=True) if row["tuned_on"]]
    axes.scatter([x for x, _ in tuned], [rate for _, rate in tuned], color=OURS, s=18, label="tuned on", zorder=3)
    axes.set(title="The library, one thread", xlabel="T (m = 16 T)", ylabel="GFLOP/s", ylim=(0, None))
    axes.legend(loc="lower right", frameon=False)


if __name__ == "__main__":
    main()
