"""How the reads of a stage lie in memory, and which axis it can run in vectors along. No compiler needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import TRANSCENDENTAL, Axis, Binary, Call, Expr, Read, axes_of, children, reads, walk
from tuner.program.language.inline import with_producers
from tuner.program.language.notation import Stage
from tuner.program.language.program import index_dim
from tuner.program.language.workload import Workload
from tuner.schedule.rule import need

MIN_VECTOR = 4
"""Extents below this have no use for vectors."""


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
    every, candidates = reads(stage.body), [VectorAxis(axis, False) for axis in stage.axes[-1:]]
    candidates += [VectorAxis(axis, True) for axis in reversed(stage.reduce_axes)]
    long = [axis for axis in candidates if not _is_short(workload, axis.name)]
    usable = [axis for axis in long if all(lies_along(read, axis.name) for read in every)]
    # Without a read along it a vector axis still shares the work of the rest.
    return max(usable, key=lambda axis: sum(axis.name in axes_of(read) for read in every), default=None)


def _is_short(workload: Workload, axis: str) -> bool:
    size = workload.sizes[axis].constant
    return size is not None and size < MIN_VECTOR


def one_reduction(workload: Workload) -> tuple[Stage, tuple[Stage, ...]]:
    """The reduction of a program whose vectors run along the last axis of the output, with the elementwise stages that
    it reads put into it, and those on its result. Raises Mismatch."""
    reductions = [stage for stage in workload.program.stages if stage.reducer]
    need(len(reductions) == 1, f"it has {len(reductions)} reductions, not one")
    (stage,) = reductions
    need(bool(stage.axes), "the reduction leaves no axis")
    need(not _is_short(workload, stage.axes[-1]), f"{stage.axes[-1]} is too short for vectors")
    for tensor in workload.tensors.values():
        need(tensor.dtype != "bool", f"{tensor.name} is bool")
    for other in workload.program.stages:
        # Lanes past the end of a row hold anything, zeros included.
        divides = any(isinstance(node, Binary) and node.operator in ("//", "%") for node in values(other.body))
        need(not divides, f"stage {other.tensor} divides integers")
    stage, produced = with_producers(workload, stage)
    after = tuple(other for other in workload.program.stages if other.tensor not in {stage.tensor, *produced})
    own, here = workload.program.stage, tuple(map(Axis, stage.axes))
    for other in after:
        need(other.axes == stage.axes, f"stage {other.tensor} has other axes than the reduction")
        is_before = any(read.tensor in own for read in reads(stage.body))
        need(not is_before, f"stage {other.tensor} comes before the reduction")
        is_here = all(read.indices == here for read in reads(other.body) if read.tensor in own)
        need(is_here, f"stage {other.tensor} reads another stage elsewhere than at its own indices")
    return stage, after


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
    """``stride``, of any number of elements."""
    if axis not in axes_of(read):
        return 0
    *outer, last = read.indices
    dim = index_dim(last)
    if dim is None or any(axis in axes_of(index) for index in outer):
        return None
    along = {monomial: step for monomial, step in dim.terms if axis in DimExpr(((monomial, step),)).variables}
    return along.get((axis,)) if len(along) == 1 else None


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
