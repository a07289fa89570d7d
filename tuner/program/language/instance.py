"""Static programs as instances of dynamic workloads: the same program, its extents numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import JsonObject, Workload


def program_key(canonical: JsonObject) -> str:
    """What workloads that differ in their extents alone have in common, as 16 hex digits.

    Explicit shapes and padding are left out: both may follow from the axes where extents are numbers.
    """
    same = {name: canonical[name] for name in ("program", "outputs", "dtype", "constant", "tf32") if name in canonical}
    text = json.dumps(same, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def instance_dims(static: Workload, dynamic: Workload) -> dict[str, int] | None:
    """The values of the symbols at which ``dynamic`` computes what ``static`` does, None if it never does.

    ``static`` has no symbols; the canonical programs of both are the same.
    """
    dims: dict[str, int] = {}
    for size, wanted in _sizes(static, dynamic):
        if size.constant is not None:
            if size.constant != wanted:
                return None
        elif (name := str(size)) in dynamic.symbols and dims.setdefault(name, wanted) != wanted:
            return None
    if set(dims) != set(dynamic.symbols) or not dynamic.is_consistent(dims):
        return None
    return dims if _is_same(static, dynamic, dims) else None


def _sizes(static: Workload, dynamic: Workload) -> Iterator[tuple[DimExpr, int]]:
    """Sizes of the dynamic workload over its symbols, each with what it is in the static one: axes, then dims."""
    for own, other in zip(dynamic.program.axes, static.program.axes, strict=True):
        yield dynamic.sizes[own], static.sizes[other].evaluate({})
    for mine, its in zip(dynamic.operands, static.operands, strict=True):
        yield from zip(mine.dims, its.shape({}), strict=True)


def _is_same(static: Workload, dynamic: Workload, dims: dict[str, int]) -> bool:
    """Whether all tensors have the same shapes there, and reads outside of them give the same."""
    shapes = [operand.shape(dims) for operand in dynamic.operands]
    if shapes != [operand.shape({}) for operand in static.operands]:
        return False
    sizes = [(own, other) for own, other in zip(dynamic.program.sizes, static.program.sizes, strict=True)]
    if any(dynamic.sizes[own].evaluate(dims) != static.sizes[other].evaluate({}) for own, other in sizes):
        return False
    names = dict(zip(static.program.tensors, dynamic.program.tensors, strict=True))
    padding = dict(dynamic.padding)
    # Padding that is never read is no part of a static workload.
    return all(padding.get(names[name]) == value for name, value in static.padding)
