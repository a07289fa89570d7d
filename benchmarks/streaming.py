"""How fast memory can be read and written here: as many bytes as a workload's operands have, by vectors.

Every output byte is written once and every input byte read once, at the same sizes as the workload's, so that the same
caches serve both. Writes read their lines first, as those of ordinary kernels do. Imports TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.target import Target

Call = Callable[[], object]
VECTORS = 8
"""Vectors of a row: as many sums at once that memory is waited for, not additions."""
MAX_SOURCES = 3
"""Sources that are read side by side while one output is written."""


class Stream:
    """Calls that move bytes on ``target``, on ``threads`` threads of TVM's pool."""

    def __init__(self, target: Target, threads: int = 1) -> None:
        self._lanes, self._threads = target.hardware.lanes(), threads
        functions = {f"move_{count}": self._move(count) for count in range(1, MAX_SOURCES + 1)} | {
            "read": self._read()
        }
        llvm = tvm.target.Target({"kind": target.kind, "mcpu": target.mcpu})
        self._module = tvm.compile(tvm.IRModule(functions), target=llvm).mod

    @property
    def row_bytes(self) -> int:
        """What sizes are rounded down to multiples of, and up to at least: a row for each thread."""
        return 4 * self._threads * VECTORS * self._lanes

    def moved_bytes(self, read_bytes: int, written_bytes: int) -> int:
        """What a call of these sizes moves, after rounding."""
        return self.row_bytes * sum(self._rows(read_bytes, written_bytes))

    def call(self, read_bytes: int, written_bytes: int) -> Call:
        """Reading and writing so many bytes, rounded to whole rows."""
        reads, writes = self._rows(read_bytes, written_bytes)
        count = min(MAX_SOURCES, max(1, reads // writes))
        moved = min(writes, reads // count)
        sources = [self._array(moved) for _ in range(count)]
        out = self._array(writes)
        move, read = self._module[f"move_{count}"], self._module["read"]
        rest, sums = self._array(reads - count * moved), self._array(1)
        if not reads - count * moved:
            return lambda: move(*sources, out)

        def call() -> None:
            move(*sources, out)
            read(rest, sums)

        return call

    def _rows(self, read_bytes: int, written_bytes: int) -> tuple[int, int]:
        return max(1, read_bytes // self.row_bytes), max(1, written_bytes // self.row_bytes)

    def _array(self, rows: int) -> Any:
        return tvm.runtime.tensor(np.ones((self._threads, rows, VECTORS, self._lanes), np.float32))

    # -- code ---------------------------------------------------------------------------------------------------------
    def _move(self, count: int) -> Any:
        """``out[i] = source[i] + ...``; rows of the output past those of the sources are written alone."""
        name, rows, own = f"move_{count}", tirx.Var("rows", "int64"), tirx.Var("own", "int64")
        with IRBuilder() as builder, I.prim_func():
            _name(name)
            sources = [self._argument(f"source_{index}", rows) for index in range(count)]
            out = self._argument("out", own)
            with self._on_each() as thread:
                with I.serial(0, rows) as row, I.unroll(0, VECTORS) as vector:
                    at = [thread, row, vector, tirx.Ramp(0, 1, self._lanes)]
                    total = sources[0][tuple(at)]
                    # One source is added to itself: a plain copy would become a call of memcpy.
                    for source in sources[1:] or sources:
                        total = total + source[tuple(at)]
                    I.buffer_store(out, total, at)
                with I.serial(0, own - rows) as row, I.unroll(0, VECTORS) as vector:
                    ones = tirx.Broadcast(tirx.FloatImm("float32", 1.0), self._lanes)
                    I.buffer_store(out, ones, [thread, rows + row, vector, tirx.Ramp(0, 1, self._lanes)])
        return builder.get()

    def _read(self) -> Any:
        """Sums of all rows, in as many accumulators as a row has vectors."""
        rows = tirx.Var("rows", "int64")
        lanes = tirx.Ramp(0, 1, self._lanes)
        with IRBuilder() as builder, I.prim_func():
            _name("read")
            source, out = self._argument("source", rows), self._argument("out", tirx.IntImm("int64", 1))
            with self._on_each() as thread:
                sums = [I.alloc_buffer((self._lanes,), "float32") for _ in range(VECTORS)]
                for each in sums:
                    I.buffer_store(each, tirx.Broadcast(tirx.FloatImm("float32", 0.0), self._lanes), [lanes])
                with I.serial(0, rows) as row:
                    for index, each in enumerate(sums):
                        I.buffer_store(each, each[lanes] + source[thread, row, index, lanes], [lanes])
                for index, each in enumerate(sums):
                    I.buffer_store(out, each[lanes], [thread, 0, index, lanes])
        return builder.get()

    def _argument(self, name: str, rows: Any) -> Any:
        return I.arg(name, I.buffer((self._threads, rows, VECTORS, self._lanes), "float32"))

    def _on_each(self) -> Any:
        """The loop over threads; one thread needs no pool."""
        return I.serial(0, 1) if self._threads == 1 else I.parallel(0, self._threads)


def _name(name: str) -> None:
    I.func_name(name)
    I.func_attr({"tirx.noalias": True, "global_symbol": name})
