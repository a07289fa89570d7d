"""Operands of a product whose axes are grouped: packed ahead, viewed, or gathered at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tuner.program.expr import Expr, Read
from tuner.program.workload import Workload
from tuner.schedule.product.match.factors import MAX_WORD, dims_of, in_words, merged, total_of
from tuner.schedule.product.match.parts import Part, outer_role
from tuner.schedule.product.operands.gathered import AheadColumns, AheadRows, GatheredColumns, GatheredRows
from tuner.schedule.product.operands.matrix import ViewedColumns, ViewedRows

Side = TypeVar("Side")


@dataclass(frozen=True)
class Kinds(Generic[Side]):
    """What an operand may be that has the group ``own``, m or n, besides k."""

    own: str
    gathered: Callable[..., Side]
    packed: Callable[..., Side]
    viewed: Callable[..., Side]


ROWS: Kinds[AheadRows | GatheredRows | ViewedRows] = Kinds("m", GatheredRows, AheadRows, ViewedRows)
COLUMNS: Kinds[AheadColumns | GatheredColumns | ViewedColumns] = Kinds(
    "n", GatheredColumns, AheadColumns, ViewedColumns
)


def operand_of(
    workload: Workload, parts: Mapping[str, Part], factors: tuple[Expr, ...],
    groups: Mapping[str, tuple[str, ...]], kinds: Kinds[Side],
) -> Side:  # fmt: skip
    """How the product of some factors is read."""
    own = kinds.own
    if len(factors) != 1 or not isinstance(factors[0], Read):
        return kinds.gathered(factors)
    read = factors[0]
    dtype, total = workload.tensors[read.tensor].dtype, total_of(workload)
    gathered = kinds.gathered(factors, dtype=dtype if total == "int32" else total, read_dtype=dtype)
    dims = dims_of(workload, parts, read)
    names = [name for dim in dims or () for name in dim]
    if not dims or not {*groups[own], *groups["k"]} <= set(names):
        return gathered
    if read.tensor in workload.constants:
        if sum(each.tensor == read.tensor for each in workload.program.reads) > 1:
            # Whatever else reads it needs it as it is, and a library packs it once.
            return gathered
        is_fixed = all(parts[name].extent.constant is not None for name in names)
        outer = tuple(outer_role(name) for name in names if name not in (*groups[own], *groups["k"]))
        return kinds.packed(factors, (*outer, own, "k"), dtype, dtype) if is_fixed else gathered
    if total == "int32" and not in_words(parts, groups["k"], MAX_WORD):
        return gathered
    roles = merged(names, {own: groups[own], "k": groups["k"]})
    usable = roles is not None and (roles[-1] == "k" if own == "m" else set(roles[-2:]) == {"k", "n"})
    return kinds.viewed(factors, roles or (), dtype, dtype) if usable else gathered
