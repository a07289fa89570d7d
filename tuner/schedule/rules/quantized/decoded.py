"""The right operand of a product whose weights are computed: they are decoded on their way into the register tile.

What theory expects of it: its bytes are those of the packed constants, scales included. What makes a vector of weights
of them is done at every step of every tile (``pack=0``), or once for a panel of a block (``pack=1``): tiles find
float32 in cache then, and the constants are read while the panel is unpacked.

Where all but what many steps share is small integers, instructions on words of bfloat16 or of bytes, which have these
as they are, multiply them; what is shared is multiplied by sums. So a product is as exact as in float32, or, of bytes,
more so. Panels are unpacked to such words first, but for words that are looked up (four_bits.py), for which it is a
choice, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np

from tuner.program.job.task import SearchTask
from tuner.program.language.expr import TRANSCENDENTAL, Axis, Call, Const, Expr, Extent, Read
from tuner.program.target import Hardware
from tuner.schedule.access import values
from tuner.schedule.layout import Numbers
from tuner.schedule.loops.estimates import Floats
from tuner.schedule.product.atom import SIGNS, Atom
from tuner.schedule.product.axes import OF_VECTORS, packed_vectors
from tuner.schedule.product.context import Chunk, EmitContext, Panel
from tuner.schedule.product.estimate import Estimate
from tuner.schedule.product.product import Late, Right
from tuner.schedule.product.readers import PackedSlice
from tuner.schedule.product.sizes import BYTES, REGISTER_BYTES, Sizes
from tuner.schedule.product.streams import STREAM_START
from tuner.schedule.rules.quantized.four_bits import CODE, CODES, WORD_OF_FLOATS, Code, floats_of, words_of
from tuner.schedule.tir import I, TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, constant, lanes_of, loaded, vector_type
from tuner.schedule.vector.expression import Evaluator
from tuner.schedule.vector.memory import DTYPE, looks_up, looks_up_words

UNPACKED, LOOKED_UP, SHIFT = 3.0, 2.0, 2.0
"""Operations of a vector of four-bit numbers, by arithmetic or from a table, and what a shift by a number of steps
takes beyond one by a constant."""
WIDENED = 2.0
"""Operations of a vector of elements that are not float32."""
JOINED = 3.0
"""Operations that make a vector of words of two of float32."""
BESIDE = 0.6
"""What such an operation takes of the multiply-add units: many cores have further ones for shifts, logic and sums."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A weight as ``each * shared``: ``shared`` is the same for ``steps`` neighbouring steps of k."""

    each: Expr
    shared: Expr
    steps: int


