"""How many times as fast each of several jobs is as the first, by shape, with intervals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.shapes import ShapeAxis
from tuner.figures.side_by_side import Pairing, Side, side_by_side
from tuner.figures.view import SearchView
from tuner.program.language.shape_vars import format_shape


def speedup_by_shape(views: Mapping[str, SearchView]) -> go.Figure:
    """A trace for each view after the first, with error bars; the line at 1 is the first."""
    pairings = side_by_side([Side(label, 0, view) for label, view in views.items()]).pairings
    if len(pairings) != 1 or len(pairings[0].totals) != len(views):
        return style.message("These jobs have no workload in common: there is nothing to compare by shape.")
    axis = ShapeAxis(next(iter(views.values())).task)
    traces = [_ratios(pairings[0], number, axis) for number in range(1, len(views))]
    if not any(len(trace.x) for trace in traces):
        return style.message("No shape was measured by two of these jobs.")
    figure = style.blank(height_px=360).add_traces([trace for trace in traces if len(trace.x)])
    figure.add_hline(1.0, line={"color": style.NEUTRAL, "dash": "dash", "width": 1.5})
    figure.update_xaxes(title_text=axis.title, **axis.scale([x for trace in traces for x in trace.x]))
    first = style.plain(next(iter(views)))
    figure.update_yaxes(title_text=f"Speed over {first} (times)")
    return figure.update_layout(hovermode="closest", showlegend=True)


def _ratios(pairing: Pairing, number: int, axis: ShapeAxis) -> go.Scatter:
    found = [(line.shape, at.ratio) for line in pairing.shapes if (at := line.jobs[number]).ratio is not None]
    shapes, ratios = [shape for shape, _ in found], [ratio for _, ratio in found if ratio]
    middle, low, high = (np.array([getattr(each, name) for each in ratios]) for name in ("ratio", "low", "high"))
    colour = style.SERIES[number % len(style.SERIES)]
    return go.Scatter(
        x=style.rounded(axis.positions(shapes)) if shapes else [],
        y=style.rounded(middle),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": style.rounded(high - middle),
            "arrayminus": style.rounded(middle - low),
            "color": colour,
            "thickness": 1.5,
        },
        name=style.plain(pairing.totals[number].job_id),
        mode="markers",
        marker={"color": colour, "symbol": style.SYMBOLS[number % len(style.SYMBOLS)], "size": 8},
        text=[
            style.plain(f"{format_shape(shape)}: {ratio.verdict}") for shape, ratio in zip(shapes, ratios, strict=True)
        ],
        hovertemplate="%{y:.3f} times, %{text}",
    )
