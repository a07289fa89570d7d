"""What figures over shapes share: their x axis, points with their kernels, and the kernel that serves an instance."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Floats
from tuner.figures.view import SearchView
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance, format_shape
from tuner.schedule.space import MicroKernel

FEW = 200
"""Points up to which the hover text of each has all axes of its kernel."""
LINE = 44
"""Characters of a line of hover text: what a phone is wide."""

Shape = Mapping[str, int]
Kernels = Sequence[MicroKernel | None]


@dataclass(frozen=True)
class ShapeAxis:
    """The x axis of figures over shapes: the shape variable, or the work of a call where there are none or several."""

    task: SearchTask

    @property
    def variable(self) -> str | None:
        return self.task.shape_vars[0].name if len(self.task.shape_vars) == 1 else None

    @property
    def title(self) -> str:
        return f"{self.variable} (shape variable)" if self.variable else "Work of a call (MFLOP)"

    @property
    def hovermode(self) -> str:
        return "x unified" if self.variable else "closest"

    def positions(self, shapes: Iterable[Shape]) -> Floats:
        """NaN for a shape in symbols where the axis is the shape variable: it has no place there."""
        name = self.variable
        if name is not None:
            return np.array([shape.get(name, np.nan) for shape in shapes], np.float64)
        task = self.task
        return np.array([task.workload.flops(dims_of(task, shape)) / 1e6 for shape in shapes], np.float64)

    def scale(self, positions: Iterable[float]) -> JsonObject:
        """The type of the axis."""
        return {"type": "linear"} if self.variable else style.axis(positions)


@dataclass(frozen=True)
class MarkerStyle:
    """The style of a trace of markers. ``name`` is Plotly's markup; ``hover`` the template of the hover text before a
    point's shape and kernel."""

    name: str
    colour: str
    symbol: str
    hover: str = "%{y:.4g} µs, "
    legend: bool = True
    size: int = 8


def dims_of(task: SearchTask, shape: Shape) -> Shape:
    """The values of the workload's symbols. A record that is none of the task's instances gives these themselves."""
    return task.workload.dims(shape) if all(var.name in shape for var in task.shape_vars) else shape


def points(
    view: SearchView,
    instances: Sequence[WorkloadInstance],
    x: Floats,
    y: Floats,
    kernels: Kernels,
    looks: MarkerStyle,
) -> list[go.Scatter]:
    """A trace of markers at ``instances``, where ``x`` and ``y`` are finite; none where they are nowhere. ``kernels``:
    of each point, empty if they have none."""
    kept = [int(index) for index in np.argsort(x, kind="stable") if np.isfinite(x[index] + y[index])]
    if not kept:
        return []
    shapes = [instances[index].shape for index in kept]
    of_points = [kernels[index] for index in kept] if kernels else [None] * len(kept)
    return [
        go.Scatter(
            x=style.rounded(x[kept]),
            y=style.rounded(y[kept]),
            name=looks.name,
            mode="markers",
            marker={"color": looks.colour, "symbol": looks.symbol, "size": looks.size},
            text=[about(view, *pair, len(kept) <= FEW) for pair in zip(shapes, of_points, strict=True)],
            customdata=[kernel.id if kernel else None for kernel in of_points] if kernels else None,
            hovertemplate=f"{looks.hover}%{{text}}",
            showlegend=looks.legend,
        )
    ]


def about(view: SearchView, shape: Shape, kernel: MicroKernel | None, full: bool = False) -> str:
    """A shape and the kernel that runs there, as Plotly's markup."""
    label = view.label(kernel) if kernel else ""
    first = ", ".join(filter(None, (format_shape(shape), label)))
    return "<br>".join([style.plain(first), *(written_out(kernel) if kernel and full else ())])


def written_out(kernel: MicroKernel) -> list[str]:
    """All axes of a kernel, in lines that fit a phone."""
    return [style.plain(line) for line in textwrap.wrap(kernel.shown, LINE)]


def served(view: SearchView) -> tuple[list[MicroKernel | None], Floats]:
    """The kernel that the library runs at each of the task's instances, and its measured latency in seconds (NaN if it
    was not measured there). Without a library: the fastest measured."""
    columns, count = view.columns, len(view.task.instances)
    if view.dispatcher is None:
        fastest, times = columns.fastest
        return kernels_of(view, fastest)[:count], times[:count]
    kernels = [view.dispatcher.kernel_for(instance.shape) for instance in view.task.instances]
    rows = {kernel: row for row, kernel in enumerate(dict.fromkeys(kernels))}
    table = columns.table(columns.index_of(list(rows)))
    return list(kernels), np.array([table[rows[kernel], index] for index, kernel in enumerate(kernels)])


def kernels_of(view: SearchView, indices: Iterable[int]) -> list[MicroKernel | None]:
    """The kernels with these indices of the columns; None for -1."""
    return [view.columns.kernels[index] if index >= 0 else None for index in indices]
