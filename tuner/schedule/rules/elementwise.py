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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import Read, axes_of, reads, walk
from tuner.program.language.inline import inlined
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import looked_up, stride, vector_axis
from tuner.schedule.function import KernelFunction
from tuner.schedule.loops.estimates import Floats, LoopRule, body_cycles, bytes_at, lanes_for, roofline, volume
from tuner.schedule.loops.reading import NOTHING, Index, Known, Nest, write_outputs
from tuner.schedule.loops.shares import Share, in_split, in_vectors, over, splits
from tuner.schedule.rule import Extents, Mismatch, need, pattern
from tuner.schedule.space import Axis, MicroKernel
from tuner.schedule.tir import I, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import SHORT_FLOATS

MAX_TILE = 64
ROW_CYCLES = 5.0
TURN_CYCLES = 0.4
"""Cycles of an element that is transposed in registers."""


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


Outputs = tuple[OutputLoops, ...]


@pattern
def match(workload: Workload) -> Outputs:
    """The loops of each output of a program without reductions."""
    need(not any(stage.reducer for stage in workload.program.stages), "a stage is a reduction")
    program = inlined(workload)
    if program is None:
        raise Mismatch("stages cannot be put into one another: one is padded, or they grow too long")
    need(set(program.inputs) == set(workload.program.inputs), "an input is read by no output")
    return tuple(_loops(workload, stage) for stage in program.stages)


def _loops(workload: Workload, stage: Stage) -> OutputLoops:
    axis = vector_axis(workload, stage)
    if axis is not None or not stage.axes:
        return OutputLoops(stage, axis is not None, None, ())
    *outer, last = stage.axes
    strided = (read for read in reads(stage.body) if stride(read, last) is None)
    crossed = next((axis for read in strided for axis in outer if stride(read, axis) == 1), None)
    return OutputLoops(stage, False, crossed, () if crossed is None else _turned(stage, crossed))


def _turned(stage: Stage, crossed: str) -> tuple[Read, ...]:
    """The reads that are contiguous along ``crossed``, if all others are along the last axis, or invariant."""
    last, turned = stage.axes[-1], []
    for read in dict.fromkeys(reads(stage.body)):
        if any({last, crossed} & axes_of(inner) for inner in looked_up(read)):
            return ()
        if stride(read, last) is not None:
            continue
        if stride(read, crossed) != 1 or last in axes_of(read.indices[-1]):
            return ()
        turned.append(read)
    return tuple(turned)


class Elementwise(LoopRule[Outputs]):
    """See the module's text for the axes."""

    name = "injective"
    version = 2
    find = staticmethod(match)

    def named(self, workload: Workload, found: Outputs) -> Mapping[str, str]:
        inner = {axis: "inner" for loops in found for axis in loops.stage.axes[-1:]}
        return dict.fromkeys(workload.program.axes, "outer") | inner

    def axes(self, task: SearchTask, found: Outputs) -> tuple[Axis, ...]:
        unrolls = (1, 2, 4, 8) if any(loops.in_vectors for loops in found) else (1,)
        tiles = (0, 8, 16, 32, MAX_TILE) if any(loops.crossed for loops in found) else (0,)
        return (
            Axis("unroll", "vectors in a turn of the inner loop", unrolls),
            Axis("tile", "blocks of a transpose", tiles),
            Axis("split", "the axis divided among threads", splits([loops.stage for loops in found], task.threads)),
        )

    def wanted(self, task: SearchTask, found: Outputs) -> Iterable[Mapping[str, int]]:
        return ({"unroll": 2, "tile": MAX_TILE},)

    def cycles(self, task: SearchTask, found: Outputs, kernel: MicroKernel, extents: Extents) -> Floats:
        lanes_of_vector = task.known_target.hardware.lanes()
        compute = volume((), extents) * 0.0
        for loops in found:
            is_turned = bool(loops.turned) and kernel["tile"] >= lanes_of_vector
            lanes = lanes_of_vector if loops.in_vectors or is_turned else 1
            each = body_cycles(task.rates, list(walk(loops.stage.body))) / lanes
            each += 4.0 if loops.crossed and not kernel["tile"] else 0.0
            each += 0.5 / (kernel["unroll"] * lanes) + TURN_CYCLES * is_turned
            axes = loops.stage.axes
            compute += volume(axes, extents) * each + volume(axes[:-1], extents) * ROW_CYCLES
        return roofline(task, compute, _moved(task, found, extents), parts=task.threads)

    def sizes(self, task: SearchTask, found: Outputs, extents: Extents) -> list[Floats]:
        elements = np.max([volume(loops.stage.axes, extents) for loops in found], axis=0)
        row = np.max([volume(loops.stage.axes[-1:], extents) for loops in found], axis=0)
        return [*(np.log2(size + 1) for size in (elements, _moved(task, found, extents), row)), row % 8]

    def write(self, task: SearchTask, found: Outputs, kernel: MicroKernel, function: KernelFunction) -> None:
        for loops in found:
            output = _Output(task, kernel, function, loops)
            in_split(loops.stage.axes, function.extents, kernel["split"], task.threads, output.emit)


