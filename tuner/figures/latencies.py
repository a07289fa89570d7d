"""Figures of latencies: what a library takes at every shape, and one kernel's times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Floats
from tuner.figures.searching import library_name
from tuner.figures.shapes import Kernels, MarkerStyle, ShapeAxis, about, kernels_of, points, served
from tuner.figures.thinning import extremes
from tuner.figures.view import SearchView
from tuner.program.language.workload import WorkloadInstance

US = 1e6
THEORY = "default (theory)"
RIVAL_SYMBOLS = ("diamond-open", "star-open", "hexagon-open")


def latency_by_shape(view: SearchView) -> go.Figure:
    return latency_of({"": view})


def latency_of(views: Mapping[str, SearchView]) -> go.Figure:
    """Latency over the shape with what each view's library runs, and below it that kernel's regret."""
    if len({tuple(var.name for var in view.task.shape_vars) for view in views.values()}) > 1:
        return style.message("These jobs have different shape variables: there is no axis that both have.")
    traces, regrets = list[go.Scatter](), list[go.Scatter]()
    for number, (label, view) in enumerate(views.items()):
        prefix = f"{style.plain(label)}: " if label else ""
        own = style.SERIES[number % len(style.SERIES)] if len(views) > 1 else None
        traces += [*_expected(view, prefix, number), *_measured(view, prefix, number)]
        traces += _default_and_baselines(view, prefix, own)
        regrets += _regret(view, prefix, number)
    heights = [y for trace in traces for y in trace.y]
    if not heights:
        return style.message("No latencies: nothing has been measured.")
    # Without any regret there is no panel of it, which would be a gap under an axis without numbers.
    rows = 1 + any(len(trace.x) for trace in regrets)
    height_px = 220 + 200 * (rows - 1) + 80 * len(views)
    figure = style.blank(rows, height_px, **({"row_heights": [0.7, 0.3]} if rows > 1 else {}))
    figure.add_traces(traces, **({"rows": 1, "cols": 1} if rows > 1 else {}))
    axis = ShapeAxis(next(iter(views.values())).task)
    if rows > 1:
        figure.add_traces(regrets, rows=2, cols=1)
        figure.update_yaxes(title_text="Regret (%)", rangemode="tozero", row=2)
    figure.update_xaxes(**axis.scale([x for trace in figure.data for x in trace.x]))
    figure.update_xaxes(title_text=axis.title, **({"row": rows} if rows > 1 else {}))
    figure.update_yaxes(title_text="Latency (µs)", **style.axis(heights), **({"row": 1} if rows > 1 else {}))
    return figure.update_layout(hovermode=axis.hovermode)


def _expected(view: SearchView, prefix: str, number: int) -> list[go.Scatter]:
    """What the library's dispatch table expects at every shape."""
    dispatcher = view.dispatcher
    if dispatcher is None or not dispatcher.table:
        return []
    axis = ShapeAxis(view.task)
    x = axis.positions([row.shape for row in dispatcher.table])
    y = np.array([US * row.predicted_latency_s for row in dispatcher.table])
    order = np.argsort(x, kind="stable")
    kept = order[extremes(y[order])]
    rows = [dispatcher.table[index] for index in kept]
    colour = style.SERIES[number % len(style.SERIES)]
    ids = [kernel.id for kernel in dispatcher.kernels]
    return [
        go.Scatter(
            x=style.rounded(x[kept]),
            y=style.rounded(y[kept]),
            name=f"{prefix}library, expected",
            mode="lines" if axis.variable and len(rows) > 1 else "markers",
            line={"color": colour, "dash": style.DASHES[number % len(style.DASHES)], "width": 2},
            marker={"color": colour, "size": 4},
            text=[about(view, row.shape, dispatcher.kernels[row.kernel]) for row in rows],
            customdata=[ids[row.kernel] for row in rows],
            hovertemplate="%{y:.4g} µs, %{text}",
        )
    ]


def _measured(view: SearchView, prefix: str, number: int) -> list[go.Scatter]:
    kernels, times = served(view)
    looks = MarkerStyle(f"{prefix}{served_name(view)}", *_colour_and_symbol(number))
    return _latency_points(view, view.task.instances, times, kernels, looks)


