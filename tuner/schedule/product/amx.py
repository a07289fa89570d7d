"""Intel's Advanced Matrix Extensions: eight registers of tiles, 16 rows of 64 bytes each.

A multiplication takes 16 rows by 16 words of 32 bits of the left operand, and 16 words by 16 columns of the right one.
Registers are configured once for all that a thread multiplies, all of them as whole tiles: rows and words that there
are not are zero, or not looked at. A process has to ask Linux for the registers before the first use.
"""

from __future__ import annotations

from functools import partial

from tuner.program.target import TILE_PERMISSION
from tuner.schedule.product.atom import Atom, MatrixUnit
from tuner.schedule.tir import TirExpr, tirx

ROWS, ROW_BYTES, REGISTERS = 16, 64, 8
CYCLES = 16.0
"""From one multiplication of whole tiles to the next."""

_CONFIGURATION = [1, *[0] * 15, *[ROW_BYTES, 0] * REGISTERS, *[0] * 16, *[ROWS] * REGISTERS, *[0] * 8]
"""All registers as whole tiles: the palette, the bytes of a row of each (16 bits), and from byte 48 on their rows."""
_BEGIN = "shapewright_amx_begin"
_BYTES = ", ".join(f"i8 {each}" for each in _CONFIGURATION)
_ASKS = ", ".join(f"i64 {each}" for each in TILE_PERMISSION)
_CODE = f"""
@shapewright_amx_configuration = linkonce_odr constant [64 x i8] [{_BYTES}]
@shapewright_amx_asked = linkonce_odr global i8 0

declare i64 @syscall(i64, ...)
declare void @llvm.x86.ldtilecfg(ptr)

define linkonce_odr i32 @{_BEGIN}() {{
  %asked = load i8, ptr @shapewright_amx_asked
  %known = icmp ne i8 %asked, 0
  br i1 %known, label %configure, label %ask
ask:
  %answer = call i64 (i64, ...) @syscall({_ASKS})
  store i8 1, ptr @shapewright_amx_asked
  br label %configure
configure:
  call void @llvm.x86.ldtilecfg(ptr @shapewright_amx_configuration)
  ret i32 0
}}
"""


def _called(name: str, *operands: TirExpr | int) -> TirExpr:
    """An intrinsic; registers are numbers that it holds."""
    given = [tirx.IntImm("int8", each) if isinstance(each, int) else each for each in operands]
    return tirx.call_llvm_intrin("int32", f"llvm.x86.{name}", *given)


def _entry(name: str, left: str, right: str, total: str, group: int, element: str, feature: str) -> Atom:
    zero, load, store, multiply = (partial(_called, each) for each in ("tilezero", "tileloadd64", "tilestored64", name))
    unit = MatrixUnit(
        16, REGISTERS, CYCLES, zero, load, store, multiply,
        begin=lambda: [tirx.call_extern("int32", _BEGIN)], end=lambda: [_called("tilerelease")],
    )  # fmt: skip
    return Atom(
        name, frozenset({left}), frozenset({right}), total, group, element, {64: feature},
        rows=ROWS, steps=ROW_BYTES // 4, unit=unit, code=_CODE,
    )  # fmt: skip


AMX = (
    _entry("tdpbf16ps", "bfloat16", "bfloat16", "float32", 2, "uint16", "amx_bf16"),
    _entry("tdpbssd", "int8", "int8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbsud", "int8", "uint8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbusd", "uint8", "int8", "int32", 4, "int8", "amx_int8"),
    _entry("tdpbuud", "uint8", "uint8", "int32", 4, "int8", "amx_int8"),
)
