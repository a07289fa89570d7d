"""A matrix unit that no CPU has: tiles of 2 x 2 float32 in 64 registers, which functions stand for."""

from __future__ import annotations

from tuner.schedule.product.atom import Atom, MatrixUnit
from tuner.schedule.tir import TirExpr, tirx

REGISTERS = 64
FLOATS = frozenset({"float32"})

_CODE = f"""
@made_up_tiles = internal thread_local global [{REGISTERS} x <4 x float>] zeroinitializer

define linkonce_odr i32 @made_up_zero(i32 %register) {{
  %tile = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %register
  store <4 x float> zeroinitializer, ptr %tile
  ret i32 0
}}

define linkonce_odr i32 @made_up_load(i32 %register, ptr %from, i64 %stride) {{
  %tile = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %register
  %next = getelementptr i8, ptr %from, i64 %stride
  %first = load <2 x float>, ptr %from, align 4
  %second = load <2 x float>, ptr %next, align 4
  %both = shufflevector <2 x float> %first, <2 x float> %second, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  store <4 x float> %both, ptr %tile
  ret i32 0
}}

define linkonce_odr i32 @made_up_store(i32 %register, ptr %to, i64 %stride) {{
  %tile = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %register
  %next = getelementptr i8, ptr %to, i64 %stride
  %both = load <4 x float>, ptr %tile
  %first = shufflevector <4 x float> %both, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %second = shufflevector <4 x float> %both, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  store <2 x float> %first, ptr %to, align 4
  store <2 x float> %second, ptr %next, align 4
  ret i32 0
}}

define linkonce_odr i32 @made_up_multiply(i32 %total, i32 %left, i32 %right) {{
  %at = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %total
  %left_at = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %left
  %right_at = getelementptr [{REGISTERS} x <4 x float>], ptr @made_up_tiles, i32 0, i32 %right
  %before = load <4 x float>, ptr %at
  %x = load <4 x float>, ptr %left_at
  %y = load <4 x float>, ptr %right_at
  %x0 = shufflevector <4 x float> %x, <4 x float> poison, <4 x i32> <i32 0, i32 0, i32 2, i32 2>
  %x1 = shufflevector <4 x float> %x, <4 x float> poison, <4 x i32> <i32 1, i32 1, i32 3, i32 3>
  %y0 = shufflevector <4 x float> %y, <4 x float> poison, <4 x i32> <i32 0, i32 1, i32 0, i32 1>
  %y1 = shufflevector <4 x float> %y, <4 x float> poison, <4 x i32> <i32 2, i32 3, i32 2, i32 3>
  %first = fmul <4 x float> %x0, %y0
  %second = fmul <4 x float> %x1, %y1
  %one = fadd <4 x float> %before, %first
  %after = fadd <4 x float> %one, %second
  store <4 x float> %after, ptr %at
  ret i32 0
}}
"""


def _called(name: str, *operands: TirExpr | int) -> TirExpr:
    given = [tirx.IntImm("int32", each) if isinstance(each, int) else each for each in operands]
    return tirx.call_extern("int32", f"made_up_{name}", *given)


MADE_UP = Atom(
    "made_up", FLOATS, FLOATS, "float32", group=1, element="float32", rows=2, steps=2, code=_CODE,
    unit=MatrixUnit(
        columns=2, registers=REGISTERS, cycles=0.01,
        zero=lambda register: _called("zero", register),
        load=lambda register, pointer, stride: _called("load", register, pointer, stride),
        store=lambda register, pointer, stride: _called("store", register, pointer, stride),
        multiply=lambda total, left, right: _called("multiply", total, left, right),
    ),
)  # fmt: skip
