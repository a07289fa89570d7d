"""The roofline: how near a library's kernels come to the device's peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Floats
from tuner.figures.latencies import RIVAL_SYMBOLS, THEORY, libraries, served_name
from tuner.figures.shapes import Kernels, MarkerStyle, dims_of, kernels_of, points, served
from tuner.figures.view import SearchView
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target.calibration import STREAMS, Level, Levels
from tuner.records import Roof


def roofline(view: SearchView) -> go.Figure:
    """Speed over arithmetic intensity at every instance, under the roof if it is known."""
    figure = style.blank(height_px=380)
    kernels, times = served(view)
    figure.add_traces(_speeds(view, view.task.instances, times, kernels, served_name(view), style.OURS, "circle"))
    if not figure.data:
        return style.message("No speeds: nothing has been measured.")
    theory, theory_s = view.columns.default
    default = kernels_of(view, theory)
    figure.add_traces(_speeds(view, view.columns.instances, theory_s, default, THEORY, style.DEFAULT, "x"))
    for number, (library, timed) in enumerate(libraries(view).items()):
        at, seconds = zip(*timed, strict=True)
        colour, symbol = style.RIVALS[number % 3], RIVAL_SYMBOLS[number % 3]
        figure.add_traces(_speeds(view, at, np.array(seconds), (), library, colour, symbol))
    if view.baselines.roof is not None:
        dots = [(x, y) for trace in figure.data for x, y in zip(trace.x, trace.y, strict=True) if x and y]
        figure.add_trace(_roof(view.baselines.roof, dots))
    if view.levels is not None:
        figure.add_traces(_levels(view.levels, [x for trace in figure.data for x in trace.x]))
    figure.update_xaxes(title_text="Arithmetic intensity (FLOP/byte)", **style.LOG)
    figure.update_yaxes(title_text="Speed (GFLOP/s)", **style.LOG)
    return figure.update_layout(hovermode="closest", showlegend=True)


def _speeds(
    view: SearchView,
    instances: Sequence[WorkloadInstance],
    times: Floats,
    kernels: Kernels,
    name: str,
    colour: str,
    symbol: str,
) -> list[go.Scatter]:
    """``times``: [instances] seconds. A shape that has nothing to compute has no speed. What a call moves is the least:
    every operand read once, the output written once."""
    workload, dims = view.task.workload, [dims_of(view.task, instance.shape) for instance in instances]
    flops = np.array([workload.flops(each) or np.nan for each in dims])
    moved = np.array([workload.bytes_moved(each) or np.nan for each in dims])
    speed = 1e-9 * flops / np.where(times > 0, times, np.nan)
    hover = "%{y:.4g} GFLOP/s at %{x:.3g} FLOP/byte<br>"
    return points(view, instances, flops / moved, speed, kernels, MarkerStyle(name, colour, symbol, hover))


def _roof(measured: Roof, dots: Sequence[tuple[float, float]]) -> go.Scatter:
    """Memory below the ridge, registers above it; it reaches to the points, and to the ridge in any case.

    ``dots``: intensities, and speeds in GFLOP/s. No dot stands above it: where one shows more than was measured of the
    device, whose reading was disturbed or whose caches are faster than its memory, the roof is raised to it.
    """
    flops_per_s = max([measured.flops_per_s, *(1e9 * speed for _, speed in dots)])
    bytes_per_s = max([measured.bytes_per_s, *(1e9 * speed / intensity for intensity, speed in dots)])
    ridge = flops_per_s / bytes_per_s
    intensities = [intensity for intensity, _ in dots]
    x = np.array([min([*intensities, ridge]) / 1.5, ridge, max([*intensities, ridge]) * 1.5])
    y = 1e-9 * np.minimum(flops_per_s, x * bytes_per_s)
    at_best = f"{1e-9 * measured.flops_per_s:.4g} GFLOP/s, {1e-9 * measured.bytes_per_s:.4g} GB/s"
    is_raised = (flops_per_s, bytes_per_s) != (measured.flops_per_s, measured.bytes_per_s)
    raised = f"<br>raised to the fastest kernel: {1e-9 * flops_per_s:.4g} GFLOP/s, {1e-9 * bytes_per_s:.4g} GB/s"
    return go.Scatter(
        x=style.rounded(x),
        y=style.rounded(y),
        name="roof",
        mode="lines",
        line={"color": style.NEUTRAL, "width": 2, "dash": "dash"},
        hovertemplate=f"roof: {at_best}{raised if is_raised else ''}<extra></extra>",
    )


def _levels(known: Levels, intensities: list[float]) -> list[go.Scatter]:
    """The speed that each level of memory can feed, up to the peak; a line of its own for each. A point above a line
    has most of what it reads from a nearer level."""
    peak = known.flops_per_s
    # Shapes with nothing to compute have no intensity.
    least = min((x for x in intensities if x and x > 0), default=1.0)
    return [
        _level(level, np.array([min(least, peak / level.bytes_per_s) / 1.5, peak / level.bytes_per_s]), number)
        for number, level in enumerate(each for each in known.levels if each.name != STREAMS)
    ]


def _level(level: Level, x: Floats, number: int) -> go.Scatter:
    speed = f"{1e-9 * level.bytes_per_s:.4g} GB/s"
    return go.Scatter(
        x=style.rounded(x),
        y=style.rounded(1e-9 * x * level.bytes_per_s),
        name=level.name,
        mode="lines",
        line={"color": style.NEUTRAL, "width": 1, "dash": style.DASHES[2:][number % len(style.DASHES[2:])]},
        hovertemplate=f"{level.name}: {speed}<extra></extra>",
    )
