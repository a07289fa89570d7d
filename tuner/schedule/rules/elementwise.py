"""Programs without reductions: elementwise chains, layout transforms, casts and gathers, in one pass over the output.

Intermediates are computed where they are read. Axes of a micro-kernel:

==========  ====================================================================================================
``unroll``  vectors of the output that one turn of the innermost loop computes
``tile``    where a read is strided along the last axis (a transpose), elements of the square blocks in which the two
            axes are walked, so that lines of both tensors are used whole, and transposed in registers where they are
            as large as a vector; 0: not
``split``   which axis of the output, counted from the outermost one, is divided among the threads
==========  ====================================================================================================

No choice depends on a shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tuner.program.expr import Read, axes_of, reads, walk
from tuner.program.inline import inlined
from tuner.program.notation import Stage
from tuner.program.target import Target
from tuner.program.task import SearchTask
from tuner.program.workload import Workload
from tuner.schedule.access import looked_up, stride, vector_axis
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.estimates import (
    Floats,
    LoopRule,
    arithmetic_cycles,
    bytes_at,
    call_cycles,
    stream_rate,
    volume,
)
from tuner.schedule.loops.reading import Index, Known, Reader, write_outputs
from tuner.schedule.loops.shares import Share, in_split, in_vectors, over
from tuner.schedule.rule import Extents, NoMatch, matched
from tuner.schedule.signature import i64
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.memory import Vectors

MAX_SPLIT = 4
ROW_CYCLES = 5.0
TURN_CYCLES = 0.4
"""Of an element that is transposed in registers."""


@dataclass(frozen=True)
class OutputLoops:
    """How an output is computed: its stage over inputs alone, and whether the last axis runs in vectors.

    ``crossed``: another axis along which a read is contiguous that is strided along the last one (a transpose), so that
    the two are tiled. ``turned``: such reads, if squares of them can be transposed in registers; none if another read
    is in the way of that.
    """

    stage: Stage
    in_vectors: bool
    crossed: str | None
    turned: tuple[Read, ...]


@lru_cache(maxsize=1024)
def match(workload: Workload) -> tuple[OutputLoops, ...] | NoMatch:
    """The loops of each output of a program without reductions, or why it has some."""
    if any(stage.reducer for stage in workload.program.stages):
        return NoMatch("a stage is a reduction")
    program = inlined(workload)
    if program is None:
        return NoMatch("stages cannot be put into one another: one is padded, or they grow too long")
    if set(program.inputs) != set(workload.program.inputs):
        return NoMatch("an input is read by no output")
    return tuple(_loops(workload, stage) for stage in program.stages)


def _loops(workload: Workload, stage: Stage) -> OutputLoops:
    axis = vector_axis(workload, stage)
    if axis is not None or not stage.axes:
        return OutputLoops(stage, axis is not None, None, ())
    *outer, last = stage.axes
    strided = (read for read in reads(stage.body) if stride(read, last) not in (0, 1))
    crossed = next((axis for read in strided for axis in outer if stride(read, axis) == 1), None)
    return OutputLoops(stage, False, crossed, () if crossed is None else _turned(stage, crossed))


def _turned(stage: Stage, crossed: str) -> tuple[Read, ...]:
    """The reads that are contiguous along ``crossed``, if all others are along the last axis, or invariant."""
    last, turned = stage.axes[-1], []
    for read in dict.fromkeys(reads(stage.body)):
        if any({last, crossed} & axes_of(inner) for inner in looked_up(read)):
            return ()
        if stride(read, last) in (0, 1):
            continue
        if stride(read, crossed) != 1 or last in axes_of(read.indices[-1]):
            return ()
        turned.append(read)
    return tuple(turned)


def outputs_of(workload: Workload) -> tuple[OutputLoops, ...]:
    """The loops of a workload that the rule takes. Raises ValueError for another."""
    return matched(workload, match(workload))


class Injective(LoopRule):
    """See the module's text for the axes."""

    name = "injective"
    version = 2

    def roles(self, workload: Workload, target: Target) -> Mapping[str, str] | NoMatch:
        answer = match(workload)
        if isinstance(answer, NoMatch):
            return answer
        last = {axis for loops in answer for axis in loops.stage.axes[-1:]}
        return {axis: "inner" if axis in last else "outer" for axis in workload.program.axes}

    def space(self, task: SearchTask) -> SearchSpace:
        outputs = outputs_of(task.workload)
        rank = max(1, *(len(loops.stage.axes) for loops in outputs))
        splits = tuple(range(min(rank, MAX_SPLIT))) if task.threads > 1 else (0,)
        unrolls = (1, 2, 4, 8) if any(loops.in_vectors for loops in outputs) else (1,)
        tiles = (0, 8, 16, 32, 64) if any(loops.crossed for loops in outputs) else (0,)
        axes = (
            Axis("unroll", "vectors in a turn of the inner loop", unrolls),
            Axis("tile", "blocks of a transpose", tiles),
            Axis("split", "the axis divided among threads", splits),
        )
        return SearchSpace(self.name, self.version, axes, check=lambda kernel: None)

    def default_kernel(self, task: SearchTask) -> MicroKernel:
        unrolls, tiles, _ = (axis.choices for axis in self.space(task).axes)
        return self.space(task).kernel({"unroll": min(2, unrolls[-1]), "tile": tiles[-1], "split": 0})

    def cycles(self, task: SearchTask, kernel: MicroKernel, extents: Extents) -> Floats:
        lanes_of_vector = task.known_target.hardware.lanes()
        compute = volume((), extents) * 0.0
        for loops in outputs_of(task.workload):
            is_turned = bool(loops.turned) and kernel["tile"] >= lanes_of_vector
            lanes = lanes_of_vector if loops.in_vectors or is_turned else 1
            each = arithmetic_cycles(task.rates, list(walk(loops.stage.body))) / lanes
            each += 4.0 if loops.crossed and not kernel["tile"] else 0.0
            each += 0.5 / (kernel["unroll"] * lanes) + TURN_CYCLES * is_turned
            axes = loops.stage.axes
            compute += volume(axes, extents) * each + volume(axes[:-1], extents) * ROW_CYCLES
        moved = _moved(task, extents)
        work = np.maximum(compute, moved / stream_rate(task, moved)) / task.threads
        return np.asarray(work + call_cycles(task))

    def sizes(self, task: SearchTask, extents: Extents) -> list[Floats]:
        axes = [loops.stage.axes for loops in outputs_of(task.workload)]
        elements = np.max([volume(each, extents) for each in axes], axis=0)
        row = np.max([volume(each[-1:], extents) for each in axes], axis=0)
        return [np.log2(elements + 1), np.log2(_moved(task, extents) + 1), np.log2(row + 1), row % 8]

    def emit(self, task: SearchTask, kernel: MicroKernel, name: str) -> Any:
        with kernel_function(task.workload, {}, name) as function:
            for loops in outputs_of(task.workload):
                nest = _Nest(task, kernel, function, loops)
                in_split(loops.stage.axes, function.extents, kernel["split"], task.threads, nest.emit)
        return function.get()


