"""What the rule for row reductions takes, and the passes over a row that it needs. No compiler needed.

A pass is a loop over the columns of a row. A reduction can be computed once every reduction that it reads is known, so
softmax takes three passes: the maximum, the sum of exponentials, the quotients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tuner.program.dtypes import DTYPES
from tuner.program.expr import Axis, Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.shapes import ElementTypes
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import is_transcendental
from tuner.schedule.rule import NoMatch, matched
from tuner.schedule.rules.rows.frame import Frame, frame_of, hoisted, input_reads


@dataclass(frozen=True)
class Pass:
    """One loop over the columns: what is reduced, what is written (outputs, or intermediates that later passes read),
    and the values of a row that are known afterwards."""

    reductions: tuple[Stage, ...]
    written: tuple[Stage, ...]
    after: tuple[Stage, ...]
    evaluated: tuple[Stage, ...]
    """Every stage whose body is computed for each column, reductions included."""

    @property
    def is_heavy(self) -> bool:
        """Whether it calls a function of many instructions."""
        return any(is_transcendental(stage.body) for stage in self.evaluated)


@dataclass(frozen=True)
class RowProgram:
    """A program as passes over rows. ``before``: values of a row that need no pass.

    ``homes``: where later passes read what ``written`` of an earlier one holds: an output (the stage itself, or one
    that is written over it in a later pass), or None, a workspace of one block of rows. Others are computed again.
    """

    frame: Frame
    types: ElementTypes
    before: tuple[Stage, ...]
    passes: tuple[Pass, ...]
    homes: Mapping[str, str | None]

    @property
    def is_heavy(self) -> bool:
        return any(each.is_heavy for each in self.passes)

    @property
    def divides_columns(self) -> bool:
        """Whether columns can be divided among threads: a single pass that only reduces."""
        return len(self.passes) == 1 and bool(self.passes[0].reductions) and not self.passes[0].written

    @property
    def most_reductions(self) -> int:
        """Of one pass."""
        return max(len(each.reductions) for each in self.passes)


@lru_cache(maxsize=1024)
def match(workload: Workload) -> RowProgram | NoMatch:
    """The passes of a workload, or why it is not made of reductions along rows."""
    if workload.padding:
        return NoMatch("a tensor is padded")
    frame = frame_of(workload)
    if isinstance(frame, NoMatch):
        return frame
    problem = _dtype_problem(workload, frame) or _read_problem(frame) or _contraction(frame)
    return NoMatch(problem) if problem else _row_program(workload, *hoisted(frame, workload.element_types))


def row_program_of(workload: Workload) -> RowProgram:
    """The passes of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def columns_choice(program: RowProgram) -> int:
    """The value of the axis ``split`` that stands for the columns; those below it for axes of the rows, or for none."""
    return max(1, len(program.frame.rows))


# -- what is refused ----------------------------------------------------------------------------------------------
def _dtype_problem(workload: Workload, frame: Frame) -> str | None:
    for stage in frame.stages:
        if stage.reducer and workload.element_types.reduced_type(stage) == "bool":
            return f"stage {stage.tensor} reduces bools"
    return next((f"{tensor.name} is bool" for tensor in workload.tensors.values() if tensor.dtype == "bool"), None)


def _read_problem(frame: Frame) -> str | None:
    for read in input_reads(frame.stages):
        for axis in frame.columns:
            along = [index for index in read.indices if axis in axes_of(index)]
            if any(index != Axis(axis) for index in along) or len(along) > 1:
                return f"{read.tensor} is read along a row otherwise than element by element"
        if frame.vector in axes_of(read) and read.indices[-1] != Axis(frame.vector):
            return f"{read.tensor} does not lie along the rows: its last axis is another"
    return None


def _contraction(frame: Frame) -> str | None:
    """Every reduction must stream through one tensor: otherwise elements are used again, and tiles would pay."""
    inputs: dict[str, list[Read]] = {}
    for stage in frame.stages:
        own = reads(stage.body)
        inputs[stage.tensor] = [read for read in own if read.tensor not in inputs]
        inputs[stage.tensor] += [read for inner in own if inner.tensor in inputs for read in inputs[inner.tensor]]
        if stage.reducer and not any(set(frame.axes) <= axes_of(read) for read in inputs[stage.tensor]):
            return f"no tensor that stage {stage.tensor} reads lies along all its axes: it is a contraction"
    return None


