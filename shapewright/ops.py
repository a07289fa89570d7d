"""The operators of the catalogue, by name: ``sw.ops.dense``; their ``doc`` gives shapes and the call's operands.

``sw.ops.program("out[m] = sum(k) x[m, k]")`` takes a program of one's own in their place; extents come as ``args``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.program.build import ProgramOp
from tuner.program.catalogue import OPS, Op

__all__ = [*sorted([*OPS, "program"])]


def program(
    text: str,
    constant: Sequence[str] = (),
    *,
    padded: Mapping[str, float] | None = None,
    outputs: Sequence[str] | None = None,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    domain: Mapping[str, tuple[float, float]] | None = None,
) -> ProgramOp:
    """A program in the notation of docs/programs.md, for ``SearchTask(sw.ops.program(...), args=extents)``.

    ``constant`` names the inputs that are packed once; ``padded`` gives what is read outside of a tensor; ``shapes``
    where they do not follow from the axes. Nothing is checked before the extents are known.
    """
    return ProgramOp(
        text,
        tuple(constant),
        tuple((padded or {}).items()),
        None if outputs is None else tuple(outputs),
        tuple((name, tuple(shape)) for name, shape in (shapes or {}).items()),
        tuple((domain or {}).items()),
    )


def __getattr__(name: str) -> Op:
    if name in OPS:
        return OPS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
