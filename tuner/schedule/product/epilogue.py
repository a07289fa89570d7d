"""Elementwise stages behind a contraction, on one vector of results while it is in a register."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.program.expr import Read
from tuner.program.notation import Stage
from tuner.schedule.access import is_transcendental
from tuner.schedule.product.context import EmitContext
from tuner.schedule.tir import I, TirExpr
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, element_type, loaded
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE


def is_short(stages: Sequence[Stage]) -> bool:
    """Whether an epilogue is worth its code beside every accumulator: transcendental functions unrolled into every
    variant of a tile would be most of a kernel's code."""
    return not any(is_transcendental(stage.body) for stage in stages)


def through_epilogue(
    context: EmitContext, value: TirExpr, row: TirExpr, column: TirExpr, limit: TirExpr | None
) -> TirExpr:
    """``value``, the vector of the output at ``row`` from ``column`` on, after each stage of the epilogue in turn.
    Further inputs are read before column ``limit`` (None: all of the vector's lanes are)."""
    tensors, known = context.task.workload.tensors, dict[str, TirExpr]()

    def read(node: Read) -> TirExpr:
        if node.tensor in known:
            return known[node.tensor]
        buffer, outer, has_columns = context.result.read(context, node, row)
        element = context.vectors.load(buffer, outer, column, limit) if has_columns else buffer[outer]
        dtype = tensors[node.tensor].dtype
        return element if dtype == DTYPE else bound(loaded(bound(element), dtype))

    def unused(name: str) -> TirExpr:
        raise NotImplementedError(f"the pattern admits no value of axis {name}")

    evaluator = Evaluator(context.task.workload.element_types, context.vectors.lanes, read, unused, unused)
    before = context.result.computed
    for stage in context.result.epilogue:
        known[before] = I.Bind(rounded(value, tensors[before].dtype))
        value, before = evaluator.value(stage.body), stage.tensor
    return value


def rounded(value: TirExpr, dtype: str) -> TirExpr:
    """``value`` as a tensor of ``dtype`` would hold it."""
    return value if element_type(value) == dtype else cast(bound(value), dtype)