def _moved(task: SearchTask, extents: Extents) -> Floats:
    """[shapes] bytes of every read and write."""
    stages = [loops.stage for loops in outputs_of(task.workload)]
    places = [(read.tensor, axes_of(read)) for stage in stages for read in dict.fromkeys(reads(stage.body))]
    return bytes_at([*places, *((stage.tensor, stage.axes) for stage in stages)], task.workload, extents)


class _Nest:
    """Writes the loops of one output."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, loops: OutputLoops) -> None:
        self.workload, self.kernel, self.function, self.loops = task.workload, kernel, function, loops
        self.stage = loops.stage
        is_wide = task.workload.element_types.type_of(loops.stage.body) in ("int64", "float64")
        self.lanes = task.known_target.hardware.lanes(8 if is_wide else 4)

    def emit(self, spans: Mapping[str, Share]) -> None:
        """The loops over the output's axes in order; a transposed pair is walked in blocks, innermost."""
        crossed = self.loops.crossed if self.kernel["tile"] else None
        if crossed is not None:
            outer = [axis for axis in self.stage.axes[:-1] if axis != crossed]
            over(outer, spans, lambda index: self._blocks(crossed, index, spans), {})
        elif self.loops.in_vectors and self.lanes > 1:
            over(self.stage.axes[:-1], spans, lambda index: self._vectors(index, spans), {})
        else:
            over(self.stage.axes, spans, lambda index: self._compute(index, 1, {}), {})

    def _vectors(self, index: Index, spans: Mapping[str, Share]) -> None:
        axis = self.stage.axes[-1]

        def compute(start: TirExpr, lanes: int, number: int) -> None:
            self._compute({**index, axis: start}, lanes, {})

        in_vectors(spans[axis], self.lanes, self.kernel["unroll"], compute)

    # -- a transpose ----------------------------------------------------------------------------------------------
    def _blocks(self, crossed: str, index: Index, spans: Mapping[str, Share]) -> None:
        """Square blocks of the last axis and the one that a read is contiguous along."""
        axes, tile, step = (crossed, self.stage.axes[-1]), i64(self.kernel["tile"]), i64(self.lanes)
        counts = [tirx.floordiv(last - first + tile - i64(1), tile) for first, last in (spans[axis] for axis in axes)]

        def elements(rows: Share, columns: Share) -> None:
            over(axes, dict(zip(axes, (rows, columns), strict=True)), lambda at: self._compute(at, 1, {}), index)

        with I.serial(i64(0), counts[0]) as row, I.serial(i64(0), counts[1]) as column:
            starts = [I.Bind(spans[axis][0] + at * tile) for axis, at in zip(axes, (row, column), strict=True)]
            ends = [tirx.min(start + tile, spans[axis][1]) for axis, start in zip(axes, starts, strict=True)]
            if not self.loops.turned or self.lanes == 1:
                elements((starts[0], ends[0]), (starts[1], ends[1]))
                return
            wholes = [
                I.Bind(start + tirx.truncdiv(end - start, step) * step) for start, end in zip(starts, ends, strict=True)
            ]
            self._squares(axes, index, (starts[0], wholes[0]), (starts[1], wholes[1]))
            elements((starts[0], wholes[0]), (wholes[1], ends[1]))
            elements((wholes[0], ends[0]), (starts[1], ends[1]))

    def _squares(self, axes: tuple[str, str], index: Index, rows: Share, columns: Share) -> None:
        """Squares of one vector each way: what lies across is transposed in registers."""
        step, (crossed, axis) = i64(self.lanes), axes
        counts = [tirx.truncdiv(last - first, step) for first, last in (rows, columns)]
        with I.serial(i64(0), counts[0]) as row, I.serial(i64(0), counts[1]) as column:
            start = {**index, crossed: rows[0] + row * step, axis: columns[0] + column * step}
            across = [
                self._reader({**start, axis: start[axis] + i64(number)}, self.lanes, crossed)
                for number in range(self.lanes)
            ]
            turned = {
                read: Vectors(self.lanes).transposed([bound(reader.read(read)) for reader in across])
                for read in self.loops.turned
            }
            for number in range(self.lanes):
                known: Known = {read: vectors[number] for read, vectors in turned.items()}
                self._compute({**start, crossed: start[crossed] + i64(number)}, self.lanes, known)

    # -- values ---------------------------------------------------------------------------------------------------
    def _compute(self, index: Index, lanes: int, known: Known) -> None:
        """One element of the output at ``index``, or ``lanes`` of them along the last axis; ``known``: reads of it."""
        reader = self._reader(index, lanes, self.stage.axes[-1] if lanes > 1 else None)
        write_outputs((self.stage,), reader.evaluator(known).value(self.stage.body), reader)

    def _reader(self, index: Index, lanes: int, along: str | None) -> Reader:
        return Reader(self.workload, self.function, self.function.buffers, index, lanes, along)
