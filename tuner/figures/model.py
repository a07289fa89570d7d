"""How well the cost model predicted what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Bools, Floats, Ints
from tuner.figures.shapes import FEW, about
from tuner.figures.thinning import changes, extremes
from tuner.figures.view import SearchView

US = 1e6
HEIGHT_PX = 560
MIN_TRIALS = 3
"""A rank correlation of fewer says nothing."""


def calibration(view: SearchView) -> go.Figure:
    """Predicted against measured latencies, and below it the rank correlation of each round's trials."""
    columns = view.columns
    known = (columns.latency_s > 0) & (columns.predicted_s > 0)
    if not known.any():
        return style.message("Nothing to compare: no trial has both a predicted and a measured latency.")
    figure = style.blank(rows=2, height_px=HEIGHT_PX, shared_xaxes=False, row_heights=[0.7, 0.3], vertical_spacing=0.17)
    figure.add_traces(_trials(view, np.flatnonzero(known)), rows=1, cols=1)
    figure.add_traces(_agreement(view, known), rows=2, cols=1)
    figure.update_xaxes(title_text="Predicted latency (µs)", **style.LOG, row=1)
    figure.update_yaxes(title_text="Measured latency (µs)", **style.LOG, row=1)
    figure.update_xaxes(title_text="Round (number)", row=2, **style.whole(columns.round.max()))
    figure.update_yaxes(title_text="Spearman (−1 to 1)", range=[-1.05, 1.05], row=2)
    figure.update_layout(hovermode="closest", showlegend=False)
    several = isinstance(figure.data[0].marker.color, tuple)
    return style.titled(figure, "Round (number)") if several else figure


def _trials(view: SearchView, known: Ints) -> list[go.Scatter]:
    columns = view.columns
    ordered = known[np.argsort(columns.predicted_s[known], kind="stable")]
    kept = ordered[extremes(columns.latency_s[ordered])]
    predicted, measured = US * columns.predicted_s[kept], US * columns.latency_s[kept]
    ends = [min(predicted.min(), measured.min()), max(predicted.max(), measured.max())]
    equal = {"color": style.NEUTRAL, "dash": "dash", "width": 1.5}
    return [
        go.Scatter(
            x=style.rounded(predicted),
            y=style.rounded(measured),
            name="trial",
            mode="markers",
            marker=_by_round(columns.round[kept]),
            customdata=[columns.kernels[index].id for index in columns.kernel[kept]],
            text=_texts(view, kept),
            hovertemplate="predicted %{x:.4g} µs, measured %{y:.4g} µs<br>%{text}<extra></extra>",
        ),
        go.Scatter(x=style.rounded(ends), y=style.rounded(ends), name="equal", mode="lines", line=equal),
    ]


def _texts(view: SearchView, trials: Ints) -> list[str]:
    """Hover text of each of these trials."""
    columns, full = view.columns, len(trials) <= FEW
    return [
        f"round {columns.round[trial]}, "
        + about(view, columns.instances[columns.instance[trial]].shape, columns.kernels[columns.kernel[trial]], full)
        for trial in trials
    ]


def _by_round(rounds: Ints) -> dict[str, Any]:
    if rounds.min() == rounds.max():
        return {"size": 6, "color": style.OURS}
    looks = {"size": 6, "color": rounds.tolist(), "colorscale": style.LINE_SCALE}
    return looks | {"showscale": True, "colorbar": style.scale_above(HEIGHT_PX) | style.whole(rounds.max())}


def _agreement(view: SearchView, known: Bools) -> list[go.Scatter]:
    columns = view.columns
    rounds, correlation = [], []
    order = np.flatnonzero(known)
    order = order[np.argsort(columns.round[order], kind="stable")]
    for trials in np.split(order, np.flatnonzero(np.diff(columns.round[order])) + 1):
        if len(trials) >= MIN_TRIALS:
            rounds.append(float(columns.round[trials[0]]))
            correlation.append(spearman(columns.predicted_s[trials], columns.latency_s[trials]))
    correlations = np.array(correlation)
    finite = np.isfinite(correlations)
    x, y = np.array(rounds)[finite], correlations[finite]
    kept = changes(y, np.arange(len(y)))
    return [
        go.Scatter(
            x=style.rounded(x[kept]),
            y=style.rounded(y[kept], 4),
            name="rank correlation",
            mode="lines+markers" if len(kept) < 60 else "lines",
            line={"color": style.OURS, "width": 2},
            hovertemplate="round %{x:d}: %{y:.3f}<extra></extra>",
        )
    ]


def spearman(first: Floats, second: Floats) -> float:
    """The correlation of the ranks of two columns, equal values sharing their mean rank; NaN if one is constant."""
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 0 else float("nan")


def _ranks(values: Floats) -> Floats:
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = count.cumsum()
    ranks: Floats = ((last - count + 1 + last) / 2)[inverse]
    return ranks
