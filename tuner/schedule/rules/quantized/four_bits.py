"""Vectors of four-bit numbers: as they are packed, eight steps of k of a column in a word of 32 bits, the words of a
vector of columns side by side. One load serves eight steps."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.program.language.dims import DimExpr, parse_dim
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Read
from tuner.schedule.layout import Numbers
from tuner.schedule.product.context import EmitContext
from tuner.schedule.tir import TirExpr, i64, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import as_bits, constant, vector_type
from tuner.schedule.vector.memory import DTYPE, TABLE, WORDS, bytes_of, looked_up, looks_up

CODE = Read("decoded.code", ())
"""What a weight reads in the place of the number that four bits are."""
BITS, CODES, WORD_BYTES = 4, 8, 4
"""Bits of a number; numbers in a word of 32 bits, which has so many bytes."""
MAGIC, MAGIC_BITS = 2**23, 0x4B000000
"""As a float32 whose lowest bits are those of a small integer that is added to it."""
WORD_OF_FLOATS = 2
"""Elements of bfloat16 in a word of 32 bits."""


@dataclass(frozen=True, slots=True)
class Code:
    """A number is ``(four bits of tensor ^ flipped) + offset``, computed in ``dtype``: those of ``tensor[n, k // 2]``,
    the lower half of the byte where k is even, the upper one where it is odd, the other way round if ``high_first``; or
    those that ``Decoded.numbers`` places, which are packed in the order of k."""

    dtype: str
    tensor: str
    high_first: bool
    flipped: int
    offset: int


def floats_of(context: EmitContext, code: Code, index: TirExpr, first: TirExpr, step: TirExpr) -> TirExpr:
    """Numbers of one step of k as float32: of columns from ``first`` on in panel ``index``."""
    lanes = context.vectors.lanes
    word = _packed(context, code, index, first, tirx.floordiv(step, i64(CODES)), "uint32")
    at = tirx.floormod(step, i64(CODES))
    if code.high_first:
        at = at + i64(1) - i64(2) * tirx.floormod(step, i64(2))
    bits = tirx.shift_right(word, tirx.Broadcast(tirx.Cast("uint32", at * i64(BITS)), lanes))
    if looks_up(context.task.known_target.hardware):
        return bound(looked_up(_table(code, TABLE), tirx.reinterpret(vector_type("int32", lanes), bits)))
    # The number in the lowest bits of a large float32: nothing is converted.
    bits = tirx.bitwise_and(bits, constant(15, "uint32", lanes))
    bits = tirx.bitwise_xor(bits, constant(MAGIC_BITS | code.flipped, "uint32", lanes))
    large = bound(tirx.reinterpret(vector_type(DTYPE, lanes), bits))
    return bound(large - constant(MAGIC - code.offset, DTYPE, lanes))


def words_of(context: EmitContext, code: Code, index: TirExpr, first: TirExpr, step: TirExpr) -> TirExpr:
    """Numbers of two steps of k as words of bfloat16, packed ``in_words``."""
    each = CODES // WORD_OF_FLOATS
    halves = _packed(context, code, index, first, tirx.floordiv(step, i64(each)), "uint16")
    shift = tirx.Cast("uint16", tirx.floormod(step, i64(each)) * i64(BITS))
    upper = tirx.shift_right(as_bits(_table(code, WORDS), "uint32"), constant(16, "uint32", WORDS))
    table = tirx.Cast(vector_type("uint16", WORDS), upper)
    return bound(looked_up(table, tirx.shift_right(halves, tirx.Broadcast(shift, WORDS))))


def _packed(
    context: EmitContext, code: Code, index: TirExpr, first: TirExpr, word: TirExpr, dtype: str
) -> TirExpr:  # fmt: skip
    """The words of 32 bits of a vector of columns, as elements of ``dtype``."""
    lanes, elements = context.vectors.lanes, elements_of(context.task.workload.tensors[code.tensor].dtype)
    places = tirx.Ramp(first * i64(elements), i64(1), elements * lanes)
    read = context.buffers[code.tensor][(index, word, places)]
    return tirx.reinterpret(vector_type(dtype, WORD_BYTES // bytes_of(dtype) * lanes), read)


def _table(code: Code, size: int) -> TirExpr:
    """What each of the sixteen numbers stands for, over and over: a constant, once LLVM has folded it."""
    every = tirx.Ramp(tirx.IntImm("int32", 0), tirx.IntImm("int32", 1), size)
    numbers = tirx.bitwise_and(every, constant(TABLE - 1, "int32", size))
    flipped = tirx.bitwise_xor(numbers, constant(code.flipped, "int32", size))
    return tirx.Cast(vector_type(DTYPE, size), flipped) + constant(code.offset, DTYPE, size)


def elements_of(dtype: str) -> int:
    """Elements in a word of 32 bits."""
    return WORD_BYTES // DTYPES[dtype].bytes


def in_words(numbers: Numbers) -> Numbers:
    """Numbers in another order: of eight steps the even ones in the lower half of a word of 32 bits, the odd ones in
    the upper half. So the same shift of both halves gives two neighbouring steps."""
    step = parse_dim(f"step // {CODES} * {CODES} + step % {CODES // 2} * 2 + step % {CODES} // {CODES // 2}")
    values = {"step": step, "row": DimExpr.var("row")}
    index = (str(parse_dim(text).substituted(values)) for text in numbers.index)
    return Numbers(
        numbers.rows, numbers.steps, tuple(index), str(parse_dim(numbers.shift).substituted(values)), numbers.joined
    )


def numbers_of(code: Code, dtype: str, rows: int, steps: int) -> Numbers:
    """Where those of ``code`` lie that are two in a byte, one behind the other along k."""
    at = DimExpr.var("step") % 2
    shift = (DimExpr.of(1) - at) * BITS if code.high_first else at * BITS
    return Numbers(rows, steps, ("row", "step // 2"), str(shift), 8 * DTYPES[dtype].bytes // BITS)
