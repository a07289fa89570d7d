"""The rule for any program: stage by stage, parallel outside, vectors inside where the reads allow it.

Every stage is computed as a whole before the next; intermediates live in a workspace. Axes of a micro-kernel:

==========  ===================================================================================================
``vector``  1: a stage runs in vectors along an axis whose reads are all contiguous or invariant (access.py says which);
            0: element by element
``split``   which axis of each stage's output, counted from the outermost one, is divided among the threads
``sums``    vector accumulators of a reduction, which hide the latency of its additions
==========  ===================================================================================================

It is right for every shape and tuned for none: a program that matters deserves a rule of its own
(docs/howto/add-a-rule.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tuner.errors import IllegalKernel
from tuner.program.job.task import SearchTask
from tuner.program.language.expr import reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload
from tuner.schedule.access import VectorAxis, vector_axis
from tuner.schedule.function import KernelFunction, dim_expr
from tuner.schedule.loops.estimates import Floats, LoopRule, lanes_for, thread_speedup, volume
from tuner.schedule.loops.reading import NOTHING, Index, Nest, Reader, start_value, write_outputs
from tuner.schedule.loops.shares import Share, in_groups_and_rest, in_split, in_vectors, over, splits
from tuner.schedule.rule import Extents, pattern
from tuner.schedule.space import Axis, MicroKernel, SearchSpace
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import named
from tuner.schedule.vector.dtypes import stored_type
from tuner.schedule.vector.functions import COMBINE
from tuner.schedule.vector.memory import workspace

SCALAR_CYCLES = 1.0
"""Cycles of one operation of a stage's body, element by element."""
READ_CYCLES = 0.7
ROW_CYCLES = 6.0
"""Cycles of the loops around the innermost one."""


@dataclass(frozen=True)
class StageLoops:
    """A stage, and the axis that it can run in vectors along."""

    stage: Stage
    vector: VectorAxis | None

    @property
    def axes(self) -> tuple[str, ...]:
        return *self.stage.axes, *self.stage.reduce_axes


Stages = tuple[StageLoops, ...]


@pattern
def match(workload: Workload) -> Stages:
    """The loops of each stage."""
    return tuple(StageLoops(stage, vector_axis(workload, stage)) for stage in workload.program.stages)


class Fallback(LoopRule[Stages]):
    """See the module's text for the axes; ``tuner.schedule.access`` chooses vector axes."""

    name = "fallback"
    is_fallback = True
    find = staticmethod(match)

    def named(self, workload: Workload, found: Stages) -> Mapping[str, str]:
        parallel = {axis: "parallel" for loops in found for axis in loops.stage.axes}
        return dict.fromkeys(workload.program.axes, "reduction") | parallel

    def workspace_bytes(self, task: SearchTask) -> int:
        tensors = (task.workload.tensors[name] for name in task.workload.program.intermediates)
        return sum(tensor.bytes(task.largest_dims) for tensor in tensors)

    def axes(self, task: SearchTask, found: Stages) -> tuple[Axis, ...]:
        reduces = any(loops.vector is not None and loops.vector.is_reduced for loops in found)
        return (
            Axis("vector", "stages run in vectors where reads allow it", (0, 1)),
            Axis("split", "the output axis divided among threads", splits(task.workload.program.stages, task.threads)),
            Axis("sums", "vector accumulators of a reduction", (1, 2, 4, 8) if reduces else (1,)),
        )

    def space(self, task: SearchTask) -> SearchSpace:
        return replace(super().space(task), check=_check, canonicalise=_canonicalise)

    def wanted(self, task: SearchTask, found: Stages) -> Iterable[Mapping[str, int]]:
        return ({"vector": 1, "sums": 4},)

    def cycles(self, task: SearchTask, found: Stages, kernel: MicroKernel, extents: Extents) -> Floats:
        forks = len(found) if task.threads > 1 else 0
        total: Floats = volume((), extents) * (task.rates.call + task.rates.fork * forks)
        for loops in found:
            stage, points = loops.stage, volume(loops.axes, extents)
            work = SCALAR_CYCLES * (len(list(reads(stage.body))) * READ_CYCLES + 1)
            chosen = loops.vector if kernel["vector"] else None
            rows = points / np.maximum(extents[chosen.name if chosen else loops.axes[-1]] if loops.axes else 1, 1)
            lanes = task.known_target.hardware.lanes() if chosen else 1
            parts: Floats | float = 1.0
            if task.threads > 1 and stage.axes:
                divided = stage.axes[min(kernel["split"], len(stage.axes) - 1)]
                parts = thread_speedup(volume((divided,), extents), task.threads)
            latency = task.rates.fma_latency / kernel["sums"] if stage.reducer else 0.0
            total = total + (points * max(work, latency) / lanes + rows * ROW_CYCLES) / parts
        return total

    def sizes(self, task: SearchTask, found: Stages, extents: Extents) -> list[Floats]:
        volumes = [volume(loops.axes, extents) for loops in found]
        sizes = [np.log2(sum(volumes) + 1.0), np.log2(np.max(volumes, axis=0) + 1.0)]
        return [*sizes, np.full(len(volumes[0]), len(volumes))]

    def write(self, task: SearchTask, found: Stages, kernel: MicroKernel, function: KernelFunction) -> None:
        workload, buffers = task.workload, dict(function.buffers)
        with ExitStack() as stack:
            for tensor in (workload.tensors[intermediate] for intermediate in workload.program.intermediates):
                shape = tuple(dim_expr(dim, function.symbols) for dim in tensor.dims)
                buffers[tensor.name] = stack.enter_context(workspace(shape, stored_type(tensor.dtype)))
            for loops in found:
                nest = _StageNest(task, kernel, replace(function, buffers=buffers), loops)
                in_split(loops.stage.axes, function.extents, kernel["split"], task.threads, nest.emit)


