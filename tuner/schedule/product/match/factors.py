"""Axes of a program as the parts that a contraction groups, whole ones or two halves, ``o // w`` and ``o % w``; and the
factors of a product: how each is read, and in which order they are summed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

from tuner.program.language.dims import DimExpr, Quotient
from tuner.program.language.expr import Axis, Binary, Expr, Read, axes_of, reads
from tuner.program.language.notation import Stage
from tuner.program.language.program import index_dim
from tuner.program.language.workload import Workload
from tuner.schedule.access import stride, values

MAX_WORD = 4
"""Bytes, or elements of which an instruction takes the most in one step."""


# -- parts ------------------------------------------------------------------------------------------------------------
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
    """The parts by name, in the order of the stage's axes. An axis of the output of which some operand reads ``o // w``
    or ``o % w`` alone (groups of a convolution) has two, ``o//`` and ``o%``; any other is one part."""
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


# -- factors ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Factors:
    """One side of a product: the product of some factors.

    ``roles`` of the dims of the packed form or the view: ``m``, ``n``, ``k``, or ``outer`` and the name of a part.
    ``dtype``: of its elements there; what is gathered is float32, or, for sums of integers, as it is in memory.
    ``read_dtype``: of the tensor, if the product is a read of one.
    """

    factors: tuple[Expr, ...]
    roles: tuple[str, ...] = ()
    dtype: str = "float32"
    read_dtype: str | None = None
    is_viewed: ClassVar[bool] = False
    """Whether one tensor is read in place."""
    is_gathered: ClassVar[bool] = False
    """Whether elements are brought together at each call."""

    @property
    def tensor(self) -> str:
        """The one tensor that is packed or viewed."""
        return self.read.tensor

    @property
    def read(self) -> Read:
        """The one factor, which is a read."""
        (read,) = self.factors
        assert isinstance(read, Read)
        return read


def factors_of(expr: Expr) -> tuple[Expr, ...]:
    """What is multiplied to give an expression."""
    if isinstance(expr, Binary) and expr.operator == "*":
        return (*factors_of(expr.left), *factors_of(expr.right))
    return (expr,)


def multiplied(factors: Sequence[Expr]) -> Expr:
    """The product of some factors."""
    return reduce(partial(Binary, "*"), factors)


def merged(names: Sequence[str], groups: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The roles of dims that hold these parts one after the other; None if a group is not a run of them."""
    of, roles, at = {name: role for role, group in groups.items() for name in group}, list[str](), 0
    while at < len(names):
        role = of.get(names[at])
        width = len(groups[role]) if role else 1
        if role and tuple(names[at : at + width]) != groups[role]:
            return None
        roles.append(role or outer_role(names[at]))
        at += width
    return tuple(roles)


def dims_of(workload: Workload, parts: Mapping[str, Part], read: Read) -> tuple[tuple[str, ...], ...] | None:
    """The parts of each dim of a tensor of which every element is read once; None for another."""
    result = []
    for index, dim in zip(read.indices, workload.tensors[read.tensor].dims, strict=True):
        names = tuple(name for name in parts if name in needed_by_index(index, parts))
        is_whole = isinstance(index, Axis) and workload.sizes[index.name] == dim
        # One half of an axis alone.
        is_half = len(names) == 1 and names[0] not in axes_of(index) and parts[names[0]].extent == dim
        if not is_whole and not (is_half and _is_one_quotient(index)):
            return None
        result.append(names)
    every = [name for names in result for name in names]
    return tuple(result) if len(set(every)) == len(every) else None


def _is_one_quotient(index: Expr) -> bool:
    dim = index_dim(index)
    return dim is not None and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1


def total_of(workload: Workload) -> str:
    """The dtype that the first stage adds up in."""
    return workload.element_types.reduced_type(workload.program.stages[0])


def in_words(parts: Mapping[str, Part], steps: Sequence[str], group: int = MAX_WORD) -> bool:
    """Whether the parts of k are a fixed number of elements that is a multiple of ``group``."""
    size = size_of(parts, steps)
    return size is not None and size % group == 0


def ordered_steps(workload: Workload, first: Stage, left: Sequence[Expr], right: Sequence[Expr]) -> tuple[str, ...]:
    """The reduced axes, those of windows outermost, and innermost the one that gathering runs along.

    That is one along which the left operand is contiguous, else any that is an index by itself: what is outside the
    tensor does not change along it.
    """
    new = [read for factor in (*left, *right) for read in reads(factor) if read.tensor not in workload.constants]
    of_left = [read for factor in left for read in reads(factor)]
    # As they lie in the left operand, so that it may be read in place.
    order = [index.name for read in of_left for index in read.indices if isinstance(index, Axis)]

    def is_of_window(axis: str) -> bool:
        indices = [index for read in new for index in read.indices if axis in axes_of(index)]
        return any({atom for atom in atoms_in(index) if isinstance(atom, str)} != {axis} for index in indices)

    plain_ones = [axis for axis in first.reduce_axes if not is_of_window(axis)]
    plain_ones.sort(key=lambda axis: order.index(axis) if axis in order else -1)
    is_new = any(read.tensor not in workload.constants for read in of_left)
    contiguous = [axis for axis in (*first.reduce_axes, *plain_ones) if is_new and is_contiguous(left, axis)]
    inner = contiguous[-1:] or plain_ones[-1:]
    windows = [axis for axis in first.reduce_axes if axis not in plain_ones]
    return (*(axis for axis in (*windows, *plain_ones) if axis not in inner), *inner)


def is_contiguous(factors: Sequence[Expr], axis: str) -> bool:
    """Whether vectors along an axis are loads, or the same in all lanes, and not all the latter."""
    steps = [stride(read, axis) for factor in factors for read in reads(factor)]
    indices = [index for factor in factors for read in reads(factor) for index in read.indices]
    is_indirect = any(axis in axes_of(inner) for index in indices for inner in reads(index))
    return not is_indirect and set(steps) in ({1}, {0, 1})
