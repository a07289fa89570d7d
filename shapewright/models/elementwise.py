"""Elementwise operations in the programs' notation: templates over their inputs and attributes.

Where the catalogue has an epilogue of the same meaning, its text is used: then the workloads are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.program.catalogue import EPILOGUES

BYTES: Mapping[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The least and the largest number of each dtype of bytes."""
MAX_FLOAT32 = float(np.finfo(np.float32).max)

_SMALL = "exp(-abs({0}))"
_LOG1P = f"where(1.0 + {_SMALL} == 1.0, {_SMALL}, log(1.0 + {_SMALL}) * {_SMALL} / (1.0 + {_SMALL} - 1.0))"
"""log(1 + exp(-abs(x))), to within what its argument is rounded by, after Kahan: where 1 + e is rounded, log(1 + e) is
that of another number, by as much as (1 + e) - 1 is not e."""
_OWN: Mapping[str, str] = {
    "silu": "{0} * sigmoid({0})",
    "neg": "-{0}",
    "square": "{0} * {0}",
    "cube": "{0} * {0} * {0}",
    "reciprocal": "1.0 / {0}",
    "leaky_relu": "where({0} < 0, {slope} * {0}, {0})",
    "clamp": "min(max({0}, {low}), {high})",
    "hardsigmoid": "min(max({0} / 6.0 + 0.5, 0.0), 1.0)",
    "hardswish": "{0} * min(max({0} / 6.0 + 0.5, 0.0), 1.0)",
    "softplus": f"max({{0}}, 0.0) + {_LOG1P}",
    "log_sigmoid": f"min({{0}}, 0.0) - {_LOG1P}",
    "mish": f"{{0}} * tanh(max({{0}}, 0.0) + {_LOG1P})",
    "elu": "where({0} < 0, {slope} * (exp({0}) - 1.0), {0})",
    "scaled_elu": "where({0} < 0, {slope} * (exp({inner} * {0}) - 1.0), {scale} * {0})",
    "prelu": "where({0} < 0, {1} * {0}, {0})",
    "threshold": "where({0} <= {limit}, {value}, {0})",
    "thresholded_relu": "where({0} > {limit}, {0}, 0.0)",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "multiply_add": "{0} * {1} + {2}",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
}
_FUNCTIONS = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "abs", "round", "floor")
_CATALOGUE = ("relu", "gelu", "gelu_tanh")

TEXT: Mapping[str, str] = {
    **{name: EPILOGUES[name].text.replace("{x}", "{0}") for name in _CATALOGUE},
    **{name: f"{name}({{0}})" for name in _FUNCTIONS},
    **_OWN,
}
"""Expressions by operation; ``{0}`` and ``{1}`` are its inputs, the others its attributes."""
ELEMENTWISE = frozenset({*TEXT, "batch_norm"})
"""Operations that are one pass over elements: norms of inference are, with their constants computed before."""


def text_of(op: str, inputs: Sequence[str | float], attrs: Mapping[str, Any], dtype: str) -> str:
    """The expression of an operation on elements of ``dtype``; ``inputs``: expressions and numbers."""
    given = [each if isinstance(each, str) else literal(each, dtype) for each in inputs]
    own = {name: literal(each, dtype) for name, each in attrs.items() if isinstance(each, int | float)}
    return TEXT[op].format(*given, **own)


def shortest(value: float) -> float:
    """The number of the fewest digits that is the same in float32, infinity for one beyond it."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    number = float(str(single))
    # The fewest digits of the largest one are more than it is.
    return number if abs(number) <= MAX_FLOAT32 else float(single)


def literal(value: float, dtype: str) -> str:
    """A number as the notation takes it anywhere in an expression. Operations on float32 round it to that: numbers that
    are equal there are written alike."""
    number = float(value)
    if dtype != "float64":
        number = shortest(number)
    return repr(number) if number >= 0 else f"({number!r})"


COMMUTATIVE = frozenset({"add", "mul"})
"""Operations of two inputs whose order does not matter."""
COSTLY = frozenset(TEXT) - {
    *("relu", "neg", "square", "cube", "leaky_relu", "prelu", "threshold", "clamp", "abs", "round", "floor"),
    *("thresholded_relu", "reciprocal", "sqrt", "rsqrt"),
    *("add", "sub", "mul", "div", "multiply_add", "maximum", "minimum", "hardsigmoid", "hardswish"),
}
"""Operations that compute for longer than memory takes to bring their inputs."""


def epilogue_of(op: str, is_whole: bool, is_channel: bool) -> str | None:
    """The catalogue's epilogue that an operation is; ``is_whole``, ``is_channel``: what its other operand has."""
    if op in _CATALOGUE:
        return op
    if op == "add":
        return "add" if is_whole else ("bias" if is_channel else None)
    return None
