"""What a device can do at best: multiply-adds with accumulators in registers, and reading memory. Imports TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.measure.timing import Timer, sampling
from tuner.program.target import Target
from tuner.records import Roof

Call = Callable[[], object]
ROWS = 64
"""Rows of the operand that the accumulators go through again and again: 4 KB with vectors of 64 bytes."""
TURNS = 4096
READ_BYTES = 64 * 2**20
"""Read at a time, by all threads together: beyond every cache that a core has to itself."""
READ_ACCUMULATORS = 8
"""Enough sums at once that memory is waited for, not additions."""


def measure_roof(target: Target, threads: int, timer: Timer) -> Roof:
    """The roof of this machine, on as many threads of TVM's pool; some tenths of a second."""
    rates = []
    for work, call in ((peak_work(target, threads), peak_call(target, threads)), read_call(target, threads)):
        timed = timer.measure(call, sampling(call))
        rates.append((work / timed.latency_s, timed.anchor_s))
    (flops_per_s, anchor_s), (bytes_per_s, _) = rates
    return Roof(flops_per_s, bytes_per_s, anchor_s)


def peak_work(target: Target, threads: int = 1) -> float:
    """Floating-point operations of one call of ``peak_call``."""
    return 2.0 * threads * TURNS * ROWS * _accumulators(target) * target.hardware.lanes()


def peak_call(target: Target, threads: int = 1) -> Call:
    """A millisecond's work at the float32 peak of one core, on each of so many threads."""
    lanes = target.hardware.lanes()
    function = _compiled(target, "peak", _peak(lanes, _accumulators(target), threads))
    # One half keeps every accumulator at one: no denormals, which are slow, and nothing overflows.
    operand = tvm.runtime.tensor(np.full((ROWS, lanes), 0.5, np.float32))
    out = tvm.runtime.empty((threads, _accumulators(target), lanes), "float32")
    return lambda: function(operand, out)


def read_call(target: Target, threads: int = 1) -> tuple[int, Call]:
    """Reading READ_BYTES or a little less, each thread its share: the bytes, and the call."""
    lanes = target.hardware.lanes()
    rows = READ_BYTES // (4 * threads * READ_ACCUMULATORS * lanes)
    function = _compiled(target, "read", _read(lanes, rows, threads))
    source = tvm.runtime.tensor(np.ones((threads, rows, READ_ACCUMULATORS, lanes), np.float32))
    out = tvm.runtime.empty((threads, READ_ACCUMULATORS, lanes), "float32")
    return 4 * threads * rows * READ_ACCUMULATORS * lanes, lambda: function(source, out)


def _accumulators(target: Target) -> int:
    return target.hardware.vector_registers - 4


def _compiled(target: Target, name: str, function: Any) -> Any:
    module = tvm.IRModule({name: function})
    return tvm.compile(module, target=tvm.target.Target({"kind": target.kind, "mcpu": target.mcpu})).mod[name]


def _peak(lanes: int, accumulators: int, threads: int) -> Any:
    vector = tirx.Ramp(0, 1, lanes)
    with _function("peak") as builder:
        operand = I.arg("operand", I.buffer((ROWS, lanes), "float32"))
        out = I.arg("out", I.buffer((threads, accumulators, lanes), "float32"))
        with _on_each(threads) as thread:
            values = _vectors(accumulators, lanes, 1.0)
            with I.serial(0, TURNS), I.serial(0, ROWS) as row:
                factor = I.Bind(operand[row, vector])
                for value in values:
                    I.buffer_store(value, value[vector] * factor + factor, [vector])
            for index, value in enumerate(values):
                I.buffer_store(out, value[vector], [thread, index, vector])
    return builder.get()


def _read(lanes: int, rows: int, threads: int) -> Any:
    vector = tirx.Ramp(0, 1, lanes)
    with _function("read") as builder:
        source = I.arg("source", I.buffer((threads, rows, READ_ACCUMULATORS, lanes), "float32"))
        out = I.arg("out", I.buffer((threads, READ_ACCUMULATORS, lanes), "float32"))
        with _on_each(threads) as thread:
            values = _vectors(READ_ACCUMULATORS, lanes, 0.0)
            with I.serial(0, rows) as row:
                for index, value in enumerate(values):
                    I.buffer_store(value, value[vector] + source[thread, row, index, vector], [vector])
            for index, value in enumerate(values):
                I.buffer_store(out, value[vector], [thread, index, vector])
    return builder.get()


@contextmanager
def _function(name: str) -> Iterator[IRBuilder]:
    with IRBuilder() as builder, I.prim_func():
        I.func_name(name)
        I.func_attr({"tirx.noalias": True, "global_symbol": name})
        yield builder


def _on_each(threads: int) -> Any:
    """The loop over threads; one thread needs no pool."""
    return I.serial(0, 1) if threads == 1 else I.parallel(0, threads)


def _vectors(count: int, lanes: int, value: float) -> list[Any]:
    """Vectors that stay in registers, all their elements ``value``."""
    result = [I.alloc_buffer((lanes,), "float32") for _ in range(count)]
    for vector in result:
        I.buffer_store(vector, tirx.Broadcast(tirx.FloatImm("float32", value), lanes), [tirx.Ramp(0, 1, lanes)])
    return result
