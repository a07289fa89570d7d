"""Elementwise epilogues on one vector of results, applied while it is in a register. Imports TVM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.ops import EPILOGUES
from tuner.rules.vector.arithmetic import like
from tuner.rules.vector.functions import apply
from tuner.rules.x86_contraction.frame import Frame

LONG = frozenset({"gelu", "gelu_tanh"})
"""Epilogues of dozens of instructions: unrolled into every variant of a tile they would be most of a kernel's code."""

Expr = Any


def is_short(names: Sequence[str]) -> bool:
    """Whether an epilogue is worth its code beside every accumulator."""
    return LONG.isdisjoint(names)


def through_epilogue(
    frame: Frame, names: Sequence[str], value: Expr, row: Expr, column: Expr, limit: Expr | None
) -> Expr:
    """``value``, the vector of the output at ``row`` from ``column`` on, after each epilogue in turn.

    Further inputs are read before column ``limit`` (None: all of the vector's lanes are).
    """
    for name in names:
        extra = EPILOGUES[name].operand
        value = I.Bind(value)
        if extra is not None:
            buffer = frame.buffers[extra.name]
            place = (*frame.batch, row) if len(buffer.shape) > 1 else ()
            value = value + frame.vectors.load(buffer, place, column, limit)
        elif name == "relu":
            # Not max: that would turn NaN into 0.
            value = tirx.Select(value < like(0.0, value), like(0.0, value), value)
        elif name == "gelu":
            value = value * like(0.5, value) * (like(1.0, value) + apply("erf", value * like(math.sqrt(0.5), value)))
        elif name == "gelu_tanh":
            cubed = like(0.044715, value) * value * value * value
            inner = like(math.sqrt(2.0 / math.pi), value) * (value + cubed)
            value = value * like(0.5, value) * (like(1.0, value) + apply("tanh", inner))
        else:
            raise NotImplementedError(f"epilogue {name} has no code")
    return value
