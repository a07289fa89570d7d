"""The function of a kernel: its arguments as every rule's ``emit`` declares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tuner.program.dtypes import DTYPES
from tuner.program.workload import Workload
from tuner.schedule.layout import Layout
from tuner.schedule.signature import extents, operand_shapes, symbols
from tuner.schedule.tir import I, TirExpr, tirx, tvm
from tuner.schedule.vector.dtypes import stored_type


@dataclass(frozen=True)
class KernelFunction:
    """A function while its body is written: a buffer for every operand, the symbols, the extent of every axis."""

    builder: Any
    buffers: Mapping[str, TirExpr]
    symbols: Mapping[str, TirExpr]
    extents: Mapping[str, TirExpr]

    def get(self) -> Any:
        """The PrimFunc, once its body is complete."""
        return self.builder.get()


@contextmanager
def kernel_function(workload: Workload, layouts: Mapping[str, Layout], name: str) -> Iterator[KernelFunction]:
    """A private PrimFunc whose body is what is written inside.

    It takes a pointer for every operand in call order, then every symbol; it returns 0.
    """
    with tvm.script.ir_builder.IRBuilder() as builder, I.prim_func(private=True):
        I.func_name(name)
        # Functions with a parallel loop return an error code.
        I.func_ret(tvm.ir.PrimType("int32"))
        I.func_attr({"tirx.noalias": True})
        values = symbols(workload)
        shapes = operand_shapes(workload, values, layouts)
        dtypes = {operand.name: stored_type(operand.dtype) for operand in workload.operands}
        pointers = {operand: I.arg(f"{operand}_data", I.ptr(dtypes[operand])) for operand in shapes}
        for symbol, value in values.items():
            I.arg(symbol, value)
        align = {operand.name: DTYPES[operand.dtype].bytes for operand in workload.operands}
        buffers = {
            operand: I.decl_buffer(shape, dtypes[operand], data=pointers[operand], align=align[operand])
            for operand, shape in shapes.items()
        }
        yield KernelFunction(builder, buffers, values, extents(workload, values))
        I.Return(tirx.IntImm("int32", 0))
