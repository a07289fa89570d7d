"""How the reads of a stage lie in memory, and which axis it can run in vectors along. No compiler needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tuner.program.expr import TRANSCENDENTAL, Axis, Call, Expr, Read, axes_of, children, reads, walk
from tuner.program.notation import Stage
from tuner.program.program import index_dim
from tuner.program.workload import Workload


@dataclass(frozen=True, slots=True)
class VectorAxis:
    """The axis that vectors run along; ``is_reduced`` if it is summed over."""

    name: str
    is_reduced: bool


def vector_axis(workload: Workload, stage: Stage) -> VectorAxis | None:
    """The axis for the vectors of a stage; None if there is none.

    The last axis of the output, along which stores are contiguous, or a reduced axis: the one with the fewest invariant
    reads, since those are as many loads for one element.
    """
    candidates = [VectorAxis(axis, True) for axis in reversed(stage.reduce_axes)]
    candidates = [VectorAxis(stage.axes[-1], False), *candidates] if stage.axes else candidates
    usable = [axis for axis in candidates if _is_usable(workload, stage, axis.name)]
    streamed = {axis: sum(axis.name in axes_of(read) for read in reads(stage.body)) for axis in usable}
    # Without a read along it a vector axis still shares the work of the rest.
    return max(usable, key=lambda axis: streamed[axis], default=None)


def _is_usable(workload: Workload, stage: Stage, axis: str) -> bool:
    size = workload.sizes[axis].constant
    is_short = size is not None and size < 4
    return not is_short and all(lies_along(read, axis) for read in reads(stage.body))


def lies_along(read: Read, axis: str) -> bool:
    """Whether vectors along ``axis`` are contiguous or invariant; an index tensor that is read along it is a gather."""
    return stride(read, axis) in (0, 1) and not any(axis in axes_of(inner) for inner in looked_up(read))


def looked_up(read: Read) -> list[Read]:
    """The reads inside the indices of a read."""
    return [inner for index in read.indices for inner in reads(index)]


def stride(read: Read, axis: str) -> int | None:
    """Elements between reads at neighbouring values of ``axis``: 1 if it occurs once, as a term of the last index, 0 if
    not at all; None for anything else."""
    step = step_of(read, axis)
    return step if step in (0, 1) else None


def step_of(read: Read, axis: str) -> int | None:
    """The same, but of any number of elements."""
    if axis not in axes_of(read):
        return 0
    *outer, last = read.indices
    if any(axis in axes_of(index) for index in outer):
        return None
    if isinstance(last, Axis):
        return 1
    dim = index_dim(last)
    if dim is None:
        return None
    steps = [coefficient for monomial, coefficient in dim.terms if monomial == (axis,)]
    elsewhere = any(axis in names_in(monomial) for monomial, _ in dim.terms if monomial != (axis,))
    return steps[0] if len(steps) == 1 and not elsewhere else None


def reduced_order(stage: Stage) -> tuple[str, ...]:
    """The reduced axes as they lie in the tensor that has the most of them, outermost first."""
    widest = max(reads(stage.body), key=lambda read: len(axes_of(read) & set(stage.reduce_axes)), default=None)
    indices = () if widest is None else widest.indices
    order = {axis: place for place, index in enumerate(indices) for axis in axes_of(index)}
    return tuple(sorted(stage.reduce_axes, key=lambda axis: order.get(axis, -1)))


def is_plain(read: Read) -> bool:
    """Whether every index is an axis."""
    return all(isinstance(index, Axis) for index in read.indices)


def axes_of_read(read: Read) -> tuple[str, ...]:
    """The axes that are indices by themselves, in order."""
    return tuple(index.name for index in read.indices if isinstance(index, Axis))


def is_transcendental(expr: Expr) -> bool:
    """Whether an expression calls a function of a dozen instructions and more."""
    return any(isinstance(node, Call) and node.function in TRANSCENDENTAL for node in walk(expr))


def names_in(monomial: tuple[object, ...]) -> frozenset[str]:
    result: frozenset[str] = frozenset()
    for atom in monomial:
        result |= {atom} if isinstance(atom, str) else atom.numerator.variables  # type: ignore[attr-defined]
    return result


def values(expr: Expr) -> Iterator[Expr]:
    """The nodes of an expression that are no part of an index."""
    yield expr
    if not isinstance(expr, Read):
        for child in children(expr):
            yield from values(child)


@dataclass(frozen=True)
class Dim:
    """An index ``step * place + dilation * window + first``; ``window``: None if there is none."""

    place: str
    step: int
    window: str | None
    dilation: int
    first: int


def dim_of(index: Expr, places: Collection[str], windows: Collection[str]) -> Dim | None:
    """An index as a place, and a step of a window; None for another."""
    dim = index_dim(index)
    if dim is None:
        return None
    place, step, window, dilation, first = "", 0, None, 1, 0
    for monomial, coefficient in dim.terms:
        name = monomial[0] if len(monomial) == 1 else None
        if monomial == ():
            first = coefficient
        elif isinstance(name, str) and name in places and not place and coefficient > 0:
            place, step = name, coefficient
        elif isinstance(name, str) and name in windows and window is None and coefficient > 0:
            window, dilation = name, coefficient
        else:
            return None
    return Dim(place, step, window, dilation, first) if place else None
