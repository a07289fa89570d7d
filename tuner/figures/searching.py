"""Figures of how a search went: the best so far, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from tuner.figures import style
from tuner.figures.columns import KINDS, Floats, Ints
from tuner.figures.thinning import changes
from tuner.figures.view import SearchView
from tuner.program.job.task import SearchTask
from tuner.records import Baselines
from tuner.search.summary import SearchSummary, Stage

MAX_BARS = 200
"""Rounds that have a bar each; where there are more, each bar is of several."""
WIDE = 20.0
"""Times whose ratio is above this are drawn on a logarithmic axis."""


def best_over_time(view: SearchView) -> go.Figure:
    return best_over({"": view}, elapsed_s, "Time of the search (s)")


def best_over_trials(view: SearchView) -> go.Figure:
    return best_over({"": view}, trials, "Trials (count)")


def elapsed_s(summary: SearchSummary) -> float:
    return summary.elapsed_s


def trials(summary: SearchSummary) -> float:
    return summary.trials


def best_over(views: Mapping[str, SearchView], against: Callable[[SearchSummary], float], title: str) -> go.Figure:
    """Best so far over a figure of the search, a line for each view; names are left out where empty."""
    curves = [(label, view, curve) for label, view in views.items() if (curve := _curve(view.progress, against))]
    if not curves:
        return style.message("No time of all instances: the default has not been measured.")
    figure, ends = style.blank(height_px=240 + 60 * len(curves)), [0.0, max(curve.x[-1] for _, _, curve in curves)]
    for number, (label, view, curve) in enumerate(curves):
        prefix = f"{style.plain(label)}: " if label else ""
        colour = style.SERIES[number % len(style.SERIES)]
        dash = style.DASHES[number % len(style.DASHES)] if len(curves) > 1 else "solid"
        figure.add_trace(_steps(curve, f"{prefix}best so far", colour, dash))
        # Those of more than two would hide the curves.
        if len(curves) <= 2:
            own = None if len(curves) == 1 else colour
            figure.add_traces(_levels(view, curve, ends, prefix, own))
    heights = [value for trace in figure.data for value in trace.y if value is not None]
    figure.update_xaxes(title_text=title, rangemode="tozero")
    figure.update_yaxes(title_text="Weighted time (ms)", **style.axis(heights, WIDE))
    return figure.update_layout(hovermode="x unified")


@dataclass(frozen=True)
class _Curve:
    x: Floats
    best_ms: Floats
    default_ms: Floats
    phases: list[str]


def _curve(progress: Sequence[SearchSummary], against: Callable[[SearchSummary], float]) -> _Curve | None:
    """The progress from the end of the theory phase on: before it the default is not measured at every instance.

    What earlier searches had found is timed before that, and is where the curve begins.
    """
    known = [(summary, summary.objective_s) for summary in progress if summary.objective_s is not None]
    theory = [index for index, (summary, _) in enumerate(known) if summary.phase == Stage.THEORY]
    reused = [(summary, best_s) for summary, best_s in known if summary.phase == Stage.KNOWN]
    known = [*reused, *known[theory[-1] :]] if theory else known
    if not known:
        return None
    return _Curve(
        np.array([against(summary) for summary, _ in known], np.float64),
        np.array([1e3 * objective_s for _, objective_s in known], np.float64),
        np.array([1e3 * (summary.default_objective_s or np.nan) for summary, _ in known], np.float64),
        [summary.phase for summary, _ in known],
    )


def _steps(curve: _Curve, name: str, colour: str, dash: str) -> go.Scatter:
    marks: Ints = np.unique(curve.phases, return_inverse=True)[1].astype(np.int64)
    kept = changes(curve.best_ms, marks)
    return go.Scatter(
        x=style.rounded(curve.x[kept]),
        y=style.rounded(curve.best_ms[kept]),
        text=[style.plain(curve.phases[index]) for index in kept],
        name=name,
        mode="lines+markers" if len(kept) == 1 else "lines",
        line={"shape": "hv", "color": colour, "dash": dash, "width": 2.5},
        hovertemplate="%{y:.4g} ms (%{text})",
    )


def _levels(view: SearchView, curve: _Curve, ends: list[float], prefix: str, colour: str | None) -> list[go.Scatter]:
    """The default and the baselines as horizontal lines."""
    levels = [("default (theory)", float(curve.default_ms[-1]), style.DEFAULT)]
    for number, (name, seconds) in enumerate(library_objectives(view.task, view.baselines).items()):
        levels.append((name, 1e3 * seconds, style.RIVALS[number % len(style.RIVALS)]))
    return [
        go.Scatter(
            x=style.rounded(ends),
            y=style.rounded([level, level]),
            name=f"{prefix}{name}",
            mode="lines",
            line={"color": colour or own, "dash": style.DASHES[1 + number % 5], "width": 1.5},
            hovertemplate="%{y:.4g} ms",
        )
        for number, (name, level, own) in enumerate(levels)
        if np.isfinite(level)
    ]


def library_objectives(task: SearchTask, baselines: Baselines) -> dict[str, float]:
    """The weighted time of all instances in seconds with each library that was timed at every one of them."""
    times: dict[str, dict[tuple[tuple[str, int], ...], float]] = {}
    for point in baselines.points:
        times.setdefault(point.name, {})[point.instance.values] = point.latency_s
    return {
        library_name(name): sum(instance.weight * known[instance.values] for instance in task.instances)
        for name, known in times.items()
        if all(instance.values in known for instance in task.instances)
    }


def library_name(name: str) -> str:
    """A baseline's name as figures write it."""
    return {"numpy": "NumPy"}.get(name, style.plain(name))


def failures(view: SearchView) -> go.Figure:
    """Failed trials by kind over the rounds, stacked."""
    columns = view.columns
    if not (columns.kind >= 0).any():
        count = len(view.results)
        return style.message(f"Nothing failed in {count} trials." if count else "There are no trials.")
    rounds = int(columns.round.max()) + 1
    wide = -(-rounds // MAX_BARS)
    figure = style.blank()
    bars = np.arange(0, rounds, wide)
    for number, kind in enumerate(KINDS):
        failed = np.bincount(columns.round[columns.kind == number] // wide, minlength=len(bars))
        if failed.any():
            figure.add_trace(_bars(bars, failed, kind.value.replace("_", " "), number))
    title = "Round (number)" if wide == 1 else f"First of {wide} rounds (number)"
    highest = max(sum(trace.y[bar] for trace in figure.data) for bar in range(len(bars)))
    figure.update_xaxes(title_text=title, **style.whole(rounds))
    figure.update_yaxes(title_text="Failed trials (count)", rangemode="tozero", **style.whole(highest))
    return figure.update_layout(barmode="stack", hovermode="x unified", showlegend=True)


def _bars(rounds: Ints, count: NDArray[np.integer[Any]], name: str, number: int) -> go.Bar:
    looks = {"color": style.SERIES[number % 6], "pattern": {"shape": style.PATTERNS[number % 6], "solidity": 0.35}}
    return go.Bar(x=rounds.tolist(), y=count.tolist(), name=name, marker=looks, hovertemplate="%{y}")