def _moved(task: SearchTask, found: Outputs, extents: Extents) -> Floats:
    stages = [loops.stage for loops in found]
    places = [(read.tensor, axes_of(read)) for stage in stages for read in dict.fromkeys(reads(stage.body))]
    return bytes_at([*places, *((stage.tensor, stage.axes) for stage in stages)], task.workload, extents)


class _Output(Nest):
    """Writes the loops of one output."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, loops: OutputLoops) -> None:
        lanes = lanes_for(task, [task.workload.element_types.type_of(loops.stage.body)])
        super().__init__(task, kernel, function, lanes)
        self.loops, self.stage = loops, loops.stage
        self.last = self.stage.axes[-1] if self.stage.axes else ""
        self.copied = _copied(self.workload, self.stage)

    def emit(self, spans: Mapping[str, Share]) -> None:
        """The loops over the output's axes in order; a transposed pair is walked in blocks, innermost."""
        crossed = self.loops.crossed if self.kernel["tile"] else None
        outer = [axis for axis in self.stage.axes[:-1] if axis != crossed]
        if crossed is not None:
            over(outer, spans, lambda index: self._blocks((crossed, self.last), index, spans), {})
        elif self.loops.in_vectors and self.lanes > 1:
            over(outer, spans, lambda index: self._vectors(index, spans[self.last]), {})
        else:
            over(self.stage.axes, spans, self._compute, {})

    def _vectors(self, index: Index, share: Share) -> None:
        each = self.kernel["unroll"]
        in_vectors(share, self.lanes, each, lambda start, lanes, _: self._compute({**index, self.last: start}, lanes))

    def _blocks(self, axes: tuple[str, str], index: Index, spans: Mapping[str, Share]) -> None:
        """Square blocks of the last axis and the one that a read is contiguous along."""
        tile, step = i64(self.kernel["tile"]), i64(self.lanes)
        sizes = {axis: last - first for axis, (first, last) in spans.items()}
        counts = {axis: (i64(0), tirx.floordiv(sizes[axis] + tile - i64(1), tile)) for axis in axes}

        def elements(*shares: Share) -> None:
            over(axes, dict(zip(axes, shares, strict=True)), self._compute, index)

        def block(number: Index) -> None:
            starts = [I.Bind(spans[axis][0] + number[axis] * tile) for axis in axes]
            ends = [tirx.min(start + tile, spans[axis][1]) for axis, start in zip(axes, starts, strict=True)]
            shares = list(zip(starts, ends, strict=True))
            if not self.loops.turned or self.lanes == 1:
                elements(*shares)
                return
            wholes = [(start, I.Bind(start + tirx.truncdiv(end - start, step) * step)) for start, end in shares]
            self._squares(axes, index, wholes)
            (_, rows), (_, columns) = wholes
            elements(wholes[0], (columns, ends[1]))
            elements((rows, ends[0]), shares[1])

        over(axes, counts, block, index)

    def _squares(self, axes: tuple[str, str], index: Index, shares: Sequence[Share]) -> None:
        """Squares of one vector each way: what lies across is transposed in registers."""
        step, crossed = i64(self.lanes), axes[0]
        counts = [(i64(0), tirx.truncdiv(end - start, step)) for start, end in shares]

        def square(number: Index) -> None:
            here = {axis: start + number[axis] * step for axis, (start, _) in zip(axes, shares, strict=True)}
            rows, columns = (
                [{**index, **here, axis: here[axis] + i64(lane)} for lane in range(self.lanes)] for axis in axes
            )
            readers = [self.reader(column, self.lanes, crossed) for column in columns]
            turned = {
                read: self.vectors.transposed([bound(reader.read(read)) for reader in readers])
                for read in self.loops.turned
            }
            for lane, row in enumerate(rows):
                self._compute(row, self.lanes, {read: vectors[lane] for read, vectors in turned.items()})

        over(axes, dict(zip(axes, counts, strict=True)), square, index)

    def _compute(self, index: Index, lanes: int = 1, known: Known = NOTHING) -> None:
        """One element of the output, or ``lanes`` of them along the last axis; ``known``: reads of it."""
        reader = self.reader(index, lanes, self.last)
        if self.copied is None or self.copied in known:
            write_outputs((self.stage,), reader.evaluator(known).value(self.stage.body), reader)
        else:
            reader.copy(self.stage, self.copied)


def _copied(workload: Workload, stage: Stage) -> Read | None:
    """The read that a stage copies, if elements of that dtype would be converted to float32 and back; else None."""
    body, tensors = stage.body, workload.tensors
    if not isinstance(body, Read) or body.tensor in dict(workload.padding):
        return None
    dtype = tensors[body.tensor].dtype
    return body if dtype in SHORT_FLOATS and dtype == tensors[stage.tensor].dtype else None
