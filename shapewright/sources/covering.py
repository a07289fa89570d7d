"""Whether a library serves a workload: the same program, each extent the same or left open by the library."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.program.language.dims import DimExpr
from tuner.program.language.instance import program_key
from tuner.program.language.workload import Workload


def covers(library: Workload, asked: Workload) -> bool:
    """Whether a library for the first computes the second, at every value of its symbols.

    A graph of PyTorch that is compiled for one size has a number where the library has a symbol.
    """
    if library.key == asked.key:
        return True
    if program_key(library.canonical) != program_key(asked.canonical):
        return False
    taken: dict[str, DimExpr] = {}
    for own, its in _sizes(library, asked):
        if own.constant is not None:
            if own != its:
                return False
        elif taken.setdefault(str(own), its) != its:
            return False
    return _padding(library) == _padding(asked)


def _sizes(library: Workload, asked: Workload) -> Iterator[tuple[DimExpr, DimExpr]]:
    """Every extent and dim of the two, side by side; their canonical programs are the same."""
    for own, its in zip(library.program.axes, asked.program.axes, strict=True):
        yield library.sizes[own], asked.sizes[its]
    for mine, other in zip(library.operands, asked.operands, strict=True):
        yield from zip(mine.dims, other.dims, strict=True)


def _padding(workload: Workload) -> dict[str, object]:
    return dict(workload.canonical["padded"])
