"""What the rule for column reductions takes. No compiler needed.

``out[.., n] = reduce(k, ..) f(x[.., k, .., n], ...)``: one reduction that streams a tensor whose contiguous axis is the
last one of the output, and elementwise stages on its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tuner.program.expr import Read, axes_of, reads
from tuner.program.notation import Stage
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import stride
from tuner.schedule.loops.reductions import one_reduction
from tuner.schedule.rule import NoMatch, matched


@dataclass(frozen=True)
class ColumnProgram:
    """``rows``: the reduced axes as they lie in the tensor that has most of them, outermost first; ``outer``: the axes
    of the output before ``column``; ``after``: elementwise stages on the result of ``stage``."""

    stage: Stage
    after: tuple[Stage, ...]
    rows: tuple[str, ...]

    @property
    def outer(self) -> tuple[str, ...]:
        return self.stage.axes[:-1]

    @property
    def column(self) -> str:
        return self.stage.axes[-1]


@lru_cache(maxsize=1024)
def match(workload: Workload) -> ColumnProgram | NoMatch:
    """The reduction of a workload, or why it is none of columns."""
    parts = one_reduction(workload)
    if isinstance(parts, NoMatch):
        return parts
    stage, after = parts
    problem = _stream_problem(workload, stage) or _read_problem((stage, *after))
    return NoMatch(problem) if problem else ColumnProgram(stage, after, _row_order(stage))


def column_program_of(workload: Workload) -> ColumnProgram:
    """The reduction of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


def _stream_problem(workload: Workload, stage: Stage) -> str | None:
    if workload.padding:
        return "a tensor is padded"
    every = {*stage.axes, *stage.reduce_axes}
    streams = [read for read in reads(stage.body) if every <= axes_of(read) and stride(read, stage.axes[-1]) == 1]
    return None if streams else f"no tensor lies along {stage.axes[-1]} and has all axes: it is of rows, or a product"


def _read_problem(stages: tuple[Stage, ...]) -> str | None:
    column = stages[0].axes[-1]
    for read in (read for stage in stages for read in reads(stage.body)):
        looked_up = [inner for index in read.indices for inner in reads(index)]
        if stride(read, column) not in (0, 1) or any(column in axes_of(inner) for inner in looked_up):
            return f"{read.tensor} does not lie along {column}"
    return None


def _row_order(stage: Stage) -> tuple[str, ...]:
    widest = max(reads(stage.body), key=lambda read: _count(read, stage))
    order = {axis: place for place, index in enumerate(widest.indices) for axis in axes_of(index)}
    return tuple(sorted(stage.reduce_axes, key=lambda axis: order.get(axis, -1)))


def _count(read: Read, stage: Stage) -> int:
    return len(axes_of(read) & set(stage.reduce_axes))


def lanes_of(task: SearchTask) -> int:
    """Elements of a vector: of 8 bytes if the reduction or what is made of it has such."""
    program, types = column_program_of(task.workload), task.workload.element_types
    computed = [types.reduced_type(program.stage), *(types.type_of(stage.body) for stage in program.after)]
    return task.known_target.hardware.lanes(8 if any(dtype in ("int64", "float64") for dtype in computed) else 4)
