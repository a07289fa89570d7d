"""Kernels side by side at every instance."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tuner.figures import style
from tuner.figures.columns import Floats
from tuner.figures.shapes import ShapeAxis, written_out
from tuner.figures.view import SearchView
from tuner.program.language.workload import WorkloadInstance
from tuner.schedule.space import MicroKernel

MAX_KERNELS = 30
"""Rows of a heat map."""
CELLS_WITH_TEXT = 8
"""Columns up to which a cell's number fits into it on a phone."""
WORST_SHOWN = 3.0
"""Times the best that a heat map's colours reach; beyond it one colour stands for all."""


def kernels_by_shape(view: SearchView) -> go.Figure:
    """A heat map of kernels against instances: how many times the best kernel's latency each takes."""
    columns, instances = view.columns, view.task.instances
    rows, width = _ranked(view), len(instances)
    ratio = columns.table(columns.index_of(rows))[:, :width] / columns.best_s[:width]
    if not np.isfinite(ratio).any():
        return style.message("No kernels to compare: nothing has been measured.")
    order = np.argsort(ShapeAxis(view.task).positions([instance.shape for instance in instances]), kind="stable")
    figure = style.blank(height_px=_height_px(rows))
    figure.add_trace(_heat(view, rows, [instances[index] for index in order], ratio[:, order]))
    title = "×".join(var.name for var in view.task.shape_vars) or "shape"
    figure.update_xaxes(title_text=f"Instance ({title})", type="category", showgrid=False)
    figure.update_yaxes(title_text="Kernel (id)", type="category", autorange="reversed", showgrid=False)
    return style.titled(figure, "Latency (times the best)")


def _heat(view: SearchView, rows: list[MicroKernel], instances: list[WorkloadInstance], ratio: Floats) -> go.Heatmap:
    weighted = len({instance.weight for instance in instances}) > 1
    names = [_column(instance, weighted) for instance in instances]
    about = ["<br>".join(written_out(kernel)) for kernel in rows]
    return go.Heatmap(
        z=[style.rounded(row, 4) for row in ratio],
        x=names,
        y=[view.label(kernel) for kernel in rows],
        customdata=[[kernel.id] * len(names) for kernel in rows],
        hovertext=_cells(about, instances),
        zmin=1.0,
        zmax=float(min(WORST_SHOWN, max(1.1, np.nanmax(ratio)))),
        colorscale=style.SCALE,
        reversescale=True,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        hovertemplate="%{y} at %{x}: %{z:.4g} times the best<br>%{hovertext}<extra></extra>",
        texttemplate="%{z:.2f}" if len(names) <= CELLS_WITH_TEXT else None,
        colorbar=style.scale_above(_height_px(rows)),
    )


def _height_px(rows: list[MicroKernel]) -> int:
    return 150 + 22 * len(rows)


def _cells(rows: list[str], instances: list[WorkloadInstance]) -> list[list[str]]:
    """Hover text of each cell: the instance's weight and, where the cells are few, the kernel."""
    few = len(rows) * len(instances) <= 300
    return [[f"weight {i.weight:g}" + (f"<br>{row}" if few else "") for i in instances] for row in rows]


def _column(instance: WorkloadInstance, weighted: bool) -> str:
    """An instance as a tick; where there are several variables, their values alone."""
    values = [str(value) for _, value in instance.values]
    text = str(instance) if len(values) == 1 else "×".join(values) or "the one shape"
    return style.plain(text) + (f"<br>w {instance.weight:g}" if weighted else "")


def _ranked(view: SearchView) -> list[MicroKernel]:
    """The chosen kernels, then the finalists, the best first; at most MAX_KERNELS."""
    columns = view.columns
    speed = columns.relative()
    finalists = np.unique(columns.kernel[columns.final])
    pool = finalists if len(finalists) else np.arange(len(columns.kernels))
    pool = pool[np.isfinite(speed[pool])]
    best = [columns.kernels[index] for index in pool[np.argsort(-speed[pool], kind="stable")][: 2 * MAX_KERNELS]]
    chosen = [kernel for kernel in view.chosen if kernel in set(columns.kernels)]
    return list(dict.fromkeys([*chosen, *best]))[:MAX_KERNELS]
