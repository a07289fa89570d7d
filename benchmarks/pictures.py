"""Pictures of benchmarks, from their JSON: `python -m benchmarks.pictures RUN.json ... -o DIRECTORY`.

From benchmarks.kernels and benchmarks.operators: speed over the shapes, for each workload. From benchmarks.theory with
several lengths of searches: quality over tuning time. From benchmarks.policies: the best so far over the trials, for
each workload and budget. What a single search did, its best so far, its cost model and its kernels, is drawn by
`shapewright report` and the dashboard.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness.turns import geomean
from benchmarks.picture import DASHES, NUMPY, OURS, RIVAL_COLOURS, marked_speed, rival_line
from benchmarks.theory import SEARCHED, TYPICAL

Draw = Callable[[Axes], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, nargs="+", help="what benchmarks wrote with --json")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a directory")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for path in options.documents:
        for name, draw in pictures_of(json.loads(path.read_text())):
            file = options.output / f"{path.stem}-{name}.png"
            figure = Figure(figsize=(6.4, 4.0), layout="constrained", facecolor="white")
            draw(figure.subplots())
            figure.savefig(file, dpi=150, metadata={"Software": None})
            print(file)


def pictures_of(document: Mapping[str, Any]) -> Iterator[tuple[str, Draw]]:
    """A name and what to draw, for everything that the document has data for."""
    races = document.get("policies", [])
    for workload, budget in dict.fromkeys((row["workload"], row["budget"]) for row in races):
        rows = [row for row in races if (row["workload"], row["budget"]) == (workload, budget)]
        yield f"{workload}-{budget.replace(' ', '-')}-policies", partial(policies, rows=rows)
    rows = document.get("rows", [])
    for workload, points in document.get("points", {}).items():
        yield f"{workload}-quality", partial(quality, rows=_of(rows, workload), points=points)
    for workload in dict.fromkeys(row["workload"] for row in rows if "rivals_s" in row):
        yield f"{workload}-speed", partial(speed, rows=_of(rows, workload))


def _of(rows: Sequence[Mapping[str, Any]], workload: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["workload"] == workload]


def speed(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """GFLOP/s over the shape variable, with rivals and the tuned shapes marked; over the work if there are several."""
    variables = list(rows[0]["shape"])
    single = len(variables) == 1
    rows = sorted(rows, key=lambda row: row["shape"][variables[0]] if single else row["flops"])
    at = [row["shape"][variables[0]] if single else row["flops"] / 1e9 for row in rows]
    for index, name in enumerate(dict.fromkeys(name for row in rows for name in row["rivals_s"])):
        style = {"color": RIVAL_COLOURS[index % 8], "linestyle": DASHES[index % 8]}
        rival_line(axes, at, rows, name, style)
    marked_speed(axes, at, rows)
    unit = f"{variables[0]} (a shape variable)" if single else "work of a call (GFLOP)"
    axes.set(title=rows[0]["workload"], xlabel=unit, ylabel="speed (GFLOP/s)", ylim=(0, None))
    axes.legend(loc="best", frameon=False, fontsize=8)


def quality(axes: Axes, rows: Sequence[Mapping[str, Any]], points: Mapping[str, Mapping[str, Any]]) -> None:
    """Speed relative to the best rival (to theory where none was timed) over the time that tuning took."""
    ratios = {name: geomean([_reference_s(row) / row["s"][name] for row in rows]) for name in points}
    searched = [name for name in points if name == SEARCHED or name.endswith(" s")]
    seconds = [points[name]["elapsed_s"] for name in searched]
    axes.plot(seconds, [ratios[name] for name in searched], color=OURS, marker="o", label="searched")
    axes.axhline(ratios[TYPICAL], color=NUMPY, linestyle="--", label="the library of theory, no trials")
    against = "the best rival" if len(rows[0]["s"]) > len(rows[0]["libraries"]) else "theory"
    axes.set(title=rows[0]["workload"], xlabel="tuning time (s)", ylabel=f"speed relative to {against}")
    axes.legend(loc="lower right", frameon=False)


def _reference_s(row: Mapping[str, Any]) -> float:
    """The fastest rival at a shape; theory where none was timed."""
    rivals = [seconds for name, seconds in row["s"].items() if name not in row["libraries"]]
    return float(min(rivals, default=row["s"][TYPICAL]))


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
