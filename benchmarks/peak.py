"""The fused multiply-add peak of one core, measured: independent accumulators in registers, operands in L1."""

from __future__ import annotations

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


def fma_peak_flops(target: Target) -> float:
    """Floating-point operations in a second, float32: the median of ten samples."""
    hardware = target.hardware
    accumulators = hardware.vector_registers - 4
    executable = tvm.compile(
        tvm.IRModule({"peak": _function(hardware, accumulators)}),
        target=tvm.target.Target({"kind": target.kind, "mcpu": target.mcpu}),
    )
    # One half keeps every accumulator at one: no denormals, which are slow, and nothing overflows.
    operand = tvm.runtime.tensor(np.full((ROWS, hardware.lanes()), 0.5, np.float32))
    out = tvm.runtime.empty((accumulators, hardware.lanes()), "float32")
    timer = executable.mod.time_evaluator("peak", tvm.cpu(), number=5, repeat=10)
    seconds: float = timer(operand, out).median
    return 2.0 * TURNS * ROWS * accumulators * hardware.lanes() / seconds


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
