"""The function of a kernel: its arguments as every rule's ``emit`` declares them, symbols and shapes in TVM's terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tuner.program.language.dims import DimExpr, Quotient
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Workload
from tuner.schedule.layout import Layout
from tuner.schedule.tir import I, TirExpr, i64, tirx, tvm
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


def symbols(workload: Workload) -> dict[str, TirExpr]:
    """One int64 variable for each symbol."""
    return {name: tirx.Var(name, "int64") for name in workload.symbols}


def dim_expr(dim: DimExpr, values: Mapping[str, TirExpr]) -> TirExpr:
    """A dim as an int64 expression of TVM, with ``values`` in the places of its variables."""
    total: TirExpr = None
    for monomial, coefficient in dim.terms:
        product: TirExpr = None
        for atom in monomial:
            factor = _quotient(atom, values) if isinstance(atom, Quotient) else values[atom]
            product = factor if product is None else product * factor
        term = i64(coefficient) if product is None else product if coefficient == 1 else product * i64(coefficient)
        total = term if total is None else total + term
    return i64(0) if total is None else total


def _quotient(atom: Quotient, values: Mapping[str, TirExpr]) -> TirExpr:
    numerator, divisor = dim_expr(atom.numerator, values), i64(atom.divisor)
    is_floor = atom.operator == "//"
    if all(coefficient > 0 or not monomial for monomial, coefficient in atom.numerator.terms):
        return (tirx.floordiv if is_floor else tirx.floormod)(numerator, divisor)
    # TVM divides by -c in FlattenBuffer where an axis counts down, and rounds up. It leaves truncating division alone.
    rest = tirx.truncmod(numerator, divisor)
    is_below = rest < i64(0)
    if is_floor:
        return tirx.truncdiv(numerator, divisor) - tirx.Select(is_below, i64(1), i64(0))
    return rest + tirx.Select(is_below, divisor, i64(0))


def extents(workload: Workload, values: Mapping[str, TirExpr]) -> dict[str, TirExpr]:
    """The extent of each axis and size: a constant, or the variable of its symbol."""
    return {name: dim_expr(dim, values) for name, dim in workload.sizes.items()}


def operand_shapes(
    workload: Workload, values: Mapping[str, TirExpr], layouts: Mapping[str, Layout]
) -> dict[str, tuple[TirExpr, ...]]:
    """The shape of every operand in call order, by name; constants as their layouts pack them."""
    dims = operand_dims(workload, layouts).items()
    return {operand: tuple(dim_expr(dim, values) for dim in shape) for operand, shape in dims}


def operand_dims(workload: Workload, layouts: Mapping[str, Layout]) -> dict[str, tuple[DimExpr, ...]]:
    """The dims of every operand in call order, by name, over the workload's symbols."""
    return {
        operand.name: tuple(map(DimExpr.of, layouts[operand.name].packed_shape(operand.dims)))
        if operand.name in layouts
        else operand.dims
        for operand in workload.operands
    }
