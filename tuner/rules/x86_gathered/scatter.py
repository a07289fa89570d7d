"""Results written from a buffer to where they belong, through the elementwise stages. Imports TVM."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.expr import Read, reads
from tuner.rules.access import stride
from tuner.rules.reading import Reader
from tuner.rules.signature import i64
from tuner.rules.vector.arithmetic import bound
from tuner.rules.vector.dtypes import cast, element_type, stored
from tuner.rules.vector.expression import Evaluator
from tuner.rules.vector.memory import Vectors
from tuner.rules.x86_contraction.epilogue import rounded
from tuner.rules.x86_gathered.frame import FormFrame, Values

Expr = Any
Range = tuple[Expr, Expr]
"""The first of something, and how many."""


def scatter(frame: FormFrame, buffer: Expr, rows: Range, columns: Range, skipped: Expr) -> None:
    """These rows and columns of the output, in runs of the last axis of n.

    ``buffer`` holds them from [0, ``skipped``] on.
    """
    inner, lanes = frame.contraction.n[-1], frame.vectors.lanes if in_vectors(frame) else 1
    with I.serial(i64(0), rows[1]) as r:
        of_row = {**frame.outer, **frame.decomposed(frame.contraction.m, rows[0] + r)}
        with frame.runs(frame.contraction.n, *columns) as (values, first, last, shift):
            count = tirx.truncdiv(last - first + i64(lanes - 1), i64(lanes))
            with I.serial(i64(0), count) as v:
                column = I.Bind(first + v * i64(lanes))
                _store(frame, {**of_row, **values, inner: column}, buffer, (r, skipped + column + shift), last, lanes)


def in_vectors(frame: FormFrame) -> bool:
    """Whether the last axis of n is that of the output, and the stages behind the contraction read vectors along it."""
    axis = frame.contraction.parts[frame.contraction.n[-1]].axis
    behind = [read for stage in frame.contraction.stages for read in reads(stage.body)]
    is_indirect = any(reads(index) for read in behind for index in read.indices)
    is_last = axis == frame.task.workload.program.stages[0].axes[-1]
    return is_last and not is_indirect and {stride(read, axis) for read in behind} <= {0, 1}


def _store(
    frame: FormFrame, values: Values, buffer: Expr, place: tuple[Expr, Expr], last: Expr, lanes: int
) -> None:  # fmt: skip
    """One vector of results, those before ``last`` along the last axis of n, through the stages."""
    task, index = frame.task, frame.index(values)
    axis, column = frame.contraction.parts[frame.contraction.n[-1]].axis, values[frame.contraction.n[-1]]
    vectors = Vectors(lanes)
    # Along an axis of two parts, what is past the last one of the run lies as much past it in the axis.
    limit = index[axis] + (last - column)
    past = place[1] + (last - column)
    result = buffer[place] if lanes == 1 else vectors.load(buffer, place[:1], place[1], past)

    def read(node: Read) -> Expr:
        if node.tensor in task.workload.program.stage:
            return result
        along = axis if lanes > 1 else None
        return Reader(task.workload, frame.function, frame.buffers, index, lanes, along, limit).read(node)

    def value_of(name: str) -> Expr:
        return tirx.Ramp(index[name], i64(1), lanes) if name == axis and lanes > 1 else index[name]

    evaluator = Evaluator(task.workload.element_types, lanes, read, value_of, frame.function.extents.__getitem__)
    for before, stage in zip(task.workload.program.stages, frame.contraction.stages, strict=False):
        result = bound(rounded(result, task.workload.tensors[before.tensor].dtype))
        result = evaluator.value(stage.body)
    if element_type(result) != frame.contraction.out_dtype:
        result = bound(cast(bound(result), frame.contraction.out_dtype))
        result = stored(result, frame.contraction.out_dtype)
    *outer, last_index = (index[name] for name in task.workload.program.stages[0].axes)
    out = frame.buffers[frame.contraction.out]
    if lanes == 1:
        I.buffer_store(out, result, [*outer, last_index])
    else:
        vectors.store(out, result, outer, last_index, limit)
