"""Vectors made of any lanes of two others, on targets for which ``permutes`` holds."""

from __future__ import annotations

from tuner.program.target import Hardware
from tuner.schedule.tir import TirExpr, tirx
from tuner.schedule.vector.arithmetic import bound
from tuner.schedule.vector.dtypes import lanes_of, vector_type

_OF_TWO, _OF_ONE = "llvm.x86.avx512.vpermi2var.ps.512", "llvm.x86.avx2.permps"
_NEEDS = {64: "avx512f", 32: "avx2"}


def permutes(hardware: Hardware) -> bool:
    """Whether vectors of 32-bit words are made of any lanes of two others."""
    return _NEEDS.get(hardware.vector_bytes) in hardware.features


def permuted(first: TirExpr, second: TirExpr, lane: TirExpr) -> TirExpr:
    """By lane of a vector of float32: lane ``lane`` of ``first``, or of ``second`` from ``lanes`` on (int32)."""
    lanes = lanes_of(first)
    wide = vector_type("float32", lanes)
    if lanes == 16:
        return tirx.call_llvm_intrin(wide, _OF_TWO, first, lane, second)
    # Of a lane's number the instruction takes the lowest bits.
    low, high = (bound(tirx.call_llvm_intrin(wide, _OF_ONE, vector, lane)) for vector in (first, second))
    return tirx.Select(lane < tirx.Broadcast(tirx.IntImm("int32", lanes), lanes), low, high)
