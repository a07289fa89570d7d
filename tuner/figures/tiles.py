"""Parallel coordinates of kernels over the axes of their space.

Drawn with ordinary lines. Plotly's own kind of trace for this needs WebGL and a page that may evaluate code: both are
missing where the service's pages are shown. Those draw lines that can be brushed from the same data
(tuner.figures.axes.coordinates).
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.axes import Chosen, chosen_of
from tuner.figures.columns import Floats, Ints
from tuner.figures.thinning import MAX_POINTS, extremes
from tuner.figures.view import SearchView
from tuner.schedule.space import readable

CLASSES = (0.0, 0.4, 0.6, 0.8, 0.95)
"""The least share of the best's speed of each class of kernels."""
WIDTHS = (0.75, 0.75, 1.0, 1.5, 2.5)
MAX_LINES = 100
"""Lines of one class: more could not be distinguished."""
TICKS = 12
"""Choices up to which an axis names each."""
SPREAD = 0.6
"""The share of a choice's height that its kernels are spread over, the fastest on top."""


def tile_parameters(view: SearchView) -> go.Figure:
    """A line for each measured kernel over the axes in which they differ; colour is how near the best it is."""
    chosen = chosen_of(view)
    if not chosen.kernels:
        return style.message("No kernels to compare: nothing has been measured.")
    if not chosen.axes:
        return style.message("Only one kernel was measured: there is nothing in which kernels differ.")
    figure = style.blank(height_px=420)
    choices, ranks = zip(*(np.unique(column, return_inverse=True) for column in chosen.values.T), strict=True)
    counts = np.array([len(values) for values in choices], np.float64)
    heights = (np.array(ranks).T + 0.5 + SPREAD * (_order(chosen.speed) - 0.5)[:, None]) / counts
    classes = np.searchsorted(CLASSES, chosen.speed, side="right") - 1
    for number in range(len(CLASSES)):
        own = np.flatnonzero(classes == number)
        if len(own):
            figure.add_trace(_lines(view, chosen, heights, own[_thinned(chosen, own)], number))
    figure.add_trace(_ticks(choices))
    figure.update_xaxes(title_text="Axis of the space (name)", tickvals=list(range(len(chosen.axes))))
    figure.update_xaxes(ticktext=[style.plain(readable(name)) for name in chosen.axes], gridcolor=style.NEUTRAL)
    figure.update_xaxes(range=[-0.7, len(chosen.axes) - 0.5], tickangle=-60 if len(chosen.axes) > 6 else 0)
    figure.update_yaxes(title_text="Choice (value)", showticklabels=False, ticks="", showgrid=False, range=[0, 1])
    return figure.update_layout(hovermode="closest", showlegend=True)


def _order(speed: Floats) -> Floats:
    """[kernels]: 0 for the slowest, 1 for the fastest."""
    order: Floats = speed.argsort(kind="stable").argsort(kind="stable") / max(1, len(speed) - 1)
    return order


def _thinned(chosen: Chosen, own: Ints) -> Ints:
    """The kernels of a class that are drawn."""
    return extremes(chosen.speed[own], max(4, min(MAX_LINES, MAX_POINTS // (len(chosen.axes) + 1))))


def _lines(view: SearchView, chosen: Chosen, heights: Floats, kernels: Ints, number: int) -> go.Scatter:
    """The kernels of one class in one trace, with a gap after each."""
    count, axes = len(kernels), len(chosen.axes)
    y = np.full((count, axes + 1), np.nan)
    y[:, :axes] = heights[kernels]
    about = [f"{style.plain(view.label(chosen.kernels[i]))}, {100 * chosen.speed[i]:.3g} %" for i in kernels]
    ids = [chosen.kernels[index].id for index in kernels]
    return go.Scatter(
        x=[*range(axes), None] * count,
        y=style.rounded(y.ravel(), 4),
        name=_class_name(number),
        mode="lines",
        line={"color": style.line_colour(number / (len(CLASSES) - 1)), "width": WIDTHS[number]},
        text=[text for text in about for _ in range(axes + 1)],
        customdata=[name for name in ids for _ in range(axes + 1)],
        hovertemplate="%{text} of the best's speed<extra></extra>",
    )


def _class_name(number: int) -> str:
    low, high = (*CLASSES, 1.0)[number : number + 2]
    if number == 0:
        return f"below {100 * high:g} % of the best's speed"
    return f"{100 * low:g} to {100 * high:g} %"


def _ticks(choices: tuple[Floats, ...]) -> go.Scatter:
    """The choices beside each axis, of very many some."""
    x, y, text = [], [], []
    for axis, values in enumerate(choices):
        shown = np.unique(np.linspace(0, len(values) - 1, min(TICKS, len(values))).astype(np.int64))
        x += [axis] * len(shown)
        y += ((shown + 0.5) / len(values)).tolist()
        text += [f"{values[rank]:g}" for rank in shown]
    looks = {"mode": "text", "textposition": "middle left", "textfont": {"size": 10}}
    return go.Scatter(x=x, y=style.rounded(y), text=text, hoverinfo="skip", showlegend=False, name="choices", **looks)