def _canonicalise(values: Mapping[str, int]) -> dict[str, int]:
    """Without vectors there are no vector accumulators."""
    return {**values, "sums": values["sums"] if values["vector"] else 1}


def _check(kernel: MicroKernel) -> None:
    if not kernel["vector"] and kernel["sums"] != 1:
        raise IllegalKernel(f"sums={kernel['sums']} needs vector=1: one accumulator without vectors")


class _StageNest(Nest):
    """Writes the loop nest of one stage."""

    def __init__(self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, loops: StageLoops) -> None:
        self.stage, types = loops.stage, task.workload.element_types
        self.computed = types.reduced_type(self.stage) if self.stage.reducer else types.type_of(self.stage.body)
        super().__init__(task, kernel, function, lanes_for(task, [self.computed]))
        axis = loops.vector if kernel["vector"] and self.lanes > 1 else None
        self.reduced = axis.name if axis is not None and axis.is_reduced else None
        self.last = self.stage.axes[-1] if axis is not None and not axis.is_reduced else None

    def emit(self, spans: Mapping[str, Share]) -> None:
        """The loops over the output's axes; the last one in vectors if they run along it."""
        if self.last is None:
            over(self.stage.axes, spans, self._store, {})
        else:
            over(self.stage.axes[:-1], spans, partial(self._vectors, self.last, spans[self.last]), {})

    def _vectors(self, axis: str, share: Share, index: Index) -> None:
        in_groups_and_rest(share, self.lanes, lambda start, lanes: self._store({**index, axis: start}, lanes))

    def _store(self, index: Index, lanes: int = 1) -> None:
        reader = self.reader(index, lanes, self.last)
        if self.reduced is not None:
            value = self._reduced_along(index, self.reduced)
        else:
            value = self._reduced(reader) if self.stage.reducer else self._body(reader)
        write_outputs((self.stage,), value, reader)

    def _reduced(self, reader: Reader) -> TirExpr:
        total = self._accumulator(reader.lanes)

        def add(index: Index) -> None:
            self._add(total, self._body(replace(reader, index=index)), reader.lanes)

        over(self.stage.reduce_axes, self.spans, add, reader.index)
        return total[_ramp(reader.lanes)]

    def _reduced_along(self, index: Index, axis: str) -> TirExpr:
        """A reduction in vectors along ``axis``: several accumulators, then their lanes, then the rest of the axis."""
        totals, scalar = [self._accumulator(self.lanes) for _ in range(self.kernel["sums"])], self._accumulator(1)

        def along(inner: Index) -> None:
            def add(value: TirExpr, lanes: int, number: int) -> None:
                body = self._body(self.reader({**inner, axis: value}, lanes, axis))
                self._add(totals[number] if lanes > 1 else scalar, body, lanes)

            in_vectors(self.spans[axis], self.lanes, len(totals), add)

        over([other for other in self.stage.reduce_axes if other != axis], self.spans, along, index)
        for other in totals[1:]:
            self._add(totals[0], other[_ramp(self.lanes)], self.lanes)
        for lane in range(self.lanes):
            self._add(scalar, totals[0][tirx.IntImm("int32", lane)], 1)
        return scalar[_ramp(1)]

    def _accumulator(self, lanes: int) -> TirExpr:
        buffer = I.alloc_buffer((lanes,), self.computed)
        I.buffer_store(buffer, start_value(self.stage, self.computed, lanes), [_ramp(lanes)])
        return buffer

    def _add(self, total: TirExpr, value: TirExpr, lanes: int) -> None:
        value = named(value)
        I.buffer_store(total, COMBINE[str(self.stage.reducer)](total[_ramp(lanes)], value), [_ramp(lanes)])

    def _body(self, reader: Reader) -> TirExpr:
        return reader.evaluator(NOTHING).value(self.stage.body, self.computed)


def _ramp(lanes: int) -> TirExpr:
    return tirx.Ramp(0, 1, lanes) if lanes > 1 else tirx.IntImm("int32", 0)
