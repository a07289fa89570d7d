"""Factors of a product: how each is read, and in which order they are summed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

from tuner.program.expr import Axis, Binary, Expr, Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.program import index_dim
from tuner.program.workload import Workload
from tuner.schedule.access import stride
from tuner.schedule.product.match.parts import Part, atoms_in, needed_by_index, outer_role, size_of

MAX_WORD = 4
"""Bytes, or elements of which an instruction takes the most in one step."""


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


def ordered_steps(
    workload: Workload, first: Stage, left: Sequence[Expr], right: Sequence[Expr]
) -> tuple[str, ...]:  # fmt: skip
    """The reduced axes, those of windows outermost, and innermost the one that gathering runs along.

    That is one along which the left operand is contiguous, else any that is an index by itself: what is outside the
    tensor does not change along it.
    """
    new = [read for factor in (*left, *right) for read in reads(factor) if read.tensor not in workload.constants]
    of_left = [read for factor in left for read in reads(factor)]
    # As they lie in the left operand, so that it may be read in place.
    order = [index.name for read in of_left for index in read.indices if isinstance(index, Axis)]
    plain_ones = [axis for axis in first.reduce_axes if not any(_is_of_window(read, axis) for read in new)]
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


def _is_of_window(read: Read, axis: str) -> bool:
    """Whether an axis is one of several in an index."""
    return any(
        axis in axes_of(index) and {a for a in atoms_in(index) if isinstance(a, str)} != {axis}
        for index in read.indices
    )
