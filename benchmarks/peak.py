"""The fused multiply-add peak of one core, measured: independent accumulators in registers, operands in L1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.target import Hardware, Target

ROWS = 64
"""Rows of the operand that the accumulators go through again and again: 4 KB with vectors of 64 bytes."""
TURNS = 4096


def peak_work(target: Target) -> float:
    """Floating-point operations of one call of ``peak_call``."""
    return 2.0 * TURNS * ROWS * _accumulators(target) * target.hardware.lanes()


def peak_call(target: Target) -> Callable[[], object]:
    """A millisecond's work at the float32 peak of one core."""
    executable = tvm.compile(
        tvm.IRModule({"peak": _function(target.hardware, _accumulators(target))}),
        target=tvm.target.Target({"kind": target.kind, "mcpu": target.mcpu}),
    )
    # One half keeps every accumulator at one: no denormals, which are slow, and nothing overflows.
    operand = tvm.runtime.tensor(np.full((ROWS, target.hardware.lanes()), 0.5, np.float32))
    out = tvm.runtime.empty((_accumulators(target), target.hardware.lanes()), "float32")
    function = executable.mod["peak"]
    return lambda: function(operand, out)


def _accumulators(target: Target) -> int:
    return target.hardware.vector_registers - 4


def _function(hardware: Hardware, accumulators: int) -> Any:
    lanes = hardware.lanes()
    vector = tirx.Ramp(0, 1, lanes)
    with IRBuilder() as builder, I.prim_func():
        I.func_name("peak")
        I.func_attr({"tirx.noalias": True, "global_symbol": "peak"})
        operand = I.arg("operand", I.buffer((ROWS, lanes), "float32"))
        out = I.arg("out", I.buffer((accumulators, lanes), "float32"))
        values = [I.alloc_buffer((lanes,), "float32") for _ in range(accumulators)]
        for value in values:
            I.buffer_store(value, tirx.Broadcast(tirx.FloatImm("float32", 1.0), lanes), [vector])
        with I.serial(0, TURNS), I.serial(0, ROWS) as row:
            factor = I.Bind(operand[row, vector])
            for value in values:
                I.buffer_store(value, value[vector] * factor + factor, [vector])
        for index, value in enumerate(values):
            I.buffer_store(out, value[vector], [index, vector])
    return builder.get()
