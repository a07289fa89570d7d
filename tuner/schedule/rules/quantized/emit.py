"""TensorIR for products with computed weights: the loops and the register tile of x86_contraction.

Four-bit numbers of a column stand in words of 32 bits, eight steps of k each, the words of a vector of columns side by
side: one load serves eight steps, each of which is a shift and a mask away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.program import expr as ast
from tuner.program.task import SearchTask
from tuner.schedule.function import kernel_function
from tuner.schedule.intrinsics import FMA
from tuner.schedule.layout import Layout
from tuner.schedule.product.frame import Chunk, Frame, Panel, Rows
from tuner.schedule.product.nest import Nest
from tuner.schedule.product.tile import Tile
from tuner.schedule.product.words import Words
from tuner.schedule.rules.quantized.codes import CODES, Code
from tuner.schedule.rules.quantized.pattern import Grouped, Quantized, quantized_of
from tuner.schedule.signature import i64
from tuner.schedule.space import MicroKernel
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, loaded, vector_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE, Vectors

MAGIC, MAGIC_BITS = 2**23, 0x4B000000
"""As a float32 whose lowest bits are those of a small integer that is added to it."""


def emit(task: SearchTask, kernel: MicroKernel, layouts: Mapping[str, Layout], name: str) -> Any:
    """A private PrimFunc: a pointer for every operand in call order, then every symbol; returns 0."""
    found = replace(quantized_of(task.workload), right_is_constant=not kernel["pack"])
    with kernel_function(task.workload, layouts, name) as function:
        extent = found.by_role(function.extents)
        vectors = Vectors(task.known_target.hardware.lanes())
        _Nest(QuantizedFrame(task, found, kernel, extent, function.buffers, vectors)).body()
    return function.get()


@dataclass(frozen=True)
class QuantizedFrame(Frame):
    """Operands of which the right one is computed."""

    contraction: Quantized

    @property
    def words(self) -> Words:
        return Words(FMA, self.contraction.left_dtype, DTYPE, self.vectors)

    @property
    def out_dtype(self) -> str:
        return self.contraction.out_dtype

    @property
    def computed(self) -> str:
        return self.contraction.sums.tensor

    def left_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.left], (row,)

    def right_step(self, step: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        raise NotImplementedError("the right operand is packed")

    def out_row(self, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...]]:
        return self.buffers[self.contraction.out], (row,)

    def further(self, read: ast.Read, row: TirExpr) -> tuple[TirExpr, tuple[TirExpr, ...], bool]:
        axes = [axis.name for axis in read.indices if isinstance(axis, ast.Axis)]
        return self.buffers[read.tensor], (row,) if self.contraction.m in axes else (), self.contraction.n in axes

    @property
    def packed_right(self) -> TirExpr:
        tensors = [read.tensor for read, _ in self.contraction.packed]
        return self.buffers[self.contraction.code.tensor if self.contraction.code else tensors[0]]

    def packed_vector(self, panel: Panel, row: TirExpr, v: int) -> TirExpr:
        return self.weight(panel, row, v)

    @property
    def late(self) -> Grouped | None:
        """The weight in two factors, if sums of the first one are multiplied by the second one."""
        return self.contraction.grouped if self.kernel["late"] else None

    def weight(self, panel: Panel, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of the weights of a panel at one step of k, without what is multiplied later."""
        return self.value(self.late.each if self.late else self.contraction.weight, panel, step, v)

    def value(self, expr: ast.Expr, panel: Panel, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a part of the weight, as float32."""
        lanes, buffers, tensors = self.vectors.lanes, self.buffers, self.task.workload.tensors
        index, first = tirx.floordiv(panel.column, i64(self.nr)), i64(v * lanes)
        groups = dict((*self.contraction.packed, *self.contraction.plain))
        packed = dict(self.contraction.packed)

        def read(node: ast.Read) -> TirExpr:
            row = (tirx.floordiv(step, i64(groups[node])),)
            if node in packed:
                value = buffers[node.tensor][(index, *row, self.vectors.ramp(first))]
            elif not node.indices:
                value = buffers[node.tensor][()]
            else:
                outer = row if len(node.indices) > 1 else ()
                value = self.vectors.load(buffers[node.tensor], outer, panel.column + first, panel.limit)
            return bound(loaded(bound(value), tensors[node.tensor].dtype))

        code = self.contraction.code
        numbers = None if code is None else lambda: self._numbers(code, (index, step, first))
        evaluator = _Weights(self.task.workload.element_types, lanes, read, _no_value, _no_value, code, numbers)
        return evaluator.value(expr, DTYPE)

    def _numbers(self, code: Code, place: tuple[TirExpr, TirExpr, TirExpr]) -> TirExpr:
        """A vector of four-bit numbers as float32."""
        index, step, first = place
        lanes = self.vectors.lanes
        bytes_of = tirx.Ramp(first * i64(4), i64(1), 4 * lanes)
        elements = self.buffers[code.tensor][(index, tirx.floordiv(step, i64(CODES)), bytes_of)]
        word = tirx.reinterpret(vector_type("uint32", lanes), elements)
        at = tirx.floormod(step, i64(CODES))
        if code.high_first:
            at = at + i64(1) - i64(2) * tirx.floormod(step, i64(2))
        shift = tirx.Cast("uint32", at * i64(4))
        bits = tirx.shift_right(word, tirx.Broadcast(shift, lanes))
        # The number in the lowest bits of a large float32: nothing is converted.
        bits = tirx.bitwise_and(bits, constant(15, "uint32", lanes))
        bits = tirx.bitwise_xor(bits, constant(MAGIC_BITS | code.flipped, "uint32", lanes))
        large = bound(tirx.reinterpret(vector_type(DTYPE, lanes), bits))
        return bound(large - constant(MAGIC - code.offset, DTYPE, lanes))


@dataclass(frozen=True)
class _Weights(Evaluator):
    """Writes the value of a weight, its code by ``numbers``."""

    code: Code | None
    numbers: Callable[[], TirExpr] | None

    def value(self, expr: ast.Expr, dtype: str | None = None) -> TirExpr:
        if self.code is None or self.numbers is None or expr != self.code.expr:
            return super().value(expr, dtype)
        return cast(self.numbers(), dtype or self.types.type_of(expr))


class _Tile(Tile):
    """The register tile. What the steps of a group share is multiplied by their sums (``late=1``)."""

    frame: QuantizedFrame

    def _reduce(self, ordinal: TirExpr) -> None:
        late = self.frame.late
        if late is None:
            super()._reduce(ordinal)
            return
        rows, length = self._row_indices(), self.frame.contraction.depth
        whole = length // late.steps
        with I.serial(i64(0), i64(whole)) as number:
            self._group(late.shared, rows, bound(number * i64(late.steps)), late.steps)
        if length % late.steps:
            self._group(late.shared, rows, i64(whole * late.steps), length % late.steps)

    def _group(self, shared: ast.Expr, rows: list[TirExpr], first: TirExpr, steps: int) -> None:
        """The totals after ``steps`` steps from ``first`` on, which share a factor."""
        totals, unroll = self.acc, self.kernel["ku"]
        self.acc = [[I.alloc_buffer((self.lanes,), self.total) for _ in line] for line in totals]
        self._clear()
        with I.serial(i64(0), i64(steps // unroll)) as turn:
            for u in range(unroll):
                self._step(rows, first + turn * i64(unroll) + i64(u))
        with I.serial(i64(steps // unroll * unroll), i64(steps)) as step:
            self._step(rows, first + step)
        sums, self.acc = self.acc, totals
        every = self.vectors.ramp(0)
        for v in range(self.panel.vectors):
            factor = I.Bind(self.frame.value(shared, self.panel, first, v))
            for total, part in zip(totals, sums, strict=True):
                I.buffer_store(total[v], self.words.add(total[v][every], part[v][every], factor), [every])


class _Nest(Nest):
    """The loops around the register tile, where panels are unpacked."""

    frame: QuantizedFrame

    def tile_type(self, rows: Rows) -> type[Tile]:
        return _Tile

    def pack_panel(self, panel: Panel, chunk: Chunk) -> None:
        """The weights of a panel at these steps of k, as float32; eight steps of a turn share what they load."""
        whole = tirx.floordiv(chunk.length, i64(CODES))

        def unpack(step: TirExpr) -> None:
            for v in range(panel.vectors):
                columns = self.frame.vectors.ramp(i64(v * self.frame.vectors.lanes))
                value = self.frame.weight(panel, chunk.first + step, v)
                I.buffer_store(panel.packed, value, [panel.index, chunk.first - panel.first + step, columns])

        with I.serial(i64(0), whole) as turn:
            for number in range(CODES):
                unpack(turn * i64(CODES) + i64(number))
        with I.serial(whole * i64(CODES), chunk.length) as step:
            unpack(step)


def _no_value(name: str) -> TirExpr:
    raise NotImplementedError(f"the pattern admits no value of axis {name}")
