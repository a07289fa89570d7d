"""What the injective rule looks for, and how its loops run. No compiler needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tuner.program.expr import Read, axes_of, reads
from tuner.program.inline import inlined
from tuner.program.notation import Stage
from tuner.program.program import Program
from tuner.program.shapes import ElementTypes
from tuner.program.workload import Workload
from tuner.schedule.access import stride, vector_axis
from tuner.schedule.rule import NoMatch, matched


@dataclass(frozen=True)
class Elementwise:
    """The outputs' stages over inputs alone, and the types of their expressions.

    ``vector``: by stage whether the last axis runs in vectors. ``crossed``: by stage another output axis along which a
    read is contiguous that is strided along the last one (a transpose), so that the two are tiled. ``turned``: by stage
    such reads, if squares of them can be transposed in registers; none if another read is in the way of that.
    """

    program: Program
    types: ElementTypes
    vector: dict[str, bool]
    crossed: dict[str, str | None]
    turned: dict[str, tuple[Read, ...]]

    @property
    def is_tiled(self) -> bool:
        return any(self.crossed.values())


@lru_cache(maxsize=1024)
def match(workload: Workload) -> Elementwise | NoMatch:
    """The loops of a program without reductions, or why it has some."""
    if any(stage.reducer for stage in workload.program.stages):
        return NoMatch("a stage is a reduction")
    program = inlined(workload)
    if program is None:
        return NoMatch("stages cannot be put into one another: one is padded, or they grow too long")
    if set(program.inputs) != set(workload.program.inputs):
        return NoMatch("an input is read by no output")
    types = ElementTypes(program, {name: dtype for name, dtype in workload.dtypes if name in program.tensors})
    vector, crossed, turned = {}, {}, {}
    for stage in program.stages:
        axis = vector_axis(workload, stage)
        vector[stage.tensor] = axis is not None and not axis.is_reduced
        crossed[stage.tensor] = other = None if vector[stage.tensor] else _crossed(stage)
        turned[stage.tensor] = _turned(stage, other) if other is not None else ()
    return Elementwise(program, types, vector, crossed, turned)


def _crossed(stage: Stage) -> str | None:
    """The output axis, other than the last, along which a read is contiguous that the last axis strides through."""
    if len(stage.axes) < 2:
        return None
    for read in reads(stage.body):
        if stage.axes[-1] in axes_of(read) and stride(read, stage.axes[-1]) != 1:
            axis = _contiguous(read, stage)
            if axis is not None:
                return axis
    return None


def _contiguous(read: Read, stage: Stage) -> str | None:
    return next((axis for axis in stage.axes[:-1] if stride(read, axis) == 1), None)


def _turned(stage: Stage, crossed: str) -> tuple[Read, ...]:
    """The reads that are contiguous along ``crossed``, if all others are along the last axis, or invariant."""
    last, turned = stage.axes[-1], []
    for read in dict.fromkeys(reads(stage.body)):
        looked_up = [inner for index in read.indices for inner in reads(index)]
        if any({last, crossed} & axes_of(inner) for inner in looked_up):
            return ()
        if stride(read, last) in (0, 1):
            continue
        if stride(read, crossed) != 1 or last in axes_of(read.indices[-1]):
            return ()
        turned.append(read)
    return tuple(turned)


def elementwise_of(workload: Workload) -> Elementwise:
    """The loops of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))
