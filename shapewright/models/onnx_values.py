"""Shapes of an ONNX graph over its symbols, and the integers that graphs compute from shapes.

Exporters compute the arguments of Reshape and Expand from Shape, Gather and Concat. What can be followed is kept as
dims, so that ``[batch, seq, 768]`` becomes ``[batch, seq, 12, 64]`` and not a new symbol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.views import product
from tuner.errors import InvalidInput
from tuner.program.dims import DimExpr

Values = tuple[DimExpr, ...]
MAX_VALUES = 64
"""Elements of an integer tensor that are followed: shapes are short."""


def divided(total: DimExpr, part: DimExpr) -> DimExpr:
    """``total / part`` where that is exact. Raises CannotLift otherwise."""
    if len(part.terms) != 1:
        raise CannotLift(f"{total} elements are not divided by {part}")
    ((atoms, factor),) = part.terms
    terms = []
    for monomial, coefficient in total.terms:
        rest = list(monomial)
        for atom in atoms:
            if atom not in rest:
                raise CannotLift(f"{total} elements are not divided by {part}")
            rest.remove(atom)
        if coefficient % factor:
            raise CannotLift(f"{total} elements are not divided by {part}")
        terms.append((tuple(rest), coefficient // factor))
    return DimExpr(tuple(terms))


def reshaped(shape: Shape, wanted: Values, copies_zero: bool = True) -> Shape:
    """ONNX's Reshape: 0 keeps a dim, -1 takes what is left."""
    dims = [
        shape[axis] if dim.constant == 0 and copies_zero and axis < len(shape) else dim
        for axis, dim in enumerate(wanted)
    ]
    open_axes = [axis for axis, dim in enumerate(dims) if dim.constant == -1]
    if len(open_axes) == 1:
        known = product([dim for axis, dim in enumerate(dims) if axis != open_axes[0]])
        dims[open_axes[0]] = divided(product(shape), known)
    elif open_axes:
        raise CannotLift("more than one -1 in a shape")
    return tuple(dims)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcasting; of two different symbols, which ONNX takes for equal at run time, the first."""
    rank = max(map(len, shapes), default=0)
    result = []
    for axis in range(rank):
        dims = [shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0]
        result.append(next((dim for dim in dims if dim != ONE), ONE))
    return tuple(result)


def windows(shape: Shape, window: Sequence[DimExpr], attrs: Mapping[str, Sequence[int]]) -> Shape:
    """The spatial dims that a convolution or a pooling leaves."""
    parts = zip(shape[2:], window, attrs["stride"], attrs["pad"], attrs["dilation"], strict=True)
    return tuple(
        (size + 2 * pad - (width - 1) * dilation - 1) // stride + 1 for size, width, stride, pad, dilation in parts
    )


# -- integers -------------------------------------------------------------------------------------------------------
def _elementwise(function: Callable[[DimExpr, DimExpr], DimExpr]) -> Callable[..., Values | None]:
    def apply(inputs: Sequence[Values], attrs: Mapping[str, Any]) -> Values | None:
        left, right = inputs
        length = max(len(left), len(right))
        if {len(left), len(right)} - {1, length}:
            return None
        return tuple(function(left[i % len(left)], right[i % len(right)]) for i in range(length))

    return apply


def _quotient(left: DimExpr, right: DimExpr) -> DimExpr:
    if right.constant:
        return left // right.constant
    return divided(left, right)


def _gather(inputs: Sequence[Values], attrs: Mapping[str, Any]) -> Values | None:
    data, indices = inputs
    places = [index.constant for index in indices]
    if any(place is None or not -len(data) <= place < len(data) for place in places):
        return None
    return tuple(data[place] for place in places if place is not None)


def _slice(inputs: Sequence[Values], attrs: Mapping[str, Any]) -> Values | None:
    data, *bounds = inputs
    limits = [each[0].constant if len(each) == 1 else None for each in bounds]
    if len(limits) < 2 or None in limits or (len(limits) > 2 and limits[2] not in (0, -1)):
        return None
    step = limits[3] if len(limits) > 3 else 1
    return data[slice(limits[0], limits[1], step)]


def _same(inputs: Sequence[Values], attrs: Mapping[str, Any]) -> Values | None:
    return inputs[0]


def _product(inputs: Sequence[Values], attrs: Mapping[str, Any]) -> Values | None:
    return (product(inputs[0]),)


INTEGERS: Mapping[str, Callable[..., Values | None]] = {
    "Add": _elementwise(lambda left, right: left + right),
    "Sub": _elementwise(lambda left, right: left - right),
    "Mul": _elementwise(lambda left, right: left * right),
    "Div": _elementwise(_quotient),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": lambda inputs, attrs: tuple(value for each in inputs for value in each),
    "ReduceProd": _product,
    **dict.fromkeys(("Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape"), _same),
}
"""Operators on integers that are followed; the first input alone is looked at by those that only change the shape."""


def followed(op: str, inputs: Sequence[Values | None], attrs: Mapping[str, Any]) -> Values | None:
    """The integers that an operator gives, if its inputs are known."""
    if op not in INTEGERS:
        return None
    given = [inputs[0]] if INTEGERS[op] is _same else list(inputs)
    known = [each for each in given if each is not None]
    if len(known) < len(given):
        return None
    try:
        values = INTEGERS[op](known, attrs)
    except (CannotLift, InvalidInput):
        return None
    return values if values is not None and len(values) <= MAX_VALUES else None


NUMBERS: Mapping[str, Callable[..., float]] = {
    "Sqrt": math.sqrt,
    "Add": lambda left, right: left + right,
    "Sub": lambda left, right: left - right,
    "Mul": lambda left, right: left * right,
    "Div": lambda left, right: left / right,
    "Pow": lambda left, right: left**right,
    "Reciprocal": lambda value: 1.0 / value,
    "Cast": lambda value: value,
}


def computed(op: str, inputs: Sequence[float | None]) -> float | None:
    """The number that an operator gives of numbers; None where one is not known."""
    if op not in NUMBERS or not inputs or None in inputs:
        return None
    try:
        return float(NUMBERS[op](*inputs))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


def constants(values: Values | None, what: str) -> list[int]:
    """Known integers that depend on no symbol. Raises CannotLift for others."""
    numbers = [None if values is None else dim.constant for dim in values or ()]
    if values is None or None in numbers:
        raise CannotLift(f"{what} is computed at run time")
    return [number for number in numbers if number is not None]


def is_short(shape: Sequence[int]) -> bool:
    return len(shape) <= 1 and math.prod(shape) <= MAX_VALUES
