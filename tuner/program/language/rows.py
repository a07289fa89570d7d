"""Programs whose rows are apart: row i of the output is computed of row i of some inputs, and of others as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.program.language.expr import Axis, Expr, Extent, Read, children
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload


class _Entangled(Exception):
    """A row depends on another one, on its number, or on how many there are."""


def rows_apart(program: Program) -> frozenset[str] | None:
    """The inputs that are read row by row, a row being what one index of the first axis of the only output selects;
    None where rows depend on one another, on their numbers, or on how many there are.

    Stages are followed from the output back: one that is read row by row is computed row by row of what it reads, one
    that is read as a whole is computed of whole tensors.
    """
    if len(program.outputs) != 1:
        return None
    by_row = {program.outputs[0]: True}
    try:
        for stage in reversed(program.stages):
            row = None
            if by_row[stage.tensor]:
                if not stage.axes:
                    return None
                row = stage.axes[0]
            for tensor, is_by_row in _reads(stage.body, row):
                if by_row.setdefault(tensor, is_by_row) != is_by_row:
                    return None
    except _Entangled:
        return None
    return frozenset(name for name in program.inputs if by_row[name])


def inputs_by_row(workload: Workload) -> frozenset[str] | None:
    """``rows_apart`` where these inputs have as many rows as the output has, whatever the symbols; else None."""
    by_row = rows_apart(workload.program)
    if by_row is None:
        return None
    rows = workload.outputs[0].dims[0]
    return by_row if all(workload.tensors[name].dims[0] == rows for name in by_row) else None


def _reads(expr: Expr, row: str | None) -> Iterator[tuple[str, bool]]:
    """The tensors that an expression reads, and whether each is read at the row ``row`` alone."""
    match expr:
        case Read(tensor=tensor, indices=indices):
            is_by_row = row is not None and bool(indices) and indices[0] == Axis(row)
            yield tensor, is_by_row
            for index in indices[1:] if is_by_row else indices:
                yield from _reads(index, row)
        case Axis(name=name) | Extent(name=name) if name == row:
            raise _Entangled
        case _:
            for child in children(expr):
                yield from _reads(child, row)
