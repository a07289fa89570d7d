"""Rounding of float32 to bfloat16 by an instruction: to nearest, ties to even, as by operations on integers. Numbers
below the smallest normal one become zero, as kernels may have it (see the reference's RANGES)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tuner.program.language.workload import Workload
from tuner.program.target import Hardware
from tuner.schedule.tir import I, TirExpr, tirx, tvm

FEATURE, LANES = "avx512_bf16", 16
_NAME = "shapewright_to_bf16"
# TVM has no vectors of LLVM's bfloat. LLVM has the instruction for the conversion where the CPU has it.
_CODE = f"""
define linkonce_odr <{LANES} x i16> @{_NAME}(<{LANES} x float> %value) alwaysinline {{
  %rounded = fptrunc <{LANES} x float> %value to <{LANES} x bfloat>
  %bits = bitcast <{LANES} x bfloat> %rounded to <{LANES} x i16>
  ret <{LANES} x i16> %bits
}}
"""
_is_there: ContextVar[bool] = ContextVar("is_there", default=False)


@contextmanager
def by_instruction(workload: Workload, hardware: Hardware) -> Iterator[None]:
    """What is written inside, the body of a function, rounds by the instruction if ``hardware`` has it."""
    has_vectors, given = FEATURE in hardware.features and hardware.lanes() == LANES, workload.inputs
    computed = [tensor for tensor in workload.tensors.values() if tensor not in given]
    if not has_vectors or all(tensor.dtype != "bfloat16" for tensor in computed):
        yield
        return
    token = _is_there.set(True)
    try:
        with I.attr(tirx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(_CODE)):
            yield
    finally:
        _is_there.reset(token)


def instruction(value: TirExpr) -> TirExpr | None:
    """A vector of float32 as bits of bfloat16, where there is an instruction for so many lanes."""
    if not _is_there.get() or int(value.ty.dtype.lanes) != LANES:
        return None
    return tirx.call_pure_extern(f"uint16x{LANES}", _NAME, value)
