"""Axes of a program as the parts that a contraction groups: whole ones, or two halves, ``o // w`` and ``o % w``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tuner.program.dims import DimExpr, Quotient
from tuner.program.expr import Axis, Expr, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.program import index_dim
from tuner.program.workload import Workload
from tuner.schedule.access import values


@dataclass(frozen=True)
class Part:
    """``axis`` = the sum of its parts' values times ``step``. ``extent`` is over the workload's symbols."""

    axis: str
    step: int
    extent: DimExpr


def outer_role(name: str) -> str:
    """The role of a dim that is an outer part: unlike any group's, whatever the axis is called."""
    return f"outer {name}"


def parts_of(workload: Workload, stage: Stage) -> Mapping[str, Part]:
    """By name, in the order of the stage's axes: an axis of the output of which some operand reads ``o // w`` or
    ``o % w`` alone (groups of a convolution) has two parts, ``o//`` and ``o%``; any other is one part."""
    result: dict[str, Part] = {}
    for axis in (*stage.axes, *stage.reduce_axes):
        size, width = workload.sizes[axis], _width(stage, axis)
        if axis in stage.axes and width and size.constant is not None and size.constant % width == 0:
            result[f"{axis}//"] = Part(axis, width, DimExpr.of(size.constant // width))
            result[f"{axis}%"] = Part(axis, 1, DimExpr.of(width))
        else:
            result[axis] = Part(axis, 1, size)
    return result


def names_of(parts: Mapping[str, Part], axes: Iterable[str]) -> tuple[str, ...]:
    """The parts of some axes, in their order."""
    return tuple(name for axis in axes for name, part in parts.items() if part.axis == axis)


def size_of(parts: Mapping[str, Part], names: Iterable[str]) -> int | None:
    """The extent of a group of parts; None where it is dynamic."""
    sizes = [parts[name].extent.constant for name in names]
    return None if None in sizes else math.prod(size or 0 for size in sizes)


def needed(expr: Expr, parts: Mapping[str, Part]) -> frozenset[str]:
    """The parts that the value of an expression depends on."""
    outside = names_of(parts, (node.name for node in values(expr) if isinstance(node, Axis)))
    indices = [index for read in reads(expr) for index in read.indices]
    return frozenset(outside).union(*(needed_by_index(index, parts) for index in indices))


def needed_by_index(index: Expr, parts: Mapping[str, Part]) -> frozenset[str]:
    """The parts that an index depends on; of an element of a tensor its indices are asked by themselves."""
    return frozenset(name for atom in atoms_in(index) for name in _of_atom(atom, parts))


def atoms_in(index: Expr) -> list[str | Quotient]:
    """The axes, extents and quotients that an index is a sum of products of; none of an element of a tensor."""
    dim = index_dim(index)
    return [] if dim is None else [atom for monomial, _ in dim.terms for atom in monomial]


def _of_atom(atom: str | Quotient, parts: Mapping[str, Part]) -> tuple[str, ...]:
    if isinstance(atom, str):
        return names_of(parts, (atom,))
    (name,) = atom.numerator.variables if len(atom.numerator.variables) == 1 else ("",)
    half = f"{name}{'//' if atom.operator == '//' else '%'}"
    if half in parts and atom.numerator == DimExpr.var(name) and atom.divisor == parts[f"{name}//"].step:
        return (half,)
    return names_of(parts, sorted(atom.numerator.variables))


def _width(stage: Stage, axis: str) -> int | None:
    """The one number that indices divide an axis by, alone."""
    indices = [index for read in reads(stage.body) for index in read.indices if axis in axes_of(index)]
    quotients = [atom for index in indices for atom in atoms_in(index) if isinstance(atom, Quotient)]
    divisors = {atom.divisor for atom in quotients if atom.numerator == DimExpr.var(axis)}
    return divisors.pop() if len(divisors) == 1 else None
