"""The arguments of a library's entry point: tensors from whose shapes the symbols are read, and what is checked.

A symbol that is the size of some dim is bound to it. Every other dim must be what the symbols make of it; a symbol that
occurs in no dim by itself is solved for (``i + k - 1`` gives ``k`` where ``i`` is known). Imports TVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.language.binding import solved_symbols
from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import Read
from tuner.program.language.workload import Tensor, Workload
from tuner.schedule.function import dim_expr, operand_dims
from tuner.schedule.function import symbols as symbol_vars
from tuner.schedule.layout import Layout
from tuner.schedule.tir import i64

Expr = Any


@dataclass(frozen=True)
class _Size:
    """The size of dim ``position`` of an operand: what it must be, and the variable of what it is."""

    operand: str
    position: int
    wanted: DimExpr
    given: Expr


@dataclass
class EntryArguments:
    """What ENTRY of a workload takes; ``symbols`` are their variables."""

    workload: Workload
    layouts: Mapping[str, Layout]
    symbols: dict[str, Expr] = field(init=False)

    def __post_init__(self) -> None:
        self._vars = symbol_vars(self.workload)
        self.symbols = dict(self._vars)
        self._sizes: list[_Size] = []
        """The size of every dim that is neither a constant nor a symbol."""

    def declare(self) -> list[Expr]:
        """Declare a buffer argument for each operand, in call order."""
        dims = operand_dims(self.workload, self.layouts)
        return [self._buffer(operand, dims[operand.name]) for operand in self.workload.operands]

    def _buffer(self, operand: Tensor, shape: tuple[DimExpr, ...]) -> Expr:
        dims = [dim_expr(dim, self._vars) for dim in shape]
        for position, dim in enumerate(shape):
            if dim.constant is None and str(dim) not in self._vars:
                dims[position] = tirx.Var(f"{operand.name}_{position}", "int64")
                self._sizes.append(_Size(operand.name, position, dim, dims[position]))
        dtype = DTYPES[operand.dtype]
        # Users' arrays sit anywhere: promise no more than the alignment of one element.
        return I.arg(operand.name, I.buffer(tuple(dims), dtype.name, align=dtype.bytes))

    @contextmanager
    def checked(self) -> Iterator[None]:
        """What is written inside runs once every symbol is known and every size is what it must be."""
        self._solve()
        with ExitStack() as stack:
            for solved in solved_symbols(self.workload):
                some = self.symbols[solved.symbol] >= i64(0)
                stack.enter_context(I.Assert(some, f"{solved.operand}.shape[{solved.position}] is too small"))
            for size in self._sizes:
                wanted = tirx.max(dim_expr(size.wanted, self.symbols), i64(0))
                message = f"{size.operand}.shape[{size.position}] is not {size.wanted}"
                stack.enter_context(I.Assert(size.given == wanted, message))
            for read, position, need, extent in self.workload.inference.unproved:
                inside = dim_expr(need, self.symbols) <= dim_expr(extent, self.symbols)
                for axis in self.workload.reading_axes(read):
                    if self.workload.sizes[axis].constant is None:
                        inside = tirx.Or(inside, dim_expr(self.workload.sizes[axis], self.symbols) <= i64(0))
                stack.enter_context(I.Assert(inside, f"reads of {read.tensor} pass the end of its dim {position}"))
            for tensor, position in self._indexed():
                some = dim_expr(self.workload.tensors[tensor].dims[position], self.symbols) > i64(0)
                stack.enter_context(I.Assert(some, f"{tensor}.shape[{position}] is 0, and is read through indices"))
            yield

    def _indexed(self) -> list[tuple[str, int]]:
        """Dims of dynamic size that are read through an index tensor: clamping needs one element."""
        reads = [
            (read.tensor, position)
            for read in self.workload.program.reads
            for position, index in enumerate(read.indices)
            if isinstance(index, Read) and self.workload.tensors[read.tensor].dims[position].constant is None
        ]
        return list(dict.fromkeys(reads))

    def _solve(self) -> None:
        """Values for symbols that are no dim of an operand by themselves."""
        sizes = {(size.operand, size.position): size.given for size in self._sizes}
        for solved in solved_symbols(self.workload):
            rest = sizes[solved.operand, solved.position] - dim_expr(solved.rest, self.symbols)
            self.symbols[solved.symbol] = I.Bind(tirx.floordiv(rest, i64(solved.slope)))
