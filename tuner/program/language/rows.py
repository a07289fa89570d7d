"""Programs with independent rows: row i of the output is computed of row i of some inputs, and of others as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.program.language.expr import Axis, Expr, Extent, Read, children, walk
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload


class _Entangled(Exception):
    """A row depends on another one, on its number, or on the extent of its axis."""


def independent_rows(workload: Workload) -> frozenset[str] | None:
    """The inputs that are read row by row, a row being what one index of the first axis of the only output selects;
    None where rows depend on one another, on their numbers, or on how many there are.

    The number of rows is a symbol of the workload that nothing else is a size of: a call for some of the rows has only
    another value of it.
    """
    by_row = _tensors_by_row(workload.program)
    if by_row is None:
        return None
    rows = workload.outputs[0].dims[0]
    first = {name for name, is_by_row in by_row.items() if is_by_row}
    others = [dim for name, tensor in workload.tensors.items() for dim in tensor.dims[name in first :]]
    for stage in workload.program.stages:
        axes = (*stage.axes, *stage.reduce_axes)[stage.tensor in first :]
        extents = [node.name for node in walk(stage.body) if isinstance(node, Extent)]
        others += [workload.sizes[name] for name in (*axes, *extents)]
    same = all(workload.tensors[name].dims[0] == rows for name in first)
    if not rows.variables or not same or not all(rows.variables.isdisjoint(dim.variables) for dim in others):
        return None
    return frozenset(first.intersection(workload.program.inputs))


def _tensors_by_row(program: Program) -> Mapping[str, bool] | None:
    """Of every tensor whether it is read, or computed, row by row; None where rows depend on one another.

    Stages are followed from the output back: one that is read row by row is computed row by row of what it reads, one
    that is read as a whole is computed of whole tensors.
    """
    if len(program.outputs) != 1:
        return None
    by_row = {program.outputs[0]: True}
    try:
        for stage in reversed(program.stages):
            if by_row[stage.tensor] and not stage.axes:
                return None
            for tensor, is_by_row in _reads(stage.body, stage.axes[0] if by_row[stage.tensor] else None):
                if by_row.setdefault(tensor, is_by_row) != is_by_row:
                    return None
    except _Entangled:
        return None
    return by_row


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
