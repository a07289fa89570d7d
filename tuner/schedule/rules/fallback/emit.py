"""TensorIR for the fallback rule: one loop nest for each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from tuner.program.notation import Stage
from tuner.program.task import SearchTask
from tuner.schedule.access import VectorAxis, vector_axis
from tuner.schedule.function import KernelFunction, kernel_function
from tuner.schedule.loops.reading import Reader
from tuner.schedule.loops.shares import Share, in_shares
from tuner.schedule.signature import dim_expr, i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, stored, stored_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import workspace
from tuner.schedule.vector.reducers import COMBINE, identity


def emit(task: SearchTask, kernel: MicroKernel, name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    workload = task.workload
    with kernel_function(workload, {}, name) as function, ExitStack() as stack:
        buffers = dict(function.buffers)
        for tensor in (workload.tensors[intermediate] for intermediate in workload.program.intermediates):
            shape = tuple(dim_expr(dim, function.symbols) for dim in tensor.dims)
            buffers[tensor.name] = stack.enter_context(workspace(shape, stored_type(tensor.dtype)))
        for stage in workload.program.stages:
            _Stage(task, kernel, function, buffers, stage).emit()
    return function.get()


class _Stage:
    """Writes the loop nest of one stage."""

    def __init__(
        self,
        task: SearchTask,
        kernel: MicroKernel,
        function: KernelFunction,
        buffers: Mapping[str, TirExpr],
        stage: Stage,
    ) -> None:
        self.task, self.kernel, self.function, self.buffers, self.stage = task, kernel, function, buffers, stage
        self.workload, self.out = task.workload, buffers[stage.tensor]
        self.dtype = task.workload.tensors[stage.tensor].dtype
        self.axis: VectorAxis | None = vector_axis(task.workload, stage) if kernel["vector"] else None
        types = task.workload.element_types
        self.computed = types.reduced_type(stage) if stage.reducer else types.type_of(stage.body)
        element = max(_bytes(self.computed), 4)
        self.lanes = max(task.known_target.hardware.vector_bytes // element, 1)
        if self.lanes == 1:
            self.axis = None

    # -- loops ----------------------------------------------------------------------------------------------------
    def emit(self) -> None:
        axes = self.stage.axes
        threads = self.task.threads
        if not axes:
            self._outer(axes, {}, {})
            return
        split = axes[min(self.kernel["split"], len(axes) - 1)]
        in_shares(self.function.extents[split], threads, lambda share: self._outer(axes, {}, {split: share}))

    def _outer(self, axes: tuple[str, ...], index: dict[str, TirExpr], shares: Mapping[str, Share]) -> None:
        """The loops over the output's axes; the last one in vectors if they run along it."""
        if not axes:
            self._element(index)
            return
        axis, *rest = axes
        first, last = shares.get(axis, (i64(0), self.function.extents[axis]))
        if not rest and self.axis is not None and not self.axis.is_reduced:
            self._in_vectors(axis, index, first, last)
            return
        with I.serial(first, last) as value:
            self._outer(tuple(rest), {**index, axis: value}, shares)

    def _in_vectors(self, axis: str, index: dict[str, TirExpr], first: TirExpr, last: TirExpr) -> None:
        """Whole vectors, then the rest element by element."""
        whole = I.Bind(tirx.floordiv(last - first, i64(self.lanes)))
        with I.serial(i64(0), whole) as block:
            start = first + block * i64(self.lanes)
            self._store({**index, axis: start}, self._reduced({**index, axis: start}, self.lanes, axis), self.lanes)
        with I.serial(first + whole * i64(self.lanes), last) as value:
            self._element({**index, axis: value})

    def _element(self, index: dict[str, TirExpr]) -> None:
        """One element of the output; its reduction in vectors if they run along a reduced axis."""
        if self.axis is not None and self.axis.is_reduced:
            self._store(index, self._reduced_along(index, self.axis.name), 1)
        else:
            self._store(index, self._reduced(index, 1, None), 1)

    # -- reductions -----------------------------------------------------------------------------------------------
    def _reduced(self, index: dict[str, TirExpr], lanes: int, along: str | None) -> TirExpr:
        """The value of the stage at ``index``, in vectors along an axis of the output or of one element."""
        if not self.stage.reducer:
            return self._body(index, lanes, along)
        total = self._accumulator(lanes)

        def add(inner: dict[str, TirExpr]) -> None:
            self._add(total, self._body(inner, lanes, along), lanes)

        self._over(self.stage.reduce_axes, index, add)
        return self._load(total, lanes)

    def _reduced_along(self, index: dict[str, TirExpr], axis: str) -> TirExpr:
        """A reduction in vectors along ``axis``: several accumulators, then their lanes, then the rest of the axis."""
        others = tuple(other for other in self.stage.reduce_axes if other != axis)
        totals = [self._accumulator(self.lanes) for _ in range(self.kernel["sums"])]
        scalar = self._accumulator(1)
        step = self.lanes * len(totals)

        def along(inner: dict[str, TirExpr]) -> None:
            size = self.function.extents[axis]
            groups = I.Bind(tirx.floordiv(size, i64(step)))
            with I.serial(i64(0), groups) as group:
                for number, total in enumerate(totals):
                    start = group * i64(step) + i64(number * self.lanes)
                    self._add(total, self._body({**inner, axis: start}, self.lanes, axis), self.lanes)
            whole = I.Bind(tirx.floordiv(size, i64(self.lanes)))
            if len(totals) > 1:
                with I.serial(groups * i64(len(totals)), whole) as block:
                    at = {**inner, axis: block * i64(self.lanes)}
                    self._add(totals[0], self._body(at, self.lanes, axis), self.lanes)
            with I.serial(whole * i64(self.lanes), size) as value:
                self._add(scalar, self._body({**inner, axis: value}, 1, None), 1)

        self._over(others, index, along)
        for other in totals[1:]:
            self._add(totals[0], self._load(other, self.lanes), self.lanes)
        self._add_lanes(scalar, totals[0])
        return self._load(scalar, 1)

    def _add_lanes(self, scalar: TirExpr, total: TirExpr) -> None:
        """Combine the lanes of ``total`` with what ``scalar`` holds."""
        for lane in range(self.lanes):
            self._add(scalar, total[tirx.IntImm("int32", lane)], 1)

    def _over(
        self, axes: tuple[str, ...], index: dict[str, TirExpr], use: Callable[[dict[str, TirExpr]], None]
    ) -> None:
        """Serial loops over reduced axes."""
        if not axes:
            use(index)
            return
        with I.serial(i64(0), self.function.extents[axes[0]]) as value:
            self._over(axes[1:], {**index, axes[0]: value}, use)

    def _accumulator(self, lanes: int) -> TirExpr:
        buffer = I.alloc_buffer((lanes,), self.computed)
        start = constant(identity(str(self.stage.reducer), self.computed), self.computed, lanes)
        I.buffer_store(buffer, start, [_ramp(lanes)])
        return buffer

    def _add(self, total: TirExpr, value: TirExpr, lanes: int) -> None:
        value = I.Bind(value)
        I.buffer_store(total, COMBINE[str(self.stage.reducer)](self._load(total, lanes), value), [_ramp(lanes)])

    def _load(self, total: TirExpr, lanes: int) -> TirExpr:
        return total[_ramp(lanes)]

    # -- values ---------------------------------------------------------------------------------------------------
    def _body(self, index: dict[str, TirExpr], lanes: int, along: str | None) -> TirExpr:
        """The stage's expression at ``index``: of one element, or of ``lanes`` from there ``along`` an axis."""
        reader = Reader(self.workload, self.function, self.buffers, index, lanes, along)
        extent = self.function.extents.__getitem__
        evaluator = Evaluator(self.workload.element_types, lanes, reader.read, reader.axis, extent)
        return evaluator.value(self.stage.body, self.computed)

    def _store(self, index: dict[str, TirExpr], value: TirExpr, lanes: int) -> None:
        register = cast(bound(value), self.dtype)
        result = stored(bound(register), self.dtype)
        *outer, last = [index[axis] for axis in self.stage.axes] or [i64(0)]
        at = [*outer, tirx.Ramp(last, i64(1), lanes) if lanes > 1 else last]
        I.buffer_store(self.out, result, at if self.stage.axes else [])


def _ramp(lanes: int) -> TirExpr:
    return tirx.Ramp(0, 1, lanes) if lanes > 1 else tirx.IntImm("int32", 0)


def _bytes(dtype: str) -> int:
    return {"float64": 8, "int64": 8, "bool": 1}.get(dtype, 4)
