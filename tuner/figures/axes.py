"""Which axes of a space matter, and what each of their choices is worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from tuner.errors import InvalidInput
from tuner.figures import style
from tuner.figures.columns import Floats
from tuner.figures.thinning import MAX_POINTS, extremes
from tuner.figures.view import SearchView
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject
from tuner.schedule import space_of
from tuner.schedule.space import MicroKernel, readable

SLICES = 6
"""Axes that have a slice."""
COLUMNS = 2
MAX_KERNELS = 1500
"""Lines of parallel coordinates."""
LITTLE = 0.2
"""A model that explains less than this of what it has not seen says little of axes."""


@dataclass(frozen=True)
class Chosen:
    """Measured kernels of the commonest rule with their speed [kernels], the best's being 1, and what each chose
    [kernels, axes]: of the axes that vary."""

    rule: str
    kernels: list[MicroKernel]
    speed: Floats
    axes: list[str]
    values: Floats


def chosen_of(view: SearchView) -> Chosen:
    columns, speed = view.columns, view.columns.relative()
    measured = [int(index) for index in np.flatnonzero(np.isfinite(speed))]
    rules = {index: columns.kernels[index].rule for index in measured}
    if not rules:
        return Chosen("", [], np.zeros(0), [], np.zeros((0, 0)))
    common = Counter(rules.values()).most_common(1)[0][0]
    kept = [index for index in measured if rules[index] == common]
    kernels = [columns.kernels[index] for index in kept]
    axes = sorted({name for kernel in kernels for name, _ in kernel.values})
    values = np.array([[kernel.get(name) for name in axes] for kernel in kernels], np.float64)
    varies = np.flatnonzero((values != values[:1]).any(axis=0))
    return Chosen(common, kernels, speed[kept], [axes[column] for column in varies], values[:, varies])


def meanings_of(task: SearchTask) -> dict[str, dict[str, str]]:
    """What a choice on each axis means, by rule and by the axis' name in records: from the space of the task itself.

    Empty for a task without a target, and for one that this version has no rule for.
    """
    if task.target is None:
        return {}
    try:
        spaces = space_of(task).spaces
    except InvalidInput:
        return {}
    return {space.rule: {axis.name: axis.doc for axis in space.axes} for space in spaces}


def axis_importance(view: SearchView) -> go.Figure:
    """A bar for each axis, the most important on top."""
    found = view.importance
    if found is None:
        return style.message("Not known: a search computes it as it ends, from two dozen measured pairs on.")
    docs = meanings_of(view.task).get(found.rule, {})
    axes = found.axes[::-1]
    figure = style.blank(height_px=120 + 24 * len(axes))
    figure.add_trace(
        go.Bar(
            x=style.rounded([100 * axis.share for axis in axes], 4),
            y=[style.plain(readable(axis.name)) for axis in axes],
            orientation="h",
            marker={"color": style.OURS if found.explained >= LITTLE else style.NEUTRAL},
            text=[f"{100 * np.expm1(axis.effect):.3g} %" for axis in axes],
            customdata=[style.plain(docs.get(axis.name, "")) for axis in axes],
            hovertemplate="%{y}: %{customdata}<br>%{x:.3g} % of all effects; changes the time by %{text} on average"
            "<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="Share of all effects (%)", rangemode="tozero")
    figure.update_yaxes(title_text="Axis (name)", type="category")
    little = "" if found.explained >= LITTLE else ", so the order is uncertain"
    # Two lines, which fit a phone.
    explains = f"the model explains {100 * found.explained:.0f} %<br>of the unseen variance{little}"
    told = f"{style.plain(found.rule)}: {explains}"
    return style.titled(figure, told, 30 + style.LINE_PX * told.count("<br>"))


def slices(view: SearchView) -> go.Figure:
    """A panel for each of the axes that matter most: the kernels' speed at each choice."""
    chosen = chosen_of(view)
    if not chosen.axes:
        return style.message("No kernels to compare: two that differ must have been measured.")
    order = _by_importance(view, chosen)[:SLICES]
    rows, wide = -(-len(order) // COLUMNS), min(len(order), COLUMNS)
    space = {"vertical_spacing": 0.4 / (rows + 1), "horizontal_spacing": 0.06}
    figure = style.blank(rows, 100 + 215 * rows, cols=wide, shared_xaxes=False, shared_yaxes="all", **space)
    docs = meanings_of(view.task).get(chosen.rule, {})
    for number, axis in enumerate(order):
        row, column = number // COLUMNS + 1, number % COLUMNS + 1
        figure.add_traces(_slice(view, chosen, axis, docs), rows=row, cols=column)
        title = f"{style.plain(readable(chosen.axes[axis]))}<br>(choice)"
        figure.update_xaxes(title_text=title, type="category", row=row, col=column)
    figure.update_yaxes(range=[0, 105])
    figure.update_yaxes(title_text="Speed (% of the best)", col=1)
    return figure.update_layout(hovermode="closest", showlegend=False)


def _by_importance(view: SearchView, chosen: Chosen) -> list[int]:
    """Columns of ``chosen``: by what the model says, and by the spread of the mean speeds where it says nothing."""
    known = {axis.name: axis.effect for axis in view.importance.axes} if view.importance else {}
    return sorted(
        range(len(chosen.axes)), key=lambda column: (-known.get(chosen.axes[column], 0.0), -_spread(chosen, column))
    )


def _spread(chosen: Chosen, column: int) -> float:
    values = chosen.values[:, column]
    means = [chosen.speed[values == value].mean() for value in np.unique(values)]
    return float(max(means) - min(means))


def _slice(view: SearchView, chosen: Chosen, column: int, docs: Mapping[str, str]) -> list[go.Scatter]:
    """A dot for each kernel, and a line along the best of each choice."""
    values, name = chosen.values[:, column], chosen.axes[column]
    choices = np.unique(values)
    order = np.argsort(values, kind="stable")
    kept = order[extremes(chosen.speed[order], MAX_POINTS // SLICES)]
    best = [float(chosen.speed[values == value].max()) for value in choices]
    labels = {float(value): f"{value:g}" for value in choices}
    about = f"{readable(name)}: {docs.get(name, '')}"
    return [
        go.Scatter(
            x=[labels[float(value)] for value in choices],
            y=style.rounded([100 * each for each in best], 4),
            mode="lines",
            line={"color": style.NEUTRAL, "width": 1.5},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[labels[float(values[index])] for index in kept],
            y=style.rounded(100 * chosen.speed[kept], 4),
            mode="markers",
            marker={"color": style.OURS, "size": 5, "opacity": 0.5},
            customdata=[chosen.kernels[index].id for index in kept],
            text=[style.plain(view.label(chosen.kernels[index])) for index in kept],
            hovertemplate=f"%{{x}}: %{{y:.3g}} % of the best's speed, %{{text}}<br>{style.plain(about)}<extra></extra>",
        ),
    ]


def coordinates(view: SearchView) -> JsonObject:
    """Parallel coordinates as data, for a page that draws lines which can be brushed: axes with what a choice means,
    the most important first; kernels with the index of each choice and their speed, the fastest first."""
    chosen = chosen_of(view)
    order = _by_importance(view, chosen)
    docs, fastest = meanings_of(view.task).get(chosen.rule, {}), np.argsort(-chosen.speed, kind="stable")
    kept = fastest[np.unique(np.linspace(0, len(fastest) - 1, min(len(fastest), MAX_KERNELS)).astype(np.int64))]
    choices = [np.unique(chosen.values[:, column]) for column in order]
    return {
        "rule": chosen.rule,
        "axes": [
            {
                "name": readable(chosen.axes[column]),
                "doc": docs.get(chosen.axes[column], ""),
                "choices": [int(value) for value in own],
            }
            for column, own in zip(order, choices, strict=True)
        ],
        "kernels": [
            {
                "id": chosen.kernels[index].id,
                "label": view.label(chosen.kernels[index]),
                "speed": float(f"{chosen.speed[index]:.4g}"),
                "choices": [
                    int(np.searchsorted(own, chosen.values[index, column]))
                    for column, own in zip(order, choices, strict=True)
                ],
            }
            for index in kept
        ],
        "measured": len(chosen.kernels),
    }
