"""The arguments of a compiled kernel in TVM's terms: symbolic dims and the shape of every tensor. Imports TVM."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tuner.program.workload import Workload
from tuner.rules.layout import PanelLayout

Expr = Any


def i64(value: int) -> Expr:
    """Every extent is int64: index arithmetic that mixes widths does not simplify."""
    return tirx.IntImm("int64", value)


def symbols(workload: Workload) -> dict[str, Expr]:
    """One int64 variable for each distinct dynamic dim."""
    return {dim: tirx.Var(dim, "int64") for dim in workload.dynamic_dims}


def extents(workload: Workload, dims: dict[str, Expr]) -> dict[str, Expr]:
    """The extent of each axis: a constant, or the variable of the dim that it reads."""
    axes = workload.dynamic_axes
    return {name: dims[axes[name]] if name in axes else i64(int(expr.constant or 0)) for name, expr in workload.args}


def arguments(workload: Workload, dims: dict[str, Expr], layout: PanelLayout | None) -> dict[str, tuple[Expr, ...]]:
    """The shape of every operand in call order, by name; a constant operand as ``layout`` packs it."""
    extent = extents(workload, dims)
    shapes = {}
    for operand in workload.operands:
        shape = tuple(extent[axis] for axis in operand.axes)
        if operand.constant and layout is not None:
            n, k = (int(size) for size in shape)
            shape = tuple(i64(size) for size in layout.packed_shape(n, k))
        shapes[operand.name] = shape
    return shapes
