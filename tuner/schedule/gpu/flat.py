"""Several axes walked as one: how the values of each follow from one index, the last axis fastest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.module import Function
from tuner.schedule.gpu.writer import Value, Writer, affine, dim_text


def axes_of(
    writer: Writer, names: Sequence[str], sizes: Mapping[str, DimExpr], symbols: Mapping[str, Value], at: Value
) -> dict[str, Value]:  # fmt: skip
    """The value of each axis where all of them together are at ``at``."""
    found: dict[str, Value] = {}
    inner, texts = DimExpr.of(1), {name: value.text for name, value in symbols.items()}
    for place, name in reversed(list(enumerate(names))):
        below = dim_text(inner, texts)
        text = at.text if below == "1" else f"({at.text} // {below})"
        text = f"({text} % {dim_text(sizes[name], texts)})" if place else text
        found[name] = writer.bind(Value(text, at.dtype, at.dims), name)
        inner = inner * sizes[name]
    return found


def size_of(names: Iterable[str], sizes: Mapping[str, DimExpr], symbols: Mapping[str, Value]) -> str:
    """How many values some axes have together, as text of a kernel."""
    total = DimExpr.of(1)
    for name in names:
        total = total * sizes[name]
    return affine(total, symbols).text


def function(workload: Workload, name: str, writer: Writer, more: Sequence[str] = ()) -> Function:
    """A function of what a writer has; ``more``: names of scratch memory besides tensors."""
    words = set(re.findall(r"\w+", "\n".join(writer.lines)))
    pointers = tuple(each for each in (*workload.program.tensors, *more) if f"p_{each}" in words)
    symbols = tuple(each for each in workload.symbols if f"s_{each}" in words)
    return Function(name, pointers, (), symbols, tuple(writer.lines))
