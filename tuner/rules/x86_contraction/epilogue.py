"""Elementwise epilogues on one vector of results, applied while it is in a register.

``exp``, ``erf`` and ``tanh`` are written in vector arithmetic: the compiler would call the scalar function of the C
library for each lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.ops import EPILOGUES
from tuner.rules.x86_contraction.frame import Frame

LONG = frozenset({"gelu", "gelu_tanh"})
"""Epilogues of dozens of instructions: unrolled into every variant of a tile they would be most of a kernel's code."""

Expr = Any
Bind = Callable[[Expr], Expr]


def is_short(names: Sequence[str]) -> bool:
    """Whether an epilogue is worth its code beside every accumulator."""
    return LONG.isdisjoint(names)


def through_epilogue(
    frame: Frame, names: Sequence[str], value: Expr, row: Expr, column: Expr, limit: Expr | None
) -> Expr:
    """``value``, the vector of the output at ``row`` from ``column`` on, after each epilogue in turn.

    Further inputs are read before column ``limit`` (None: all of the vector's lanes are).
    """
    bind = I.Bind
    vector = _Vector(frame.vectors.lanes, bind)
    for name in names:
        extra = EPILOGUES[name].operand
        value = bind(value)
        if extra is not None:
            buffer = frame.buffers[extra.name]
            place = (*frame.batch, row) if len(buffer.shape) > 1 else ()
            value = value + frame.vectors.load(buffer, place, column, limit)
        elif name == "relu":
            # Not max: that would turn NaN into 0.
            value = tirx.Select(value < vector.constant(0.0), vector.constant(0.0), value)
        elif name == "gelu":
            value = (
                value
                * vector.constant(0.5)
                * (vector.constant(1.0) + vector.erf(value * vector.constant(math.sqrt(0.5))))
            )
        elif name == "gelu_tanh":
            cubed = vector.constant(0.044715) * value * value * value
            inner = vector.constant(math.sqrt(2.0 / math.pi)) * (value + cubed)
            value = value * vector.constant(0.5) * (vector.constant(1.0) + vector.tanh(inner))
        else:
            raise NotImplementedError(f"epilogue {name} has no code")
    return value


class _Vector:
    """Elementary functions on float32 vectors of ``lanes`` elements."""

    def __init__(self, lanes: int, bind: Bind) -> None:
        self.lanes, self.bind = lanes, bind

    def constant(self, number: float) -> Expr:
        return tirx.Broadcast(tirx.FloatImm("float32", number), self.lanes)

    def exp(self, x: Expr) -> Expr:
        """2^i * 2^f with |f| <= 1/2, the latter as a Taylor series to f^7: good to 1e-5 relative. Never infinite."""
        limited = tirx.max(tirx.min(x, self.constant(88.0)), self.constant(-87.0))
        scaled = self.bind(limited * self.constant(math.log2(math.e)))
        whole = self.bind(tirx.floor(scaled + self.constant(0.5)))
        part = self.bind((scaled - whole) * self.constant(math.log(2.0)))
        series = self.constant(1.0 / math.factorial(7))
        for degree in range(6, -1, -1):
            series = series * part + self.constant(1.0 / math.factorial(degree))
        exponent = tirx.Cast(f"int32x{self.lanes}", whole) + tirx.Broadcast(tirx.IntImm("int32", 127), self.lanes)
        bits = tirx.shift_left(exponent, tirx.Broadcast(tirx.IntImm("int32", 23), self.lanes))
        return series * tirx.reinterpret(f"float32x{self.lanes}", bits)

    def erf(self, x: Expr) -> Expr:
        """Abramowitz and Stegun, formula 7.1.26: absolute error at most 1.5e-7."""
        x = self.bind(x)
        magnitude = self.bind(tirx.max(x, self.constant(0.0) - x))
        t = self.bind(self.constant(1.0) / (self.constant(1.0) + self.constant(0.3275911) * magnitude))
        series = self.constant(1.061405429)
        for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
            series = series * t + self.constant(coefficient)
        positive = self.bind(self.constant(1.0) - series * t * self.exp(self.constant(0.0) - magnitude * magnitude))
        return tirx.Select(x < self.constant(0.0), self.constant(0.0) - positive, positive)

    def tanh(self, x: Expr) -> Expr:
        """1 - 2 / (exp(2x) + 1)."""
        return self.constant(1.0) - self.constant(2.0) / (self.exp(x * self.constant(2.0)) + self.constant(1.0))
