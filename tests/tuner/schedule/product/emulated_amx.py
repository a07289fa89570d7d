"""The instructions of AMX as functions: eight tiles for each thread, of 16 rows of as many words as a vector has lanes.

They do what Intel's manual says (volume 2, TDPBF16PS, TDPFP16PS and TDPBSSD): bfloat16 is multiplied in float32, where
denormals count as zero before and behind; of float16 only behind; bytes are multiplied in int32, which wraps around. A
thread whose tiles are not configured stores ones that are wrong, as it does once it has given them back. Where tiles
are asked to lie on cache lines, one that does not is loaded wrong, too.
"""

from __future__ import annotations

from dataclasses import replace

from tuner.schedule.product.atom import Atom, MatrixUnit
from tuner.schedule.product.atoms import AMX, AMX_REGISTERS, AMX_ROWS
from tuner.schedule.tir import TirExpr, tirx


def _pairs(kind: str, words: int) -> str:
    """Totals after one word of two short floats in each lane: the upper one of a word is the second."""
    i, f = f"<{words} x i32>", f"<{words} x float>"

    def splat(value: int) -> str:
        return "<" + ", ".join([f"i32 {value}"] * words) + ">"

    def flushed(name: str) -> str:
        return f"""
  %{name}_exponent = and {i} %{name}_bits, {splat(0x7F800000)}
  %{name}_small = icmp eq {i} %{name}_exponent, {splat(0)}
  %{name}_kept = select <{words} x i1> %{name}_small, {i} {splat(0)}, {i} %{name}_bits
  %{name} = bitcast {i} %{name}_kept to {f}
"""

    text = f"  %total = bitcast {i} %before to {f}\n"
    for half, number in (("low", 0), ("high", 1)):
        for side in "xy":
            if kind == "tdpfp16ps":
                moved = f"lshr {i} %{side}, {splat(16 * number)}"
                text += f"""  %{side}{number}_moved = {moved}
  %{side}{number}_short = trunc {i} %{side}{number}_moved to <{words} x i16>
  %{side}{number}_half = bitcast <{words} x i16> %{side}{number}_short to <{words} x half>
  %{side}{number} = fpext <{words} x half> %{side}{number}_half to {f}
"""
                continue
            made = f"shl {i} %{side}, {splat(16)}" if half == "low" else f"and {i} %{side}, {splat(-65536)}"
            text += f"  %{side}{number}_bits = {made}\n" + flushed(f"{side}{number}")
        text += f"  %product{number} = fmul {f} %x{number}, %y{number}\n"
    return (
        text
        + f"""
  %first = fadd {f} %total, %product0
  %second = fadd {f} %first, %product1
  %sum_bits = bitcast {f} %second to {i}
{flushed("sum")}
  %after = bitcast {f} %sum to {i}
"""
    )


def _bytes(kind: str, words: int) -> str:
    """Totals after one word of four bytes in each lane; ``kind`` ends with the signs of both operands and a d."""
    i, b = f"<{words} x i32>", f"<{4 * words} x i8>"
    wide = f"<{4 * words} x i32>"
    text = ""
    for side, sign in zip("xy", kind[-3:-1], strict=True):
        extended = "sext" if sign == "s" else "zext"
        text += f"  %{side}_bytes = bitcast {i} %{side} to {b}\n"
        text += f"  %{side}_wide = {extended} {b} %{side}_bytes to {wide}\n"
    text += f"  %products = mul {wide} %x_wide, %y_wide\n"
    last = "%before"
    for byte in range(4):
        lanes = ", ".join(f"i32 {4 * lane + byte}" for lane in range(words))
        now = "%after" if byte == 3 else f"%sum{byte}"
        text += f"  %part{byte} = shufflevector {wide} %products, {wide} poison, <{words} x i32> <{lanes}>\n"
        text += f"  {now} = add {i} {last}, %part{byte}\n"
        last = now
    return text


def _code(kind: str, words: int, to: int) -> str:
    """Functions that move tiles and multiply them; ``words`` of 32 bits in each row."""
    row = f"<{words} x i32>"
    picked = ", ".join(["i32 0"] * words)
    return f"""
@emulated_tiles = internal thread_local global [{AMX_REGISTERS * AMX_ROWS} x {row}] zeroinitializer, align 64
@emulated_is_configured = internal thread_local global i32 0

define linkonce_odr i32 @emulated_begin() noinline {{
  store i32 1, ptr @emulated_is_configured
  ret i32 0
}}

define linkonce_odr i32 @emulated_end() noinline {{
  store i32 0, ptr @emulated_is_configured
  ret i32 0
}}

define linkonce_odr {row} @emulated_step({row} %before, i32 %word, {row} %y) noinline {{
  %one = insertelement {row} poison, i32 %word, i64 0
  %x = shufflevector {row} %one, {row} poison, <{words} x i32> <{picked}>
{_pairs(kind, words) if kind.endswith("ps") else _bytes(kind, words)}
  ret {row} %after
}}

define linkonce_odr i32 @emulated_zero(i32 %register) noinline {{
{_tile("register", words)}{_zeros(words)}  ret i32 0
}}

define linkonce_odr i32 @emulated_load(i32 %register, ptr %memory, i64 %stride) noinline {{
{_tile("register", words)}{_moves("there", "own", words)}  %address = ptrtoint ptr %memory to i64
  %both = or i64 %address, %stride
  %past = urem i64 %both, {to}
  %is_right = icmp eq i64 %past, 0
  br i1 %is_right, label %done, label %wrong
wrong:
{_wrong("own", words)}  br label %done
done:
  ret i32 0
}}

define linkonce_odr i32 @emulated_store(i32 %register, ptr %memory, i64 %stride) noinline {{
{_tile("register", words)}{_moves("own", "there", words)}  %configured = load i32, ptr @emulated_is_configured
  %is_right = icmp ne i32 %configured, 0
  br i1 %is_right, label %done, label %wrong
wrong:
{_wrong("there", words)}  br label %done
done:
  ret i32 0
}}

define linkonce_odr i32 @emulated_multiply(i32 %total, i32 %left, i32 %right) noinline {{
{_tile("total", words)}{_tile("left", words)}{_tile("right", words)}{_products(words)}  ret i32 0
}}
"""


