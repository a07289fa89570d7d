"""The right operand of a product whose weights are computed: they are decoded on their way into the register tile.

Four-bit numbers of a column stand in words of 32 bits, eight steps of k each, the words of a vector of columns side by
side: one load serves eight steps, each of which is a shift and a mask away.

What theory expects of it: its bytes are those of the packed constants, scales included. What makes a vector of weights
of them is done at every step of every tile (``pack=0``), or once for a panel of a block (``pack=1``): tiles find
float32 in cache then, and the constants are read while the panel is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tuner.program import expr as ast
from tuner.program.dtypes import DTYPES
from tuner.program.expr import TRANSCENDENTAL, Axis, Call, Const, Extent, Read, walk
from tuner.program.task import SearchTask
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.estimate import BYTES, REGISTER_BYTES
from tuner.schedule.product.product import Late, Place, Right
from tuner.schedule.product.readers import PackedSlice
from tuner.schedule.rules.quantized.codes import CODES, Code, outside
from tuner.schedule.signature import i64
from tuner.schedule.tir import I, TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import cast, constant, loaded, vector_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE

if TYPE_CHECKING:
    from tuner.schedule.product.estimate import Estimate
    from tuner.schedule.rules.quantized.pattern import Grouped, Quantized

MAGIC, MAGIC_BITS = 2**23, 0x4B000000
"""As a float32 whose lowest bits are those of a small integer that is added to it."""
CODE, SHIFT = 3.0, 2.0
"""Operations of a vector of four-bit numbers, and what a shift by a number of steps takes beyond one by a constant."""
WIDENED = 2.0
"""Of a vector of elements that are not float32."""
BESIDE = 0.6
"""What such an operation takes of the multiply-add units: many cores have further ones for shifts, logic and sums."""


@dataclass(frozen=True)
class Decoded(Right):
    """The weight of ``found``. ``is_packed_ahead``: panels are read as they were packed, and not unpacked first."""

    found: Quantized
    dtype: str
    """What an element of the weight takes in memory."""
    is_packed_ahead: bool = True
    lies_along_n = True

    # -- code ---------------------------------------------------------------------------------------------------------
    def step(self, context: EmitContext, step: TirExpr) -> Place:
        raise NotImplementedError("the operand is packed")

    def packed(self, context: EmitContext) -> TirExpr:
        tensors = [read.tensor for read, _ in self.found.packed]
        return context.buffers[self.found.code.tensor if self.found.code else tensors[0]]

    def packed_vector(self, context: EmitContext, panel: Panel, at: PackedSlice, row: TirExpr, v: int) -> TirExpr:
        return self._weight(context, panel, row, v)

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """The weights of a panel at these steps of k, as float32; eight steps of a turn share what they load."""
        whole = tirx.floordiv(chunk.length, i64(CODES))

        def unpack(step: TirExpr) -> None:
            for v in range(panel.vectors):
                columns = context.vectors.ramp(i64(v * context.vectors.lanes))
                value = self._weight(context, panel, chunk.first + step, v)
                I.buffer_store(to.buffer, value, [to.index, chunk.first - to.first + step, columns])

        with I.serial(i64(0), whole) as turn:
            for number in range(CODES):
                unpack(turn * i64(CODES) + i64(number))
        with I.serial(whole * i64(CODES), chunk.length) as step:
            unpack(step)

    def late(self, context: EmitContext) -> Late | None:
        grouped = self._late(context)
        if grouped is None:
            return None
        shared = grouped.shared
        return Late(self.found.depth, grouped.steps, lambda panel, step, v: self.value(context, shared, panel, step, v))

    def _late(self, context: EmitContext) -> Grouped | None:
        """The weight in two factors, if sums of the first one are multiplied by the second one."""
        return self.found.grouped if context.kernel["late"] else None

    def _weight(self, context: EmitContext, panel: Panel, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of the weights of a panel at one step of k, without what is multiplied later."""
        late = self._late(context)
        return self.value(context, late.each if late else self.found.weight, panel, step, v)

    def value(self, context: EmitContext, expr: ast.Expr, panel: Panel, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a part of the weight, as float32."""
        lanes, buffers, tensors = context.vectors.lanes, context.buffers, context.task.workload.tensors
        index, first = tirx.floordiv(panel.column, i64(context.nr)), i64(v * lanes)
        groups = dict((*self.found.packed, *self.found.plain))
        packed = dict(self.found.packed)

        def read(node: ast.Read) -> TirExpr:
            row = (tirx.floordiv(step, i64(groups[node])),)
            if node in packed:
                value = buffers[node.tensor][(index, *row, context.vectors.ramp(first))]
            elif not node.indices:
                value = buffers[node.tensor][()]
            else:
                outer = row if len(node.indices) > 1 else ()
                value = context.vectors.load(buffers[node.tensor], outer, panel.column + first, panel.limit)
            return bound(loaded(bound(value), tensors[node.tensor].dtype))

        code = self.found.code
        numbers = None if code is None else lambda: self._numbers(context, code, (index, step, first))
        evaluator = _Weights(context.task.workload.element_types, lanes, read, _no_value, _no_value, code, numbers)
        return evaluator.value(expr, DTYPE)

    def _numbers(self, context: EmitContext, code: Code, place: tuple[TirExpr, TirExpr, TirExpr]) -> TirExpr:
        """A vector of four-bit numbers as float32."""
        index, step, first = place
        lanes = context.vectors.lanes
        bytes_of = tirx.Ramp(first * i64(4), i64(1), 4 * lanes)
        elements = context.buffers[code.tensor][(index, tirx.floordiv(step, i64(CODES)), bytes_of)]
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

    # -- theory -------------------------------------------------------------------------------------------------------
    def widen(self, of: Estimate) -> None:
        words, found, task = of.words, self.found, of.task
        words.right_bytes = np.full((1, 1), self._bytes(task))
        # Only where all steps of a word are one turn are the shifts constants.
        shift = np.where(of.ku < CODES, SHIFT, 0.0) if found.code else 0.0
        operations = np.full((1, 1), self._operations(task, found.weight))
        if found.grouped:
            late, steps = of.of["late"] > 0, found.grouped.steps
            shared = self._operations(task, found.grouped.shared) / steps
            each = self._operations(task, found.grouped.each)
            operations = np.where(late, each + shared, operations)
            # Sums of a group begin at zero and are added to the totals.
            words.operations = words.operations * np.where(late, 1.0 + 2.0 / steps, 1.0)
        words.right_widened = np.where(of.of["pack"] > 0, 0.0, BESIDE * (operations + shift))

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        c, l2, unpacked = of.rates, of.hardware.l2_bytes, of.of["pack"] > 0
        # Every tile reads the panel again. What of it does not stay in L2 is beyond what a tile's own cycles are.
        spilled = np.clip(of.panel_bytes / (0.8 * l2) - 1.0, 0.0, 1.0)
        passes = of.tiles + (of.rest > 0)
        again = spilled * passes * of.columns * of.k * REGISTER_BYTES / c.l3_bytes
        left = of.rows * of.k * of.words.left_bytes / c.l3_bytes
        return np.where(unpacked, again + left, in_place)

    def packing_cycles(self, of: Estimate) -> Floats:
        c, elements = of.rates, of.columns * of.k
        operations = BESIDE * self._operations(of.task, self.found.weight) / of.hardware.fma_per_cycle
        unpacking = elements / of.lanes * (operations + of.lanes * REGISTER_BYTES / c.l2_bytes)
        size = elements * of.words.right_bytes
        reading = size / np.where(size < 0.8 * of.hardware.l2_bytes, c.l2_bytes, c.l3_bytes)
        panels = of.blocks * (np.maximum(unpacking, reading) + c.stream_exposed * np.minimum(unpacking, reading))
        return np.where(of.of["pack"] > 0, panels, 0.0)

    def _bytes(self, task: SearchTask) -> float:
        """Of the constants that make up one element of the weight."""
        tensors, size = task.workload.tensors, BYTES["int4"] if self.found.code else 0.0
        return size + sum(DTYPES[tensors[read.tensor].dtype].bytes / group for read, group in self.found.packed)

    def _operations(self, task: SearchTask, part: ast.Expr) -> float:
        """Of making a vector of a part of the weight."""
        code = self.found.code
        is_coded = code is not None and any(node == code.expr for node in walk(part))
        count = CODE if is_coded else 0.0
        for node in outside(part, code):
            if isinstance(node, Read):
                count += 0.0 if task.workload.tensors[node.tensor].dtype == "float32" else WIDENED
            elif not isinstance(node, Const | Axis | Extent):
                is_long = isinstance(node, Call) and node.function in TRANSCENDENTAL
                count += task.rates.function if is_long else 1.0
        return count


@dataclass(frozen=True)
class _Weights(Evaluator):
    """Writes the value of a weight, its code by ``numbers``."""

    code: Code | None
    numbers: Callable[[], TirExpr] | None

    def value(self, expr: ast.Expr, dtype: str | None = None) -> TirExpr:
        if self.code is None or self.numbers is None or expr != self.code.expr:
            return super().value(expr, dtype)
        return cast(self.numbers(), dtype or self.types.type_of(expr))


def _no_value(name: str) -> TirExpr:
    raise NotImplementedError(f"the pattern admits no value of axis {name}")