@dataclass(frozen=True)
class Decoded(Right):
    """The right operand ``weight``, an expression of n and k that reads CODE where it has four-bit numbers.

    ``packed_reads``: the constants in it that lie along k, ``plain_reads``: all else; each with the steps of k that
    share an element of it. ``grouped``: None where no factor is shared by many steps, and while code is written that
    multiplies each weight by it. ``dtype``: what an element takes in memory. ``is_packed_ahead``: panels are read as
    they were packed, and not unpacked first. ``numbers``: constants that hold numbers of four bits in places of their
    own; of those in ``packed_reads`` each is an element when it is packed. ``depth``: the steps of k.
    """

    weight: Expr
    grouped: Grouped | None
    code: Code | None
    packed_reads: tuple[tuple[Read, int], ...]
    plain_reads: tuple[tuple[Read, int], ...]
    dtype: str
    depth: int
    is_packed_ahead: bool = True
    numbers: tuple[tuple[str, Numbers], ...] = ()
    lies_along_n = True

    @property
    def constants(self) -> tuple[str, ...]:
        """The tensors that are packed."""
        return (*([self.code.tensor] if self.code else []), *(read.tensor for read, _ in self.packed_reads))

    # -- code ---------------------------------------------------------------------------------------------------------
    def packed(self, context: EmitContext) -> TirExpr:
        return context.buffers[self.constants[0]]

    def packed_vector(self, context: EmitContext, panel: Panel, at: PackedSlice, row: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of the weights of a panel at one step, a word of them where words are multiplied, without what
        is multiplied later."""
        atom = context.words.atom
        if self.looks_up(context.task.known_target.hardware, atom):
            assert self.code is not None
            return words_of(context, self.code, *self._place(context, panel, v), row)
        first = row * i64(atom.group)
        each = [self._part(context, self._each, panel, first + i64(j), v) for j in range(atom.group)]
        return each[0] if atom.group == 1 else _word(each, atom)

    @property
    def _each(self) -> Expr:
        """What is multiplied at each step."""
        return self.grouped.each if self.grouped else self.weight

    def looks_up(self, hardware: Hardware, atom: Atom) -> bool:
        """Whether words for an instruction are looked up: weights are four-bit numbers, with what is added to them."""
        is_code = self._each == CODE and self.depth % CODES == 0
        is_word = atom.group == WORD_OF_FLOATS and atom.total == DTYPE
        return is_code and is_word and looks_up_words(hardware)

    def room(self, context: EmitContext, panels: TirExpr, steps: TirExpr) -> AbstractContextManager[TirExpr]:
        if not context.words.atom.offset:
            return super().room(context, panels, steps)
        late = self.late(context)
        groups = 1 if late is None else -(-late.depth // late.steps)
        return super().room(context, panels, steps + i64(groups))

    def pack(self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk) -> None:
        """The weights of a panel at these steps of k, as float32 or in words; the steps of a turn share what they
        load."""
        atom = context.words.atom
        steps = CODES // atom.group
        whole = tirx.floordiv(chunk.length, i64(steps))

        def unpack(step: TirExpr, use: Callable[[int, TirExpr], None] | None = None) -> None:
            row = chunk.first - to.first + step
            for v in range(panel.vectors):
                value = self.packed_vector(context, panel, to, chunk.first + step, v)
                if use is not None:
                    value = I.Bind(value)
                    use(v, value)
                to.store(value, row + i64(1) if atom.offset else row, i64(v))

        if atom.offset:
            self._pack_groups(context, panel, to, chunk, unpack)
            return
        with I.serial(i64(0), whole) as turn:
            for number in range(steps):
                unpack(turn * i64(steps) + i64(number))
        with I.serial(whole * i64(steps), chunk.length) as step:
            unpack(step)

    def _pack_groups(
        self, context: EmitContext, panel: Panel, to: PackedSlice, chunk: Chunk,
        unpack: Callable[[TirExpr, Callable[[int, TirExpr], None]], None],
    ) -> None:  # fmt: skip
        """Group by group, with what takes the offset of the rows from each group's sums: the first one's in front of
        the steps, those of others behind them."""
        atom, lanes, late = context.words.atom, context.vectors.lanes, self.late(context)
        every = context.vectors.ramp(0)
        steps = chunk.length if late is None else i64(min(late.steps, late.depth))
        offsets = tirx.reinterpret(vector_type(atom.element, lanes * atom.group), constant(SIGNS, "int32", lanes))
        nothing = constant(0, atom.total, lanes)
        with I.serial(i64(0), tirx.floordiv(chunk.length + steps - i64(1), steps)) as number:
            sums = [I.alloc_buffer((lanes,), atom.total) for _ in range(panel.vectors)]
            for each in sums:
                I.buffer_store(each, nothing, [every])

            def add(v: int, word: TirExpr) -> None:
                assert atom.add is not None
                I.buffer_store(sums[v], atom.add(sums[v][every], offsets, word), [every])

            first = I.Bind(number * steps)
            with I.serial(first, tirx.min(first + steps, chunk.length)) as step:
                unpack(step, add)
            for v, each in enumerate(sums):
                value = tirx.reinterpret(vector_type(atom.element, lanes * atom.group), nothing - each[every])
                to.store(value, _start_of(chunk.length, number), i64(v))

    def late(self, context: EmitContext) -> Late | None:
        if self.grouped is None:
            return None
        shared, group = self.grouped.shared, context.words.atom.group
        depth, steps = int(context.depth) // group, -(-self.grouped.steps // group)
        return Late(
            depth, steps, lambda panel, step, v: self._part(context, shared, panel, step * i64(group), v),
            partial(_start_of, i64(depth)) if context.words.atom.offset else None,
        )  # fmt: skip

    def _part(self, context: EmitContext, expr: Expr, panel: Panel, step: TirExpr, v: int) -> TirExpr:
        """Vector ``v`` of a part of the weight, as float32."""
        lanes, buffers, tensors = context.vectors.lanes, context.buffers, context.task.workload.tensors
        (index, begin), first = self._place(context, panel, v), i64(v * lanes)
        packed, groups = dict(self.packed_reads), dict((*self.packed_reads, *self.plain_reads))

        def read(node: Read) -> TirExpr:
            if self.code is not None and node == CODE:
                return floats_of(context, self.code, index, begin, step)
            row = (tirx.floordiv(step, i64(groups[node])),)
            if node in packed:
                value = buffers[node.tensor][(index, *row, context.vectors.ramp(begin))]
            elif not node.indices:
                value = buffers[node.tensor][()]
            else:
                outer = row if len(node.indices) > 1 else ()
                value = context.vectors.load(buffers[node.tensor], outer, panel.column + first, panel.limit)
            return bound(loaded(bound(value), tensors[node.tensor].dtype))

        types = context.task.workload.element_types
        if self.code is not None:
            types = types.with_tensor(CODE.tensor, self.code.dtype)
        return Evaluator(types, lanes, read, _no_value, _no_value).value(expr, DTYPE)

    @staticmethod
    def _place(context: EmitContext, panel: Panel, v: int) -> tuple[TirExpr, TirExpr]:
        """The panel of what is packed that vector ``v`` lies in, and its first column there."""
        lanes, each = context.vectors.lanes, packed_vectors(context.kernel)
        return tirx.floordiv(panel.column, i64(each * lanes)) + i64(v // each), i64(v % each * lanes)

    # -- theory -------------------------------------------------------------------------------------------------------
    def widen(self, of: Sizes) -> None:
        words, task, group = of.words, of.task, of.words.group
        tensors, size = task.workload.tensors, BYTES["int4"] if self.code else 0.0
        size += sum(BYTES[tensors[read.tensor].dtype] / group for read, group in self.packed_reads)
        words.right_bytes = size * group
        # Only where all steps of a word are one turn are the shifts constants.
        shift = np.where(of.ku * group < CODES, SHIFT, 0.0) if self.code else 0.0
        operations = np.full((1, 1), self._operations(task, self.weight))
        if self.grouped:
            late, steps = of.of["late"] > 0, self.grouped.steps
            shared = self._operations(task, self.grouped.shared) / steps
            # Of each multiplication in a unit, the sums of a group go through memory once.
            drained = task.rates.drained * words.rows * words.steps * group / steps
            words.cycles = words.cycles + np.where(late, drained, 0.0)
            each = self._operations(task, self.grouped.each)
            operations = np.where(late, each + shared * group, operations)
            # Sums of a group begin at zero and are added to the totals.
            words.operations = words.operations * np.where(late, 1.0 + 2.0 * group / steps, 1.0)
        words.right_widened = np.where(of.of["pack"] > 0, 0.0, BESIDE * (operations + shift))

    @property
    def is_read_as_stored(self) -> bool:
        return False

    def stream_cycles(self, of: Estimate, in_place: Floats) -> Floats:
        c, l2, unpacked = of.rates, of.hardware.l2_bytes, of.of["pack"] > 0
        # Every tile reads the panel again. What of it does not stay in L2 is beyond what a tile's own cycles are.
        spilled = np.clip(of.panel_bytes / (0.8 * l2) - 1.0, 0.0, 1.0)
        passes = of.tiles + (of.rest > 0)
        again = spilled * passes * of.columns * of.k * REGISTER_BYTES / c.l3_bytes
        left = of.rows * of.k * of.words.left_bytes / c.l3_bytes
        several, length = (of.of["panel"] == OF_VECTORS) & (of.nv > 1), of.k * of.words.right_bytes * of.lanes
        found = np.where(several, 1.0 + STREAM_START / length, 1.0 / (1.0 + c.single))
        return np.where(unpacked, again + left, in_place * np.where(self._are_looked_up(of), found, 1.0))

    def packing_cycles(self, of: Estimate) -> Floats:
        c, words, group = of.rates, of.columns * of.k, of.words.group
        # Of the weight without what is multiplied later, where it is.
        each = np.full((1, 1), self._operations(of.task, self.weight))
        if self.grouped:
            each = np.where(of.of["late"] > 0, self._operations(of.task, self.grouped.each), each)
        joined = np.where(group > 1, np.where(of.words.is_of_floats, JOINED, JOINED * group), 0.0)
        operations = BESIDE * np.where(self._are_looked_up(of), LOOKED_UP, group * each + joined) / of.fma_per_cycle
        unpacking = words / of.lanes * (operations + of.lanes * REGISTER_BYTES / c.l2_bytes)
        size = words * of.words.right_bytes
        reading = size / np.where(size < 0.8 * of.hardware.l2_bytes, c.l2_bytes, c.l3_bytes)
        panels = of.blocks * (np.maximum(unpacking, reading) + c.stream_exposed * np.minimum(unpacking, reading))
        return np.where(of.of["pack"] > 0, panels, 0.0)

    def _are_looked_up(self, of: Sizes) -> Floats:
        """By kernel, whether its words are."""
        found = [self.looks_up(of.hardware, atom) for atom in of.product.atoms(of.hardware).values()]
        return np.asarray((of.words.group == WORD_OF_FLOATS) & any(found))

    def _operations(self, task: SearchTask, part: Expr) -> float:
        """What making a vector of a part of the weight takes."""
        nodes = list(values(part))
        unpacked = LOOKED_UP if looks_up(task.known_target.hardware) else UNPACKED
        count = unpacked if CODE in nodes else 0.0
        for node in nodes:
            if node == CODE:
                continue
            if isinstance(node, Read):
                count += 0.0 if task.workload.tensors[node.tensor].dtype == "float32" else WIDENED
            elif not isinstance(node, Const | Axis | Extent):
                is_long = isinstance(node, Call) and node.function in TRANSCENDENTAL
                count += task.rates.function if is_long else 1.0
        return count


def _start_of(steps: TirExpr, number: TirExpr) -> TirExpr:
    """The row of a packed panel of so many steps with what the sums of a group begin with."""
    return tirx.Select(number > i64(0), steps + number, i64(0))


def _word(neighbours: Sequence[TirExpr], atom: Atom) -> TirExpr:
    """Vectors of float32 side by side in words: small integers, or two that bfloat16 has as they are, their upper
    halves."""
    if atom.total == "int32":
        bits, lanes = 32 // atom.group, lanes_of(neighbours[0])
        mask = constant((1 << bits) - 1, "int32", lanes)
        word = None
        for number, each in enumerate(neighbours):
            own = tirx.bitwise_and(tirx.Cast(vector_type("int32", lanes), I.Bind(each)), mask)
            moved = tirx.shift_left(own, constant(bits * number, "int32", lanes)) if number else own
            word = moved if word is None else tirx.bitwise_or(word, moved)
        return tirx.reinterpret(vector_type(atom.element, atom.group * lanes), word)
    low, high = (I.Bind(as_bits(each, "uint32")) for each in neighbours)
    lanes = lanes_of(low)
    upper, sixteen = constant(0xFFFF0000, "uint32", lanes), constant(16, "uint32", lanes)
    word = tirx.bitwise_or(tirx.shift_right(low, sixteen), tirx.bitwise_and(high, upper))
    return tirx.reinterpret(vector_type(atom.element, atom.group * lanes), word)


def _no_value(name: str) -> TirExpr:
    raise NotImplementedError(f"the pattern admits no value of axis {name}")