def _default_and_baselines(view: SearchView, prefix: str, own: str | None) -> list[go.Scatter]:
    """The default's points and those of other libraries. ``own``: the one colour of a view among several."""
    kernels, times = view.columns.default
    looks = MarkerStyle(f"{prefix}{THEORY}", own or style.DEFAULT, "x")
    traces = _latency_points(view, view.columns.instances, times, kernels_of(view, kernels), looks)
    for number, (library, timed) in enumerate(libraries(view).items()):
        at, seconds = zip(*timed, strict=True)
        looks = MarkerStyle(f"{prefix}{library}", own or style.RIVALS[number % 3], RIVAL_SYMBOLS[number % 3])
        traces += _latency_points(view, at, np.array(seconds), (), looks)
    return traces


def libraries(view: SearchView) -> dict[str, list[tuple[WorkloadInstance, float]]]:
    """The latencies of the baselines in seconds, by the library's name as text of a figure."""
    latencies: dict[str, list[tuple[WorkloadInstance, float]]] = {}
    for point in view.baselines.points:
        latencies.setdefault(library_name(point.name), []).append((point.instance, point.latency_s))
    return latencies


def served_name(view: SearchView) -> str:
    """The name of a trace of ``served``."""
    return "library, measured" if view.dispatcher else "best so far, measured"


def _latency_points(
    view: SearchView, instances: Sequence[WorkloadInstance], times: Floats, kernels: Kernels, looks: MarkerStyle
) -> list[go.Scatter]:
    """``times``: [instances] seconds."""
    x = ShapeAxis(view.task).positions([instance.shape for instance in instances])
    return points(view, instances, x, US * times, kernels, looks)


def _regret(view: SearchView, prefix: str, number: int) -> list[go.Scatter]:
    """Percent by which what the library runs is slower than the fastest kernel measured at the same instance."""
    kernels, times = served(view)
    regret = 100 * np.maximum(times / view.columns.best_s[: len(times)] - 1, 0)
    instances, hover = view.task.instances, "%{y:.3g} % slower than the best, "
    looks = MarkerStyle(f"{prefix}regret", *_colour_and_symbol(number), hover=hover, legend=False)
    x = ShapeAxis(view.task).positions([instance.shape for instance in instances])
    return points(view, instances, x, regret, kernels, looks)


def _colour_and_symbol(number: int) -> tuple[str, str]:
    return style.SERIES[number % len(style.SERIES)], style.SYMBOLS[number % len(style.SYMBOLS)]


def kernel_times(view: SearchView, kernel_id: str) -> go.Figure:
    """One kernel's measured latency at each instance, beside the best's and the default's there."""
    columns = view.columns
    index = next((i for i, kernel in enumerate(columns.kernels) if kernel.id == kernel_id), -1)
    if index < 0:
        return style.message("No kernel of that id was tried in this search.")
    own = columns.table([index])[0]
    if not np.isfinite(own).any():
        return style.message("This kernel has no latency: every trial of it failed.")
    figure = style.blank()
    name = style.plain(view.label(columns.kernels[index]))
    shown = (
        (np.full(len(own), index), own, MarkerStyle(name, style.OURS, "circle")),
        (*columns.fastest, MarkerStyle("best measured", style.SERIES[2], "circle-open", size=14)),
        (*columns.default, MarkerStyle(THEORY, style.DEFAULT, "x")),
    )
    for kernels, times, looks in shown:
        figure.add_traces(_latency_points(view, columns.instances, times, kernels_of(view, kernels), looks))
    if not figure.data:
        return style.message("This kernel was measured at no shape that this search has in its variables.")
    axis = ShapeAxis(view.task)
    figure.update_xaxes(title_text=axis.title, **axis.scale([x for trace in figure.data for x in trace.x]))
    heights = [y for trace in figure.data for y in trace.y]
    figure.update_yaxes(title_text="Latency (µs)", **style.axis(heights))
    return figure.update_layout(hovermode=axis.hovermode, showlegend=True)
