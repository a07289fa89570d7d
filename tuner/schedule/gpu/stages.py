"""Any stage as one Triton kernel: blocks of its output, and a loop over what is reduced.

Elementwise stages over the same axes are one kernel together. A reduction has tiles of outputs and of what is reduced;
a short one of fixed extent is unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.program.language.expr import Axis, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.flat import axes_of, function, size_of
from tuner.schedule.gpu.functions import COMBINE, REDUCE, TYPES, identity
from tuner.schedule.gpu.module import Launch, host_size
from tuner.schedule.gpu.scope import Scope
from tuner.schedule.gpu.writer import Value, Writer, cast, spread

UNROLLED = 32
"""The most steps of a reduction that are written one after the other."""


@dataclass(frozen=True)
class Blocks:
    """Elements of the output, and steps of a reduction, in a tile."""

    outputs: int = 256
    reduced: int = 16
    num_warps: int = 4


def is_one_kernel(stages: Sequence[Stage]) -> bool:
    """Whether stages are over the same axes, read one another at their own elements, and the first alone reduces."""
    own = {stage.tensor: tuple(map(Axis, stage.axes)) for stage in stages}
    first, *rest = stages
    is_here = all(read.indices == own.get(read.tensor, read.indices) for s in stages for read in reads(s.body))
    return is_here and all(not stage.reducer and stage.axes == first.axes for stage in rest)


def emit_stages(workload: Workload, stages: Sequence[Stage], blocks: Blocks, name: str, is_wide: bool) -> Launch:
    """One kernel for ``stages``: elementwise ones, which may stand behind a reduction."""
    writer, stage, reduced = Writer(), stages[0], bool(stages[0].reducer)
    rank = 2 if reduced and not is_unrolled(workload, stage) else 1
    scope = Scope(writer, workload, {}, {}, is_wide)
    count = size_of(stage.axes, workload.sizes, scope.symbols)
    shape = (blocks.outputs, 1)[:rank]
    writer.line(f"places = tl.program_id(0) * {blocks.outputs} + tl.arange(0, {blocks.outputs})")
    at = Value(spread("places", 0, rank), "int32", frozenset({0}))
    if is_wide:
        at = writer.bind(cast(at, "int64"))
    axes = axes_of(writer, stage.axes, workload.sizes, scope.symbols, at)
    masks = {0: f"({at.text} < {count})"}
    if not stage.axes:
        axes, masks = {}, {}
    scope = scope.with_axes(axes, masks)
    for each in stages:
        value = _reduced(scope, each, blocks, rank) if each.reducer else scope.value(each.body)
        if each.tensor in workload.program.outputs:
            scope.store(each, value, masks, shape)
        scope.passed_through(each, value)
    grid = f"cdiv({host_size(workload, stage.axes)}, {blocks.outputs})" if stage.axes else "1"
    return Launch(function(workload, name, writer), (grid,), blocks.num_warps, 1)


def is_unrolled(workload: Workload, stage: Stage) -> bool:
    """Whether a reduction is short, and written step by step."""
    return (_volume(workload, stage) or UNROLLED + 1) <= UNROLLED


def _volume(workload: Workload, stage: Stage) -> int | None:
    total = 1
    for axis in stage.reduce_axes:
        size = workload.sizes[axis].constant
        if size is None:
            return None
        total *= size
    return total


def _reduced(scope: Scope, stage: Stage, blocks: Blocks, rank: int) -> Value:
    """The loop over what is reduced, and what it leaves."""
    workload, writer, reducer = scope.workload, scope.writer, str(stage.reducer)
    dtype = workload.element_types.reduced_type(stage)
    start, own = identity(reducer, dtype), frozenset({0}) if stage.axes else frozenset[int]()
    shape = f"({blocks.outputs if stage.axes else 1}, {blocks.reduced})" if rank == 2 else f"({blocks.outputs},)"
    if rank == 1:
        shape = shape if stage.axes else "(1,)"
        writer.line(f"total = tl.full({shape}, {start}, {TYPES[dtype]})")
        with writer.block(f"for step in range(0, {_volume(workload, stage)}):"):
            axes = axes_of(writer, stage.reduce_axes, workload.sizes, scope.symbols, Value("step", "int32"))
            value = scope.with_axes(axes).value(stage.body, dtype)
            writer.line(f"total = {COMBINE[reducer].format('total', value.text)}")
        return Value("total" if stage.axes else "tl.sum(total, axis=0)", dtype, own)
    count = size_of(stage.reduce_axes, workload.sizes, scope.symbols)
    writer.line(f"total = tl.full({shape}, {start}, {TYPES[dtype]})")
    with writer.block(f"for step in range(0, {count}, {blocks.reduced}):"):
        writer.line(f"steps = step + tl.arange(0, {blocks.reduced})[None, :]")
        at = Value("steps", "int32", frozenset({1}))
        axes = axes_of(writer, stage.reduce_axes, workload.sizes, scope.symbols, at)
        masks = {**scope.masks, 1: f"(steps < {count})"}
        value = scope.with_axes(axes, masks).value(stage.body, dtype)
        writer.line(f"total = {COMBINE[reducer].format('total', f'tl.where({masks[1]}, {value.text}, {start})')}")
    text = REDUCE[reducer].format("total", 1)
    writer.line(f"total_of_row = {text}")
    whole = Value("total_of_row" if stage.axes else "tl.sum(tl.sum(total_of_row, axis=1), axis=0)", dtype, own)
    return scope.or_nothing(stage, whole, count)
