"""What a frontend makes of one operator: the neutral operation, and what several frontends make alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shapewright.models.graph import CannotLift, Input

POWERS = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}


@dataclass(frozen=True, slots=True)
class Translated:
    """A neutral operation, its inputs and its attributes."""

    op: str
    inputs: tuple[Input, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


def number(value: Any) -> float:
    """An argument that must be a number. Raises CannotLift for what is none."""
    if not isinstance(value, int | float) or math.isnan(value):
        raise CannotLift("an argument that must be a number is none")
    return float(value)


def power(x: Input, exponent: Any) -> Translated:
    """x to a constant power."""
    if not isinstance(exponent, int | float) or exponent not in POWERS:
        raise CannotLift(f"the power {exponent}")
    return Translated(POWERS[exponent], (x,))


def clamped(x: Input, low: Any, high: Any) -> Translated:
    """x between two numbers, one of which may be missing."""
    if not all(each is None or isinstance(each, int | float) for each in (low, high)):
        raise CannotLift("its bounds are tensors")
    if low is None or high is None:
        return Translated("minimum" if low is None else "maximum", (x, high if low is None else low))
    return Translated("clamp", (x,), {"low": number(low), "high": number(high)})


def celu(x: Input, alpha: float) -> Translated:
    """``alpha * (exp(x / alpha) - 1)`` where x is negative, x elsewhere. Raises CannotLift unless alpha is positive."""
    if alpha <= 0:
        raise CannotLift("its alpha is not positive")
    return scaled_elu(x, alpha, 1.0, 1.0 / alpha)


def scaled_elu(x: Input, slope: float, scale: float, inner: float) -> Translated:
    """``slope * (exp(inner * x) - 1)`` where x is negative, ``scale * x`` elsewhere."""
    if scale == inner == 1:
        return Translated("elu", (x,), {"slope": slope})
    return Translated("scaled_elu", (x,), {"slope": slope, "scale": scale, "inner": inner})
