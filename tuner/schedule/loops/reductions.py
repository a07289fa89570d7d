"""Programs of one reduction with elementwise stages on its result, and what reductions accumulate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tuner.program.expr import Axis, Binary, reads
from tuner.program.notation import Stage
from tuner.program.shapes import ElementTypes
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.rule import need
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound, like, multiply_add
from tuner.schedule.vector.dtypes import constant
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.functions import COMBINE, identity
from tuner.schedule.vector.memory import Vectors, rotated

MIN_VECTOR = 4
"""Extents of the last axis below this have no use for vectors."""

Parts = tuple[Stage, tuple[Stage, ...]]
"""The reduction, and the stages on its result."""


def one_reduction(workload: Workload) -> Parts:
    """The parts of a program whose vectors run along the last axis of the output. Raises Mismatch."""
    reductions = [stage for stage in workload.program.stages if stage.reducer]
    need(len(reductions) == 1, f"it has {len(reductions)} reductions, not one")
    (stage,) = reductions
    need(bool(stage.axes), "the reduction leaves no axis")
    size = workload.sizes[stage.axes[-1]].constant
    need(size is None or size >= MIN_VECTOR, f"{stage.axes[-1]} is too short for vectors")
    for tensor in workload.tensors.values():
        need(tensor.dtype != "bool", f"{tensor.name} is bool")
    for other in workload.program.stages:
        # Lanes past the end of a row hold anything, zeros included.
        divides = any(isinstance(node, Binary) and node.operator in ("//", "%") for node in values(other.body))
        need(not divides, f"stage {other.tensor} divides integers")
    after = tuple(other for other in workload.program.stages if other is not stage)
    own, here = workload.program.stage, tuple(map(Axis, stage.axes))
    for other in after:
        need(other.axes == stage.axes, f"stage {other.tensor} has other axes than the reduction")
        is_before = any(read.tensor in own for read in reads(stage.body))
        need(not is_before, f"stage {other.tensor} comes before the reduction")
        is_here = all(read.indices == here for read in reads(other.body) if read.tensor in own)
        need(is_here, f"stage {other.tensor} reads another stage elsewhere than at its own indices")
    return stage, after


def start_value(stage: Stage, dtype: str, lanes: int) -> TirExpr:
    """What a reduction gives over nothing."""
    return constant(identity(str(stage.reducer), dtype), dtype, lanes)


def addition(
    stage: Stage, dtype: str, evaluator: Evaluator, within: Callable[[TirExpr, TirExpr], TirExpr] | None = None
) -> Callable[[TirExpr], TirExpr]:
    """Writes one value of a reduction, in ``dtype``; what makes a new total of a bound one. ``within``: of two vectors
    the first one in the lanes that count, the second one in others."""
    body, combine = stage.body, COMBINE[str(stage.reducer)]
    if stage.reducer == "sum" and dtype.startswith("float") and isinstance(body, Binary) and body.operator == "*":
        left, right = (bound(evaluator.value(side, dtype)) for side in (body.left, body.right))
        if within is not None:
            # Not the sum is masked: of a masked multiply-add LLVM may load an operand without its mask, past the row.
            left, right = (within(side, like(0, side)) for side in (left, right))
        return partial(multiply_add, left, right)
    value = bound(evaluator.value(body, dtype))
    if within is None:
        return partial(combine, value)
    return lambda total: within(bound(combine(value, total)), total)


class Accumulators:
    """Vectors in which one reduction is accumulated, each in a buffer of its own, which LLVM turns into registers."""

    def __init__(self, stage: Stage, types: ElementTypes, vectors: Vectors, count: int) -> None:
        self.stage, self.dtype, self.vectors = stage, types.reduced_type(stage), vectors
        self.combine = COMBINE[str(stage.reducer)]
        self.buffers = [I.alloc_buffer((vectors.lanes,), self.dtype) for _ in range(count)]
        for number in range(count):
            self._put(number, start_value(stage, self.dtype, vectors.lanes))

    def add(self, number: int, evaluator: Evaluator, within: Callable[[TirExpr, TirExpr], TirExpr]) -> None:
        """One value more to accumulator ``number``; see ``addition``."""
        before = bound(self._get(number))
        self._put(number, addition(self.stage, self.dtype, evaluator, within)(before))

    def total(self) -> TirExpr:
        """One scalar: pairs of accumulators, then halves of the last one.

        By way of the buffers: the simplifier takes exponential time over a chain of names that are used several times
        each.
        """
        count = len(self.buffers)
        while count > 1:
            for number in range(count // 2):
                self._put(number, self.combine(bound(self._get(2 * number)), bound(self._get(2 * number + 1))))
            if count % 2:
                self._put(count // 2, self._get(count - 1))
            count -= count // 2
        span = self.vectors.lanes // 2
        while span:
            whole = bound(self._get(0))
            self._put(0, self.combine(bound(rotated(whole, span)), whole))
            span //= 2
        return bound(tirx.Shuffle([bound(self._get(0))], [tirx.IntImm("int32", 0)]))

    def _put(self, number: int, value: TirExpr) -> None:
        I.buffer_store(self.buffers[number], value, [self.vectors.ramp(0)])

    def _get(self, number: int) -> TirExpr:
        return self.buffers[number][self.vectors.ramp(0)]
