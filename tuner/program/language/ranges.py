"""A workload over the ranges of its shape variables: shapes that stand for all, checks of what all have in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from tuner.errors import InvalidInput
from tuner.program.language.dims import MAX_DIM, DimExpr
from tuner.program.language.effort import spend
from tuner.program.language.expr import Expr
from tuner.program.language.workload import ShapeVar, Workload, format_shape

MAX_SHAPE_VARS = 8
"""Corners of the range double with each of them."""
MAX_OPERAND_BYTES = 16 * 2**30
"""Bytes of one operand at the largest shape of the range: more could not be measured, nor verified in float64."""


def shapes_of(variables: Sequence[ShapeVar], limit: int) -> list[dict[str, int]]:
    """Every shape of the range in the order of its values; of more than ``limit`` about as many, the extremes kept."""
    if len(variables) == 1:
        (var,) = variables
        return [{var.name: value} for value in thinned(var.values, max(limit, 2))]
    if math.prod(var.count for var in variables) > limit:
        return scattered(variables, limit)
    names = [var.name for var in variables]
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*(var.values for var in variables))]


def thinned(values: range | tuple[int, ...], count: int) -> list[int]:
    if len(values) <= count:
        return list(values)
    step = (len(values) - 1) / (count - 1)
    return [values[round(index * step)] for index in range(count)]


def scattered(variables: Sequence[ShapeVar], count: int) -> list[dict[str, int]]:
    """About ``count`` shapes of several variables, in the order of their values: corners, the middle, points inside.

    A grid of as many has few values of each variable, and a dispatcher cannot part shapes between two of them. Points
    of low discrepancy have as many values as there are points; of every two of them one is spread over the values, the
    other over their logarithms: what is best changes most among small sizes.
    """
    points = dict.fromkeys(_corners(variables, count))
    steps = _steps(len(variables))
    for number in range(4 * count):
        if len(points) >= count:
            break
        place = [(0.5 + number * step) % 1.0 for step in steps]
        points.setdefault(tuple(_value(var, part, number % 2 == 1) for var, part in zip(variables, place, strict=True)))
    names = [var.name for var in variables]
    return [dict(zip(names, point, strict=True)) for point in sorted(points)]


def _value(var: ShapeVar, part: float, is_logarithmic: bool) -> int:
    return var.values[round(var.count**part) - 1 if is_logarithmic else int(part * var.count)]


def _corners(variables: Sequence[ShapeVar], count: int) -> list[tuple[int, ...]]:
    """All, if they are fewer than ``count``; else the least, the largest, the least with one variable at its most."""
    if 2 ** len(variables) < count:
        return list(itertools.product(*((var.min, var.max) for var in variables)))
    least = tuple(var.min for var in variables)
    largest = tuple(var.max for var in variables)
    return [least, largest, *((*least[:axis], most, *least[axis + 1 :]) for axis, most in enumerate(largest))]


def _steps(rank: int) -> list[float]:
    """Along each axis the step of the R sequence: powers of 1/g, where g ** (rank + 1) = g + 1 (Roberts 2018)."""
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (rank + 1))
    return [root**-power for power in range(1, rank + 1)]


def check_variables(workload: Workload, variables: tuple[ShapeVar, ...]) -> None:
    names = [var.name for var in variables]
    if len(set(names)) != len(names):
        raise InvalidInput("shape_vars", f"{', '.join(names)} repeats a name", "each variable once")
    if len(names) > MAX_SHAPE_VARS:
        raise InvalidInput("shape_vars", f"{len(names)} of them", f"at most {MAX_SHAPE_VARS} in one workload")
    ranges = {var.name: (var.min, var.max) for var in variables}
    for field, expr in _named_extents(workload):
        missing = sorted(expr.variables - set(names))
        if missing:
            raise InvalidInput(field, f"{missing[0]} is not declared", "add it to shape_vars")
        low, high = expr.bounds(ranges)
        if low < 0 or high > MAX_DIM:
            raise InvalidInput(field, f"{expr} runs from {low} to {high}", f"extents are 0 to {MAX_DIM}")
        if expr.constant == 0:
            raise InvalidInput(field, "is always 0", "a constant extent is 1 or more")
    for extra in sorted(set(names) - workload.variables):
        raise InvalidInput(f"shape_vars.{extra}", "no dim of the workload uses it", "leave it out")


def _named_extents(workload: Workload) -> list[tuple[str, DimExpr]]:
    """Every extent, with the job file's field that gives it."""
    from_op = "op" in workload.to_json()
    given = workload.to_json().get("args", {}) if from_op else dict(workload.extents)
    group = "workload.args" if from_op else "workload.extents"
    extents = [(f"{group}.{name}" if name in given else group, dim) for name, dim in workload.extents]
    return extents + [("workload.shapes", dim) for _, shape in workload.shapes for dim in shape]


def largest_dims(workload: Workload, variables: Sequence[ShapeVar]) -> dict[str, int]:
    ranges = {var.name: (var.min, var.max) for var in variables}
    return {name: expr.bounds(ranges)[1] for name, expr in workload.symbol_exprs.items()}


def check_sizes(workload: Workload, variables: tuple[ShapeVar, ...]) -> None:
    """The operands at the largest shape, one by one. What is kept of intermediates is known to rules alone: a block of
    the scores of attention, not all of them (``rules_of``)."""
    most = largest_dims(workload, variables)
    for tensor in workload.operands:
        size = tensor.bytes(most)
        if size > MAX_OPERAND_BYTES:
            field = f"workload.{'args' if 'op' in workload.to_json() else 'extents'}"
            problem = f"{tensor.name} takes up to {size / 2**30:.4g} GiB"
            raise InvalidInput(field, problem, f"at most {MAX_OPERAND_BYTES // 2**30} GiB for one tensor")


def check_bounds(workload: Workload, variables: tuple[ShapeVar, ...]) -> None:
    """Reads that may be out of bounds for some sizes: not for those of the range."""
    ranges = {var.name: (var.min, var.max) for var in variables}
    points: list[dict[str, int]] | None = None
    for read, position, need, size in workload.inference.unproved:
        excess = (need - size).substituted(workload.symbol_exprs)
        if excess.bounds(ranges)[1] <= 0:
            continue
        # Bounds of an expression that repeats a variable are loose: look at the range itself.
        points = _points(workload, variables) if points is None else points
        spend(len(points) * (1 + len(excess.terms)))
        for values in points:
            if excess.evaluate(values) > 0:
                problem = f"the index reaches past the dim's size ({need} > {size} at {format_shape(values)})"
                remedy = f"say what is there: padded: {{{read.tensor}: 0}}"
                _refuse_index(workload, read.indices[position], problem, remedy)


def _points(workload: Workload, variables: Sequence[ShapeVar]) -> list[dict[str, int]]:
    """Shapes of the range at which something is computed."""
    shapes = shapes_of(variables, 4096)
    spend(len(shapes) * (4 + 2 * len(workload.program.axes)))
    return [values for values in shapes if workload.points(workload.dims(values))]


def _refuse_index(workload: Workload, index: Expr, problem: str, remedy: str) -> None:
    try:
        workload.program.refuse(index, problem, remedy)
    except InvalidInput as error:
        raise error.within("workload") from None