def _tile(name: str, words: int) -> str:
    """Where the tile of a register begins."""
    return f"""  %{name}_wide = zext i32 %{name} to i64
  %{name}_first = mul i64 %{name}_wide, {4 * AMX_ROWS * words}
  %{name}_tile = getelementptr i8, ptr @emulated_tiles, i64 %{name}_first
"""


def _zeros(words: int) -> str:
    return "".join(
        f"  %own{r} = getelementptr i8, ptr %register_tile, i64 {4 * r * words}\n"
        f"  store <{words} x i32> zeroinitializer, ptr %own{r}\n"
        for r in range(AMX_ROWS)
    )


def _moves(source: str, target: str, words: int) -> str:
    """Rows of a tile, and those ``%stride`` bytes apart from ``%memory`` on."""
    return "".join(
        f"  %own{r} = getelementptr i8, ptr %register_tile, i64 {4 * r * words}\n"
        f"  %bytes{r} = mul i64 %stride, {r}\n"
        f"  %there{r} = getelementptr i8, ptr %memory, i64 %bytes{r}\n"
        f"  %value{r} = load <{words} x i32>, ptr %{source}{r}, align 1\n"
        f"  store <{words} x i32> %value{r}, ptr %{target}{r}, align 1\n"
        for r in range(AMX_ROWS)
    )


def _wrong(target: str, words: int) -> str:
    """NaN, which is a large number in bytes, in the place of a tile."""
    value = f"<{words} x i32> <{', '.join(['i32 2143289344'] * words)}>"
    return "".join(f"  store {value}, ptr %{target}{r}, align 1\n" for r in range(AMX_ROWS))


def _products(words: int) -> str:
    """Every row of the totals after all words of its row of the left tile."""
    row, size = f"<{words} x i32>", 4 * words
    text = ""
    for p in range(words):
        text += f"  %right_at{p} = getelementptr i8, ptr %right_tile, i64 {p * size}\n"
        text += f"  %y{p} = load {row}, ptr %right_at{p}\n"
    text += f"""  br label %one_row
one_row:
  %row = phi i64 [ 0, %0 ], [ %next, %one_row ]
  %before = mul i64 %row, {size}
  %total_at = getelementptr i8, ptr %total_tile, i64 %before
  %left_at = getelementptr i8, ptr %left_tile, i64 %before
  %total0 = load {row}, ptr %total_at
"""
    for p in range(words):
        text += f"  %word_at{p} = getelementptr i8, ptr %left_at, i64 {4 * p}\n"
        text += f"  %word{p} = load i32, ptr %word_at{p}\n"
        operands = f"{row} %total{p}, i32 %word{p}, {row} %y{p}"
        text += f"  %total{p + 1} = call {row} @emulated_step({operands})\n"
    return (
        text
        + f"""  store {row} %total{words}, ptr %total_at
  %next = add i64 %row, 1
  %is_done = icmp eq i64 %next, {AMX_ROWS}
  br i1 %is_done, label %done, label %one_row
done:
"""
    )


def _called(name: str, *operands: TirExpr | int) -> TirExpr:
    given = [tirx.IntImm("int32", each) if isinstance(each, int) else each for each in operands]
    return tirx.call_extern("int32", f"emulated_{name}", *given)


def emulated(lanes: int, to: int = 1) -> list[Atom]:
    """The entries of AMX for any CPU whose vectors have so many lanes: tiles are that wide, and as deep. ``to``: bytes
    of which addresses and strides of what is loaded must be multiples."""
    return [
        replace(
            atom, needs={}, steps=lanes, code=_code(atom.name, lanes, to),
            unit=MatrixUnit(
                columns=lanes, registers=AMX_REGISTERS, cycles=16.0,
                zero=lambda register: _called("zero", register),
                load=lambda register, pointer, stride: _called("load", register, pointer, stride),
                store=lambda register, pointer, stride: _called("store", register, pointer, stride),
                multiply=lambda total, left, right: _called("multiply", total, left, right),
                begin=lambda: [_called("begin")], end=lambda: [_called("end")],
            ),
        )
        for atom in AMX
    ]  # fmt: skip
