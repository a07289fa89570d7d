"""The machine code that a device is measured with: multiply-adds and other instructions in registers, the clock, and
reading memory and caches. Imports the compiler.

It is built beside the candidates and sent to the device as they are: a device needs no compiler.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.library.machine_code import shared_object, tvm_target
from tuner.measure.roof import PEAK, READ, READ_ACCUMULATORS, ROWS, TURNS, accumulators, read_bytes, read_rows
from tuner.measure.roof.issue import CLOCK, CLOCK_TURNS, Issued, issued
from tuner.measure.roof.issue import ROWS as STEPS
from tuner.measure.roof.issue import TURNS as REPEATS
from tuner.measure.roof.levels import Sweep, sweeps
from tuner.program.target import Target
from tuner.schedule.product.atom import allowed, configured
from tuner.schedule.vector.dtypes import vector_type

_building = threading.Lock()


def roof_binary(target: Target, threads: int) -> bytes:
    """The bytes of a shared object that exports PEAK and READ for a machine, on as many threads of TVM's pool."""
    with _building:
        return _built(target, threads)


def levels_binary(target: Target, threads: int) -> bytes:
    """The bytes of a shared object that exports PEAK, CLOCK, and the names of ``sweeps`` and ``issued``."""
    with _building:
        return _levels_built(target, threads)


def loaded_roof(target: Target, threads: int) -> Any:
    """What ``roof_binary`` makes, loaded into this process."""
    return loaded(roof_binary(target, threads))


def loaded(binary: bytes) -> Any:
    """A binary as a module of this process."""
    with tempfile.TemporaryDirectory(prefix="shapewright-roof-") as folder:
        path = Path(folder) / "roof.so"
        path.write_bytes(binary)
        return tvm.runtime.load_module(str(path))


@lru_cache(maxsize=16)
def _built(target: Target, threads: int) -> bytes:
    lanes = target.hardware.lanes()
    peak = _peak(lanes, accumulators(target), threads)
    read = Sweep("", read_rows(target, threads), 1, read_bytes(target, threads))
    return _compiled({PEAK: peak, READ: _read(read, lanes, threads, READ)}, target)


@lru_cache(maxsize=16)
def _levels_built(target: Target, threads: int) -> bytes:
    lanes = target.hardware.lanes()
    reads = {each.name: _read(each, lanes, threads) for each in sweeps(target, threads)}
    issues = {each.function: _issue(each, lanes, threads) for each in issued(target)}
    peak = _peak(lanes, accumulators(target), threads)
    return _compiled({PEAK: peak, CLOCK: _clock(threads), **reads, **issues}, target)


def _compiled(functions: Mapping[str, Any], target: Target) -> bytes:
    return shared_object(tvm.compile(tvm.IRModule(dict(functions)), target=tvm_target(target)), target)


def _peak(lanes: int, sums: int, threads: int) -> Any:
    vector = tirx.Ramp(0, 1, lanes)
    with _function(PEAK) as builder:
        operand = I.arg("operand", I.buffer((ROWS, lanes), "float32"))
        out = I.arg("out", I.buffer((threads, sums, lanes), "float32"))
        with _on_each(threads) as thread:
            values = _vectors(sums, lanes, 1.0)
            with I.serial(0, TURNS), I.serial(0, ROWS) as row:
                factor = I.Bind(operand[row, vector])
                for value in values:
                    I.buffer_store(value, value[vector] * factor + factor, [vector])
            for index, value in enumerate(values):
                I.buffer_store(out, value[vector], [thread, index, vector])
    return builder.get()


def _read(sweep: Sweep, lanes: int, threads: int, name: str = "") -> Any:
    vector = tirx.Ramp(0, 1, lanes)
    with _function(name or sweep.name) as builder:
        source = I.arg("source", I.buffer((threads, *sweep.axes, lanes), "float32"))
        out = I.arg("out", I.buffer((threads, READ_ACCUMULATORS, lanes), "float32"))
        with _on_each(threads) as thread:
            values = _vectors(READ_ACCUMULATORS, lanes, 0.0)
            with I.serial(0, sweep.turns), I.serial(0, sweep.rows) as row:
                for index, value in enumerate(values):
                    at = sweep.place(row, index)
                    I.buffer_store(value, value[vector] + source[(thread, *at, vector)], [vector])
            for index, value in enumerate(values):
                I.buffer_store(out, value[vector], [thread, index, vector])
    return builder.get()


def _clock(threads: int) -> Any:
    """One chain of operations on integers, each of which waits for the one before."""
    with _function(CLOCK) as builder:
        operands = I.arg("operands", I.buffer((2,), "int64"))
        out = I.arg("out", I.buffer((threads,), "int64"))
        with _on_each(threads) as thread:
            value = I.alloc_buffer((1,), "int64")
            I.buffer_store(value, tirx.Cast("int64", thread), [0])
            added, flipped = I.Bind(operands[0]), I.Bind(operands[1])
            with I.serial(0, CLOCK_TURNS):
                I.buffer_store(value, tirx.bitwise_xor(value[0] + added, flipped), [0])
            I.buffer_store(out, value[0], [thread])
    return builder.get()


def _issue(each: Issued, lanes: int, threads: int) -> Any:
    """A register tile of one instruction again and again."""
    with _function(each.function) as builder:
        operands = I.arg("operands", I.buffer((*each.operands, lanes), "int32"))
        out = I.arg("out", I.buffer((threads, *each.totals, lanes), each.atom.total))
        write = _in_vectors if each.atom.unit is None else _in_unit
        with allowed(each.atom), _on_each(threads) as thread:
            write(each, lanes, operands, out, thread)
    return builder.get()


def _in_vectors(each: Issued, lanes: int, operands: Any, out: Any, thread: Any) -> None:
    atom, vector = each.atom, tirx.Ramp(0, 1, lanes)
    totals = [I.alloc_buffer((lanes,), atom.total) for _ in range(each.down * each.across)]
    for index, total in enumerate(totals):
        I.buffer_store(total, out[thread, index, 0, vector], [vector])
    with I.serial(0, REPEATS), I.serial(0, STEPS) as step:
        words = [I.Bind(operands[step, index, 0, vector]) for index in range(each.down + each.across)]
        taken = vector_type(atom.element, lanes * atom.group)
        columns = [tirx.reinterpret(taken, word) for word in words[each.down :]]
        for index, total in enumerate(totals):
            left, right = words[index // each.across], columns[index % each.across]
            I.buffer_store(total, atom.products(total[vector], left, right), [vector])
    for index, total in enumerate(totals):
        I.buffer_store(out, total[vector], [thread, index, 0, vector])


def _in_unit(each: Issued, lanes: int, operands: Any, out: Any, thread: Any) -> None:
    """Tiles are loaded once: only multiplications are repeated."""
    unit, count, stride = each.atom.unit, each.down * each.across, tirx.IntImm("int64", 4 * lanes)
    assert unit is not None
    with configured(each.atom):
        for index in range(count):
            I.evaluate(unit.zero(index))
        for index in range(each.down + each.across):
            I.evaluate(unit.load(count + index, tirx.address_of(operands[0, index, 0, 0]), stride))
        with I.serial(0, REPEATS * STEPS):
            for index in range(count):
                right = count + each.down + index % each.across
                I.evaluate(unit.multiply(index, count + index // each.across, right))
        for index in range(count):
            I.evaluate(unit.store(index, tirx.address_of(out[thread, index, 0, 0]), stride))


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
