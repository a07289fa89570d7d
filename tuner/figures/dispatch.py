"""Which kernel of a library serves which shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Floats, Ints
from tuner.figures.shapes import written_out
from tuner.figures.view import SearchView
from tuner.library.dispatcher import Dispatcher
from tuner.program.language.ranges import thinned
from tuner.program.language.workload import ShapeVar

MAX_SHAPES = 2000
"""Shapes along the axis of one variable."""
GRID = 44
"""Values of each of two variables."""
BAND_PX = 26


def dispatch(view: SearchView) -> go.Figure:
    """Bands over one shape variable, a grid over two; over more a grid of the two with the widest range."""
    dispatcher = view.dispatcher
    if dispatcher is None:
        return style.message("No library has been built.")
    if not view.task.shape_vars:
        name = style.plain(view.label(dispatcher.kernel_for({})))
        return style.message(f"The workload has one shape: {name} serves it.")
    if len(view.task.shape_vars) == 1:
        return _bands(view, dispatcher, view.task.shape_vars[0])
    return _grid(view, dispatcher)


def _bands(view: SearchView, dispatcher: Dispatcher, var: ShapeVar) -> go.Figure:
    """A row for each kernel, with a bar over every stretch of shapes that it serves."""
    values = _values(var, MAX_SHAPES)
    index = _served(dispatcher, [{var.name: int(value)} for value in values])
    starts = np.concatenate([[0], np.flatnonzero(np.diff(index)) + 1])
    ends = np.concatenate([starts[1:], [len(values)]]) - 1
    edges = _edges(values)
    figure = style.blank(height_px=100 + BAND_PX * len(dispatcher.kernels))
    for number, kernel in enumerate(dispatcher.kernels):
        own = index[starts] == number
        low, high = values[starts[own]], values[ends[own]]
        left, right = edges[starts[own]], edges[ends[own] + 1]
        label = style.plain(view.label(kernel))
        figure.add_trace(
            go.Bar(
                base=left.tolist(),
                x=(right - left).tolist(),
                y=[label] * int(own.sum()),
                orientation="h",
                name=label,
                marker={"color": style.SERIES[number % len(style.SERIES)]},
                customdata=[kernel.id] * int(own.sum()),
                hovertext=[_stretch(var, *pair) for pair in zip(low.tolist(), high.tolist(), strict=True)],
                hovertemplate="%{hovertext}<br>" + "<br>".join(written_out(kernel)) + "<extra></extra>",
            )
        )
    rows = [style.plain(view.label(kernel)) for kernel in dispatcher.kernels]
    figure.update_xaxes(title_text=f"{var.name} (shape variable)")
    figure.update_yaxes(
        title_text="Kernel (id)", type="category", categoryorder="array", categoryarray=rows, autorange="reversed"
    )
    return figure.update_layout(barmode="overlay", bargap=0.25, hovermode="closest", showlegend=False)


def _edges(values: Ints) -> Floats:
    """[values + 1]: where the bar of each value begins and ends: halfway to the values beside it."""
    between = (values[1:] + values[:-1]) / 2
    first, last = (between[0], between[-1]) if len(between) else (values[0] + 0.5, values[0] - 0.5)
    return np.concatenate([[2 * values[0] - first], between, [2 * values[-1] - last]])


def _stretch(var: ShapeVar, low: int, high: int) -> str:
    return style.plain(f"{var.name} = {low}" if low == high else f"{var.name} = {low} to {high}")


def _grid(view: SearchView, dispatcher: Dispatcher) -> go.Figure:
    """Two variables across and up, every other at the middle of its values."""
    wide = sorted(view.task.shape_vars, key=lambda var: (var.min - var.max, var.name))
    across, up = sorted(wide[:2], key=lambda var: var.name)
    rest = {var.name: var.values[len(var.values) // 2] for var in wide[2:]}
    xs, ys = _values(across, GRID), _values(up, GRID)
    shapes = [rest | {across.name: int(x), up.name: int(y)} for y in ys for x in xs]
    index = _served(dispatcher, shapes).reshape(len(ys), len(xs))
    figure = style.blank(height_px=420).add_trace(_cells(view, dispatcher, index, xs, ys))
    for annotation in _names(view, dispatcher, index, xs, ys):
        figure.add_annotation(annotation)
    figure.update_xaxes(title_text=f"{across.name} (shape variable)", showgrid=False)
    figure.update_yaxes(title_text=f"{up.name} (shape variable)", showgrid=False)
    if rest:
        at = ", ".join(f"{name} = {value}" for name, value in sorted(rest.items()))
        style.titled(figure, style.plain(f"at {at}"), 28)
    return figure


def _cells(view: SearchView, dispatcher: Dispatcher, index: Ints, xs: Ints, ys: Ints) -> go.Heatmap:
    count = len(dispatcher.kernels)
    colours = [style.SERIES[number % len(style.SERIES)] for number in range(count)]
    scale = [[(number + edge) / count, colour] for number, colour in enumerate(colours) for edge in (0, 1)]
    labels = [style.plain(view.label(kernel)) for kernel in dispatcher.kernels]
    ids = [kernel.id for kernel in dispatcher.kernels]
    return go.Heatmap(
        x=xs.tolist(),
        y=ys.tolist(),
        z=index.tolist(),
        zmin=-0.5,
        zmax=count - 0.5,
        colorscale=scale,
        showscale=False,
        customdata=[[ids[number] for number in row] for row in index],
        hovertext=[[labels[number] for number in row] for row in index],
        hovertemplate="%{x}, %{y}: %{hovertext}<extra></extra>",
    )


def _names(view: SearchView, dispatcher: Dispatcher, index: Ints, xs: Ints, ys: Ints) -> list[dict[str, object]]:
    """Each kernel's name on the cell nearest to the middle of its cells, so that colour is not all that distinguishes
    two kernels."""
    annotations: list[dict[str, object]] = []
    for number, kernel in enumerate(dispatcher.kernels):
        cells = np.argwhere(index == number)
        if len(cells):
            row, column = cells[((cells - cells.mean(axis=0)) ** 2).sum(axis=1).argmin()]
            text = style.plain(view.label(kernel).partition(" ")[0])
            chip = {"bgcolor": "#ffffff", "font": {"color": "#14171c", "size": 11}, "borderpad": 1, "opacity": 0.9}
            annotations.append({"x": int(xs[column]), "y": int(ys[row]), "text": text, "showarrow": False, **chip})
    return annotations


def _served(dispatcher: Dispatcher, shapes: Sequence[dict[str, int]]) -> Ints:
    """[shapes]: the index of the kernel that runs."""
    dims = dispatcher.task.workload.dims
    return np.array([dispatcher.index_for(dims(shape)) for shape in shapes], np.int64)


def _values(var: ShapeVar, limit: int) -> Ints:
    """The variable's values, more than ``limit`` thinned evenly, the extremes kept."""
    return np.array(thinned(var.values, limit), np.int64)
