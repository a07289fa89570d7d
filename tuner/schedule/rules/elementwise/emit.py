"""TensorIR for injective micro-kernels: one loop nest for each output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.program.expr import Read
from tuner.program.notation import Stage
from tuner.program.task import SearchTask
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share, in_shares
from tuner.schedule.rules.elementwise.pattern import Elementwise, elementwise_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, stored
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import Vectors


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    loops = elementwise_of(task.workload)
    with kernel_function(task.workload, {}, name) as function:
        for stage in loops.program.stages:
            _Nest(task, kernel, function, loops, stage).emit()
    return function.get()


class _Nest:
    """Writes the loops of one output."""

    def __init__(
        self, task: SearchTask, kernel: MicroKernel, function: KernelFunction, loops: Elementwise, stage: Stage
    ) -> None:
        self.task, self.kernel, self.function, self.loops, self.stage = task, kernel, function, loops, stage
        self.dtype = task.workload.tensors[stage.tensor].dtype
        self.out = function.buffers[stage.tensor]
        widest = 8 if loops.types.type_of(stage.body) in ("int64", "float64") else 4
        self.square = task.known_target.hardware.lanes(widest)
        self.lanes = self.square if loops.vector[stage.tensor] else 1
        self.crossed = loops.crossed[stage.tensor] if kernel["tile"] else None

    def emit(self) -> None:
        axes, threads = self.stage.axes, self.task.threads
        if not axes:
            self._outer(axes, {}, {})
            return
        split = axes[min(self.kernel["split"], len(axes) - 1)]
        in_shares(self.function.extents[split], threads, lambda share: self._outer(axes, {}, {split: share}))

    # -- loops ----------------------------------------------------------------------------------------------------
    def _range(self, axis: str, shares: dict[str, Share]) -> Share:
        return shares.get(axis, (i64(0), self.function.extents[axis]))

    def _outer(self, axes: tuple[str, ...], index: dict[str, TirExpr], shares: dict[str, Share]) -> None:
        """The loops over the output's axes in order; a transposed pair is walked in blocks, innermost."""
        if not axes:
            self._compute(index, 1)
            return
        axis, *rest = axes
        if self.crossed == axis:
            self._outer(tuple(rest), index, shares)
            return
        if not rest:
            self._inner(axis, index, shares)
            return
        with I.serial(*self._range(axis, shares)) as value:
            self._outer(tuple(rest), {**index, axis: value}, shares)

    def _inner(self, axis: str, index: dict[str, TirExpr], shares: dict[str, Share]) -> None:
        first, last = self._range(axis, shares)
        if self.crossed is not None:
            self._blocks(axis, index, shares)
        elif self.lanes == 1:
            with I.serial(first, last) as value:
                self._compute({**index, axis: value}, 1)
        else:
            self._vectors(axis, index, first, last)

    def _blocks(self, axis: str, index: dict[str, TirExpr], shares: dict[str, Share]) -> None:
        """Square blocks of the last axis and the one that a read is contiguous along."""
        assert self.crossed is not None
        tile = i64(self.kernel["tile"])
        ranges = [self._range(self.crossed, shares), self._range(axis, shares)]
        counts = [tirx.floordiv(last - first + tile - i64(1), tile) for first, last in ranges]
        with I.serial(i64(0), counts[0]) as row, I.serial(i64(0), counts[1]) as column:
            starts = [I.Bind(first + at * tile) for (first, _), at in zip(ranges, (row, column), strict=True)]
            ends = [tirx.min(start + tile, last) for (_, last), start in zip(ranges, starts, strict=True)]
            if not self.loops.turned[self.stage.tensor] or self.square == 1:
                self._elements(axis, index, (starts[0], ends[0]), (starts[1], ends[1]))
                return
            wholes = [
                I.Bind(start + tirx.truncdiv(end - start, i64(self.square)) * i64(self.square))
                for start, end in zip(starts, ends, strict=True)
            ]
            self._squares(axis, index, (starts[0], wholes[0]), (starts[1], wholes[1]))
            self._elements(axis, index, (starts[0], wholes[0]), (wholes[1], ends[1]))
            self._elements(axis, index, (wholes[0], ends[0]), (starts[1], ends[1]))

    def _elements(self, axis: str, index: dict[str, TirExpr], rows: Share, columns: Share) -> None:
        """One element after the other."""
        with I.serial(*rows) as outer, I.serial(*columns) as inner:
            self._compute({**index, str(self.crossed): outer, axis: inner}, 1)

    def _squares(self, axis: str, index: dict[str, TirExpr], rows: Share, columns: Share) -> None:
        """Squares of one vector each way: what lies across is transposed in registers."""
        step = i64(self.square)
        counts = [tirx.truncdiv(last - first, step) for first, last in (rows, columns)]
        with I.serial(i64(0), counts[0]) as row, I.serial(i64(0), counts[1]) as column:
            start = {**index, str(self.crossed): rows[0] + row * step, axis: columns[0] + column * step}
            turned = {read: self._turned(read, start, axis) for read in self.loops.turned[self.stage.tensor]}
            for number in range(self.square):
                known = {read: values[number] for read, values in turned.items()}
                here = {**start, str(self.crossed): start[str(self.crossed)] + i64(number)}
                self._compute(here, self.square, known)

    def _turned(self, read: Read, start: dict[str, TirExpr], axis: str) -> list[TirExpr]:
        """The vectors of a read along ``axis``, one for each value of the axis that it lies along."""
        rows = []
        for number in range(self.square):
            index = {**start, axis: start[axis] + i64(number)}
            buffers = self.function.buffers
            reader = Reader(self.task.workload, self.function, buffers, index, self.square, self.crossed)
            rows.append(bound(reader.read(read)))
        return Vectors(self.square).transposed(rows)

    def _vectors(self, axis: str, index: dict[str, TirExpr], first: TirExpr, last: TirExpr) -> None:
        """Groups of vectors, single ones, then the rest element by element."""
        group = self.lanes * self.kernel["unroll"]
        groups = I.Bind(tirx.floordiv(last - first, i64(group)))
        with I.serial(i64(0), groups) as turn:
            for number in range(self.kernel["unroll"]):
                start = first + turn * i64(group) + i64(number * self.lanes)
                self._compute({**index, axis: start}, self.lanes)
        whole = I.Bind(tirx.floordiv(last - first, i64(self.lanes)))
        if self.kernel["unroll"] > 1:
            with I.serial(groups * i64(self.kernel["unroll"]), whole) as block:
                self._compute({**index, axis: first + block * i64(self.lanes)}, self.lanes)
        with I.serial(first + whole * i64(self.lanes), last) as value:
            self._compute({**index, axis: value}, 1)

    # -- values ---------------------------------------------------------------------------------------------------
    def _compute(self, index: dict[str, TirExpr], lanes: int, known: Mapping[Read, TirExpr] | None = None) -> None:
        """One element of the output at ``index``, or ``lanes`` of them along the last axis; ``known``: reads of it."""
        along = self.stage.axes[-1] if lanes > 1 else None
        reader = Reader(self.task.workload, self.function, self.function.buffers, index, lanes, along)
        extent = self.function.extents.__getitem__
        held = known or {}

        def read(node: Read) -> TirExpr:
            return held[node] if node in held else reader.read(node)

        evaluator = Evaluator(self.loops.types, lanes, read, reader.axis, extent)
        value = evaluator.value(self.stage.body)
        result = stored(bound(cast(bound(value), self.dtype)), self.dtype)
        *outer, last = [index[axis] for axis in self.stage.axes] or [None]
        at = [] if last is None else [*outer, tirx.Ramp(last, i64(1), lanes) if lanes > 1 else last]
        I.buffer_store(self.out, result, at)
