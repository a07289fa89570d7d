"""What is read between the limits of a padded image: lanes of a vector, runs of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tuner.schedule.product.context import Chunk, EmitContext
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, bound_unless_known
from tuner.schedule.vector.dtypes import cast, lanes_of, loaded
from tuner.schedule.vector.memory import DTYPE, loaded_where


def end_inside(outer: Sequence[TirExpr], sizes: Sequence[TirExpr], length: TirExpr) -> TirExpr:
    """Where a line ends whose outer indices are these: at ``length``, or at 0 where one of them is outside its size."""
    inside: TirExpr = tirx.IntImm("bool", 1)
    for value, size in zip(outer, sizes, strict=True):
        inside = tirx.And(inside, tirx.And(value >= i64(0), value < size))
    return bound_unless_known(tirx.Select(inside, length, i64(0)))


def lanes_inside(element: TirExpr, end: TirExpr, lanes: int) -> TirExpr:
    """Which lanes of the vector at ``element`` of a line are in it: not before 0, and before ``end``."""
    limits = (i64(0) - element, end - element)
    first, last = (
        bound_unless_known(tirx.Cast("int32", tirx.max(tirx.min(limit, i64(lanes)), i64(0)))) for limit in limits
    )
    return between(tirx.Ramp(tirx.IntImm("int32", 0), 1, lanes), first, last)


def between(elements: TirExpr, first: TirExpr, last: TirExpr) -> TirExpr:
    """Which of a vector of int32 are not before ``first`` and before ``last``."""
    lanes = lanes_of(elements)
    return tirx.And(elements >= tirx.Broadcast(first, lanes), elements < tirx.Broadcast(last, lanes))


def padded_vector(
    context: EmitContext, tensor: str, buffer: TirExpr, place: Sequence[TirExpr], mask: TirExpr
) -> TirExpr:
    """What a tensor has there as float32, and what it is padded with in the other lanes."""
    lanes, workload = context.vectors.lanes, context.task.workload
    dtype, padding = workload.tensors[tensor].dtype, dict(workload.padding).get(tensor, 0.0)
    value = bound(loaded_where(mask, buffer, place))
    value = value if dtype == DTYPE else as_float32(value, dtype)
    return tirx.Select(mask, value, tirx.Broadcast(tirx.FloatImm(DTYPE, padding), lanes))


def as_float32(value: TirExpr, dtype: str) -> TirExpr:
    """``value``, read from a buffer of another ``dtype``. It is used several times: bind it."""
    return bound(cast(bound(loaded(value, dtype)), DTYPE))


@contextmanager
def runs_of_chunk(chunk: Chunk, size: TirExpr) -> Iterator[tuple[TirExpr, TirExpr, TirExpr, TirExpr]]:
    """The steps of a chunk as runs of ``size`` of them, cut where the chunk begins and ends: the run, the step that it
    begins at if it is whole, the first one of it in the chunk, and how many there are."""
    end = chunk.first + chunk.length
    with I.serial(tirx.truncdiv(chunk.first, size), tirx.truncdiv(end + size - i64(1), size)) as run:
        begin = run * size
        if chunk.is_first is None:
            first, length = begin, size
        else:
            first = bound_unless_known(tirx.max(begin, chunk.first))
            length = bound_unless_known(tirx.min(begin + size, end) - first)
        yield run, begin, first, length
