"""What may stand behind a product: a chain of elementwise stages. No compiler needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tuner.program.expr import Axis, Extent, Read, reads
from tuner.program.notation import Stage
from tuner.program.workload import Workload
from tuner.schedule.access import axes_of_read, is_plain, values


def epilogue_problem(
    workload: Workload, rest: Sequence[Stage], operands: Collection[str], first: Stage | None = None,
    is_known: Callable[[Read], bool] = lambda read: False,
) -> str | None:  # fmt: skip
    """Why the stages behind ``first`` (the program's first one) are not a chain of elementwise ones that leave its
    ``operands`` alone. Reads that ``is_known`` takes may be any."""
    first = first or workload.program.stages[0]
    before = first.tensor
    for stage in rest:
        if problem := elementwise_problem(workload, stage, first.axes, {before}, operands, is_known):
            return problem
        before = stage.tensor
    return None if workload.program.outputs == (before,) else "an intermediate is an output, too"


def elementwise_problem(
    workload: Workload, stage: Stage, axes: tuple[str, ...], known: Collection[str], operands: Collection[str],
    is_known: Callable[[Read], bool] = lambda read: False,
) -> str | None:  # fmt: skip
    """Why a stage is not elementwise over ``axes``: in the stages ``known``, which have these axes, and in inputs that
    are none of the ``operands``. Reads that ``is_known`` takes may be any."""
    if stage.reducer or stage.axes != axes:
        return f"stage {stage.tensor} is not elementwise over the output"
    if any(isinstance(node, Axis | Extent) for node in values(stage.body)):
        return f"stage {stage.tensor} computes with the values of axes"
    for read in reads(stage.body):
        if read.tensor in known and axes_of_read(read) == axes:
            continue
        if read.tensor not in operands and is_known(read):
            continue
        if read.tensor in workload.program.stage or read.tensor in operands or not is_plain(read):
            return f"stage {stage.tensor} reads {read.tensor} other than element by element"
        dims = tuple(workload.sizes[axis] for axis in axes_of_read(read))
        if axes_of_read(read) != tuple(axis for axis in axes if axis in axes_of_read(read)) or (
            workload.tensors[read.tensor].dims != dims
        ):
            return f"stage {stage.tensor} reads {read.tensor} in another order than the output's"
    return None
