"""The instructions of tuner.schedule.intrinsics as TensorIR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tuner.schedule.intrinsics import DotProduct
from tuner.schedule.tir import I, TirExpr, tirx, tvm
from tuner.schedule.vector.dtypes import lanes_of, vector_type

# TVM has no vectors of LLVM's bfloat, so what takes them is called through a function that LLVM inlines.
_DPBF16 = "shapewright_dpbf16ps"
_IMPORTED = {
    "dpbf16ps": f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)

define linkonce_odr <16 x float> @{_DPBF16}(<16 x float> %total, <32 x i16> %left, <32 x i16> %right) alwaysinline {{
  %x = bitcast <32 x i16> %left to <32 x bfloat>
  %y = bitcast <32 x i16> %right to <32 x bfloat>
  %sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %total, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %sum
}}
"""
}
_MADD = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
"""By lanes of the total."""
_OF_BYTES = {
    "dpbusd": "llvm.x86.avx512.vpdpbusd.512",
    "sdot": "llvm.aarch64.neon.sdot.v4i32.v16i8",
    "udot": "llvm.aarch64.neon.udot.v4i32.v16i8",
    "usdot": "llvm.aarch64.neon.usdot.v4i32.v16i8",
}


@contextmanager
def imported(dot: DotProduct) -> Iterator[None]:
    """What is written inside may use the instruction."""
    if dot.name not in _IMPORTED:
        yield
        return
    with I.attr(tirx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(_IMPORTED[dot.name])):
        yield


def add_products(dot: DotProduct, total: TirExpr, left: TirExpr, right: TirExpr) -> TirExpr:
    """``total`` after one step. ``left``: its word in every lane; ``right``: the words of all lanes, as ``step_type``
    has them."""
    lanes = lanes_of(total)
    if dot.name == "fma":
        return total + left * right
    left = tirx.reinterpret(vector_type(step_type(dot), lanes * dot.group), left)
    if dot.is_swapped:
        left, right = right, left
    if dot.name == "dpbf16ps":
        return tirx.call_pure_extern(vector_type("float32", lanes), _DPBF16, total, left, right)
    wide = vector_type("int32", lanes)
    if dot.name == "pmaddwd":
        return total + tirx.call_llvm_intrin(wide, _MADD[lanes], left, right)
    return tirx.call_llvm_intrin(wide, _OF_BYTES[dot.name], total, left, right)


def step_type(dot: DotProduct) -> str:
    """Of an element in the registers that the instruction takes."""
    return {"fma": "float32", "dpbf16ps": "uint16", "pmaddwd": "int16"}.get(dot.name, "int8")
