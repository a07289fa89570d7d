"""Programs of one reduction with elementwise stages on its result. No compiler needed."""

from __future__ import annotations

from tuner.program.expr import Axis, Binary, reads
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.access import values
from tuner.schedule.rule import NoMatch

MIN_VECTOR = 4
"""Extents of the last axis below this have no use for vectors."""

Parts = tuple[Stage, tuple[Stage, ...]]
"""The reduction, and the stages on its result."""


def one_reduction(workload: Workload) -> Parts | NoMatch:
    """The parts of a program whose vectors run along the last axis of the output; why it is no such program."""
    reductions = [stage for stage in workload.program.stages if stage.reducer]
    if len(reductions) != 1:
        return NoMatch(f"it has {len(reductions)} reductions, not one")
    (stage,) = reductions
    after = tuple(other for other in workload.program.stages if other is not stage)
    problem = _problem(workload, stage) or next(filter(None, (_after(stage, other, after) for other in after)), None)
    return NoMatch(problem) if problem else (stage, after)


def _problem(workload: Workload, stage: Stage) -> str | None:
    if not stage.axes:
        return "the reduction leaves no axis"
    size = workload.sizes[stage.axes[-1]].constant
    if size is not None and size < MIN_VECTOR:
        return f"{stage.axes[-1]} is too short for vectors"
    boolean = next((tensor.name for tensor in workload.tensors.values() if tensor.dtype == "bool"), None)
    if boolean is not None:
        return f"{boolean} is bool"
    for other in workload.program.stages:
        # Lanes past the end of a row hold anything, zeros included.
        if any(isinstance(node, Binary) and node.operator in ("//", "%") for node in values(other.body)):
            return f"stage {other.tensor} divides integers"
    return None


def _after(stage: Stage, other: Stage, after: tuple[Stage, ...]) -> str | None:
    own = {stage.tensor, *(each.tensor for each in after)}
    if other.axes != stage.axes:
        return f"stage {other.tensor} has other axes than the reduction"
    if any(read.tensor in own for read in reads(stage.body)):
        return f"stage {other.tensor} comes before the reduction"
    here = tuple(map(Axis, stage.axes))
    if any(read.tensor in own and read.indices != here for read in reads(other.body)):
        return f"stage {other.tensor} reads another stage elsewhere than at its own indices"
    return None
