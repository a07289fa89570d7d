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
    curves = [(label, view, curve) for label, view in views.items() if (curve := _curve(view, against))]
    if not curves:
        return style.message("No time of all instances: the default has not been measured.")
    figure, ends = style.blank(height_px=240 + 60 * len(curves)), [0.0, max(curve.x[-1] for _, _, curve in curves)]
    for number, (label, view, curve) in enumerate(curves):
        prefix = f"{style.plain(label)}: " if label else ""
        colour = style.SERIES[number % len(style.SERIES)]
        dash = style.DASHES[number % len(style.DASHES)] if len(curves) > 1 else "solid"
        figure.add_traces(_band(curve, colour) if len(curves) == 1 else [])
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
    """``best_ms`` never rises: of each kernel it takes the latency that all of its readings have settled by now, so a
    lucky first reading is no step down that is taken back. ``range_ms``: between the fastest and the slowest of the
    readings that it is made of."""

    x: Floats
    best_ms: Floats
    range_ms: tuple[Floats, Floats]
    default_ms: float
    phases: list[str]


def _curve(view: SearchView, against: Callable[[SearchSummary], float]) -> _Curve | None:
    """From the end of the theory phase on: before it the default is not measured at every instance.

    What earlier searches had found is timed before that, and is where the curve begins.
    """
    known = [summary for summary in view.progress if summary.objective_s is not None]
    theory = [index for index, summary in enumerate(known) if summary.phase == Stage.THEORY]
    reused = [summary for summary in known if summary.phase == Stage.KNOWN]
    known = [*reused, *known[theory[-1] :]] if theory else known
    if not known:
        return None
    x = np.array([against(summary) for summary in known], np.float64)
    phases = [summary.phase for summary in known]
    if not len(view.results):
        # Of the progress alone.
        best_ms = np.minimum.accumulate([1e3 * (summary.objective_s or np.nan) for summary in known])
        default_ms = 1e3 * (known[-1].default_objective_s or np.nan)
        return _Curve(x, best_ms, (best_ms, best_ms), default_ms, phases)
    best_ms, low_ms, high_ms, default_ms = _settled(view, [summary.trials for summary in known])
    kept = np.isfinite(best_ms)
    if not kept.any():
        return None
    shown = [phase for phase, keep in zip(phases, kept, strict=True) if keep]
    return _Curve(x[kept], best_ms[kept], (low_ms[kept], high_ms[kept]), default_ms, shown)


def _settled(view: SearchView, after: Sequence[int]) -> tuple[Floats, Floats, Floats, float]:
    """The weighted time of the best kernels among the first results, ``after`` so many, the fastest and the slowest
    readings that it may be made of, and the default's time; in ms."""
    columns, count = view.columns, len(view.task.instances)
    kernel, instance, latency = columns.medians
    pairs, width = kernel * max(1, len(columns.instances)) + instance, max(1, len(columns.instances))
    of_result = np.searchsorted(pairs, columns.kernel * width + columns.instance)
    timed = np.flatnonzero(~np.isnan(columns.latency_s))
    first, low, high = np.full(len(pairs), len(columns.kernel)), np.full(len(pairs), np.inf), np.zeros(len(pairs))
    np.minimum.at(first, of_result[timed], timed)
    # Where there is a side-by-side timing the latency is of that alone.
    decided = timed[columns.final[timed] | ~np.isin(of_result[timed], of_result[timed][columns.final[timed]])]
    np.minimum.at(low, of_result[decided], columns.latency_s[decided])
    np.maximum.at(high, of_result[decided], columns.latency_s[decided])
    default_s = columns.default[1][:count]
    compared = np.isfinite(default_s) if np.isfinite(default_s).any() else np.ones(count, np.bool_)
    total = np.zeros((3, len(after)))
    for at in np.flatnonzero(compared):
        own = np.flatnonzero((instance == at) & columns.sound[kernel])
        own = own[np.argsort(first[own], kind="stable")]
        if not len(own):
            total[:] = np.nan
            break
        leads = own[_leading(latency[own])]
        place = np.searchsorted(first[own], np.asarray(after), side="left") - 1
        figures = np.array([latency[leads], low[leads], high[leads]])
        total += view.task.instances[at].weight * np.where(place >= 0, figures[:, np.maximum(place, 0)], np.nan)
    weights = np.array([each.weight for each in view.task.instances])
    default_ms = 1e3 * float(default_s[compared] @ weights[compared])
    best_ms, low_ms, high_ms = 1e3 * total
    return best_ms, low_ms, high_ms, default_ms


def _leading(latency: Floats) -> Ints:
    """The index of the least so far, at each place."""
    is_new = latency < np.concatenate(([np.inf], np.minimum.accumulate(latency)[:-1]))
    return np.maximum.accumulate(np.where(is_new, np.arange(len(latency)), 0))


def _band(curve: _Curve, colour: str) -> list[go.Scatter]:
    """The range of the readings that the curve is made of, as an area."""
    low, high = curve.range_ms
    if not (high > low).any():
        return []
    x = np.repeat(curve.x, 2)[1:]
    edges = [np.repeat(edge, 2)[:-1] for edge in (low, high)]
    looks = {"mode": "lines", "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "showlegend": False}
    lower, upper = (go.Scatter(x=style.rounded(x), y=style.rounded(edge), **looks) for edge in edges)
    upper.update(fill="tonexty", opacity=0.25, name="range of its readings", showlegend=True)
    return [lower, upper]


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
    levels = [("default (theory)", curve.default_ms, style.DEFAULT)]
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
