"""The elementwise stages behind a reduction on a vector of its result, and the outputs stored."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.program.expr import Read
from tuner.program.notation import Stage
from tuner.schedule.loops.reading import Reader
from tuner.schedule.tir import TirExpr
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, stored
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors


def write_outputs(stages: Sequence[Stage], value: TirExpr, reader: Reader) -> None:
    """``value`` is what the first of ``stages`` computes, a vector along its last axis; the others follow from it.

    ``reader`` stands at the first element of the vector, and reads what else the stages need. Those of the stages that
    are outputs of the program are stored.
    """
    workload, function, known = reader.workload, reader.function, dict[str, TirExpr]()

    def read(node: Read) -> TirExpr:
        return known[node.tensor] if node.tensor in known else reader.read(node)

    types, extent = workload.element_types, function.extents.__getitem__
    evaluator = Evaluator(types, reader.lanes, read, reader.axis, extent)
    for stage in stages:
        result = evaluator.value(stage.body) if known else value
        dtype = workload.tensors[stage.tensor].dtype
        known[stage.tensor] = bound(cast(bound(result), dtype))
        if stage.tensor in workload.program.outputs:
            *prefix, column = (reader.index[axis] for axis in stage.axes)
            buffer, result = function.buffers[stage.tensor], stored(known[stage.tensor], dtype)
            Vectors(reader.lanes).store(buffer, result, prefix, column, reader.limit)
