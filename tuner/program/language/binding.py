"""Which tensor dims the symbols of a workload are read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Workload


@dataclass(frozen=True, slots=True)
class SolvedSymbol:
    """A symbol that is no dim by itself: ``(size of dim position of operand - rest) // slope``."""

    symbol: str
    operand: str
    position: int
    slope: int
    rest: DimExpr


def solved_symbols(workload: Workload) -> tuple[SolvedSymbol, ...]:
    """The symbols that are no dim of an operand by themselves, each after those that it is solved with.

    Raises InvalidInput on field ``program`` for one that no dim determines.
    """
    # Constants last: kernels may take them in a packed form, which has other dims.
    operands = sorted(workload.operands, key=lambda operand: operand.constant)
    dims = [(operand.name, position, dim) for operand in operands for position, dim in enumerate(operand.dims)]
    missing = [name for name in workload.symbols if name not in {str(dim) for _, _, dim in dims}]
    solved: list[SolvedSymbol] = []
    while missing:
        step = next((result for name in missing if (result := _solved(name, missing, dims)) is not None), None)
        if step is None:
            expr = workload.symbol_exprs[missing[0]]
            problem = f"the extent {expr} cannot be read from any tensor's shape"
            raise InvalidInput("program", problem, "read a tensor at the axis itself, or make its extent a constant")
        solved.append(step)
        missing.remove(step.symbol)
    return tuple(solved)


def _solved(name: str, missing: list[str], dims: list[tuple[str, int, DimExpr]]) -> SolvedSymbol | None:
    for operand, position, dim in dims:
        slope = next((coefficient for monomial, coefficient in dim.terms if monomial == (name,)), 0)
        if slope > 0 and (rest := dim - DimExpr.var(name) * slope).variables.isdisjoint(missing):
            return SolvedSymbol(name, operand, position, slope, rest)
    return None


def symbols_at(workload: Workload, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The values of the symbols, in order, for operands of these shapes in call order; constants may be packed. Sizes
    that do not fit together are not reported."""
    found: dict[str, int] = {}
    sizes: dict[tuple[str, int], int] = {}
    for operand, shape in zip(workload.operands, shapes, strict=True):
        # A packed constant may have fewer dims, or more: none of them is a symbol then.
        for position, (dim, size) in enumerate(zip(operand.dims, shape, strict=False)):
            sizes[operand.name, position] = size
            if dim.constant is None:
                found.setdefault(str(dim), size)
    for solved in solved_symbols(workload):
        rest = sizes[solved.operand, solved.position] - solved.rest.evaluate(found)
        found[solved.symbol] = rest // solved.slope
    return tuple(found[symbol] for symbol in workload.symbols)