# -- passes -------------------------------------------------------------------------------------------------------
def _row_program(workload: Workload, frame: Frame, types: ElementTypes) -> RowProgram:
    level = _levels(frame)
    outputs = [stage for stage in frame.stages if stage.tensor in workload.program.outputs]
    homes: dict[str, str | None] = {stage.tensor: stage.tensor for stage in outputs if stage.axes == frame.axes}
    # Of several stages in a chain the last one, which spares the others.
    for stage in reversed(frame.stages):
        if stage.axes == frame.axes and stage.tensor not in homes and is_transcendental(stage.body):
            uses = [number for number in range(_count(level)) if stage in _evaluated(frame, level, homes, number)]
            if len(uses) > 1:
                homes[stage.tensor] = _home(workload, frame, level, homes, stage, uses[-1])
    passes = []
    for number in range(_count(level)):
        reductions = tuple(s for s in frame.stages if s.reducer and level[s.tensor] == number + 1)
        written = tuple(s for s in frame.stages if s.tensor in homes and level[s.tensor] == number)
        passes.append(
            Pass(reductions, written, _row_stages(frame, level, number + 1), _evaluated(frame, level, homes, number))
        )
    while not passes[-1].reductions and not passes[-1].written:
        passes.pop()
    return RowProgram(frame, types, _row_stages(frame, level, 0), tuple(passes), homes)


def _levels(frame: Frame) -> dict[str, int]:
    """By stage how many passes must be over before its value is known (a row) or can be computed (a column)."""
    level: dict[str, int] = {}
    for stage in frame.stages:
        needed = max((level[read.tensor] for read in reads(stage.body) if read.tensor in level), default=0)
        level[stage.tensor] = needed + 1 if stage.reducer else needed
    return level


def _count(level: Mapping[str, int]) -> int:
    return max(level.values()) + 1


def _row_stages(frame: Frame, level: Mapping[str, int], number: int) -> tuple[Stage, ...]:
    stages = [stage for stage in frame.stages if stage.axes == frame.rows and not stage.reducer]
    return tuple(stage for stage in stages if level[stage.tensor] == number)


def _evaluated(
    frame: Frame, level: Mapping[str, int], homes: Mapping[str, str | None], number: int
) -> tuple[Stage, ...]:
    """The stages whose bodies pass ``number`` computes for every column: what it needs and has not in memory."""
    needed: set[str] = set()
    for stage in reversed(frame.stages):
        if stage.reducer:
            is_needed = level[stage.tensor] == number + 1
        else:
            is_stored = stage.tensor in homes
            is_needed = level[stage.tensor] == number if is_stored else stage.tensor in needed
            is_needed = is_needed and frame.spans_columns(stage.tensor)
        if is_needed:
            needed |= {stage.tensor, *(read.tensor for read in reads(stage.body))}
        else:
            needed.discard(stage.tensor)
    return tuple(stage for stage in frame.stages if stage.tensor in needed and _is_computed(frame, stage))


def _is_computed(frame: Frame, stage: Stage) -> bool:
    return bool(stage.reducer) or stage.axes == frame.axes


def _home(
    workload: Workload,
    frame: Frame,
    level: Mapping[str, int],
    homes: Mapping[str, str | None],
    stage: Stage,
    last_use: int,
) -> str | None:
    """An output of the same dtype that is not written before the last use, and holds nothing else."""
    dtype = workload.tensors[stage.tensor].dtype
    taken = _guests(homes)
    for other in frame.stages:
        is_output = other.tensor in workload.program.outputs and other.axes == frame.axes
        fits = is_output and workload.tensors[other.tensor].dtype == dtype and other.tensor not in taken
        if fits and level[other.tensor] >= last_use:
            return other.tensor
    return None


def _guests(homes: Mapping[str, str | None]) -> Iterable[str | None]:
    return {home for tensor, home in homes.items() if home != tensor}


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: the widest type of the program fills a register."""
    workload = task.workload
    computed = [workload.element_types.type_of(stage.body) for stage in workload.program.stages]
    types = [*(DTYPES[tensor.dtype].compute for tensor in workload.tensors.values()), *computed]
    widest = max(
        DTYPES[dtype].bytes for dtype in types if dtype != "int64" or "int64" in dict(workload.dtypes).values()
    )
    return task.known_target.hardware.lanes(max(widest, 4))
