"""Figures of devices: what they were used for, and how steady their speed is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.thinning import MAX_POINTS, extremes

FEW_NAMES = 8
"""Jobs up to which a legend names each."""
ROW_PX = 34


@dataclass(frozen=True, slots=True)
class Span:
    """A device worked for a job from one time to another, in ISO 8601."""

    device: str
    job_id: str
    job_name: str
    start_iso: str
    end_iso: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a fixed piece of work took on a device at a time (tuner.records.MeasureResult.anchor_s)."""

    device: str
    at_iso: str
    anchor_s: float


def device_use(spans: Sequence[Span]) -> go.Figure:
    """A row for each device, with a bar for each time that a job had it; of very many the latest."""
    if not spans:
        return style.message("No device has been used by a job.")
    shown = sorted(spans, key=lambda span: span.start_iso)[-MAX_POINTS:]
    devices = sorted({span.device for span in shown})
    jobs = list(dict.fromkeys(span.job_id for span in shown))
    figure = style.blank(height_px=110 + ROW_PX * len(devices))
    for number, looks in enumerate(_looks(len(jobs))):
        # Beyond the colours there are, jobs share a trace: a trace for each of hundreds would be slow to draw.
        own = set(jobs[number :: len(style.SERIES)])
        figure.add_trace(_bars([span for span in shown if span.job_id in own], looks))
    figure.update_xaxes(title_text="Time (UTC)", type="date")
    figure.update_yaxes(title_text="Device (id)", type="category", autorange="reversed")
    named = len(jobs) <= min(FEW_NAMES, len(style.SERIES))
    return figure.update_layout(barmode="overlay", bargap=0.3, hovermode="closest", showlegend=named)


def _looks(jobs: int) -> list[dict[str, Any]]:
    pairs = zip(style.SERIES, style.PATTERNS, strict=True)
    return [{"color": c, "pattern": {"shape": p, "solidity": 0.35}} for c, p in pairs][:jobs]


def _bars(spans: list[Span], looks: dict[str, Any]) -> go.Bar:
    lengths = [max(0.0, _ms(span.end_iso) - _ms(span.start_iso)) for span in spans]
    return go.Bar(
        base=[span.start_iso for span in spans],
        x=style.rounded(lengths, 9),
        y=[style.plain(span.device) for span in spans],
        orientation="h",
        name=style.plain(spans[0].job_name or spans[0].job_id),
        marker=looks,
        customdata=[span.job_id for span in spans],
        hovertext=[style.plain(f"{span.job_name} {span.job_id}".strip()) for span in spans],
        hovertemplate="%{hovertext}<br>%{base|%Y-%m-%d %H:%M:%S} to %{x|%H:%M:%S}<extra></extra>",
    )


def device_drift(readings: Sequence[Reading]) -> go.Figure:
    """The time of each device's anchor over time, in percent against its median: 0 is its usual speed."""
    usable = [reading for reading in readings if reading.anchor_s > 0]
    if not usable:
        return style.message("No device's speed has been measured.")
    figure = style.blank()
    for number, device in enumerate(sorted({reading.device for reading in usable})):
        figure.add_trace(_drift(device, [reading for reading in usable if reading.device == device], number))
    figure.update_xaxes(title_text="Time (UTC)", type="date")
    figure.update_yaxes(title_text="Slower than its median (%)", zeroline=True, zerolinecolor=style.NEUTRAL)
    return figure.update_layout(hovermode="closest", showlegend=True)


def _drift(device: str, readings: list[Reading], number: int) -> go.Scatter:
    ordered = sorted(readings, key=lambda reading: reading.at_iso)
    anchor = np.array([reading.anchor_s for reading in ordered])
    percent = 100 * (anchor / np.median(anchor) - 1)
    kept = extremes(percent)
    colour = style.SERIES[number % len(style.SERIES)]
    return go.Scatter(
        x=[ordered[index].at_iso for index in kept],
        y=style.rounded(percent[kept], 4),
        name=style.plain(device),
        mode="lines+markers",
        line={"color": colour, "width": 1, "dash": style.DASHES[number % len(style.DASHES)]},
        marker={"color": colour, "size": 5, "symbol": style.SYMBOLS[number % len(style.SYMBOLS)]},
        hovertemplate="%{x|%Y-%m-%d %H:%M:%S}: %{y:+.2f} %",
    )


def _ms(iso: str) -> float:
    return 1e3 * datetime.fromisoformat(iso).timestamp()
