"""Values that are known without running an ONNX graph, and shapes over its symbols.

Exporters compute the arguments of Reshape and Expand from Shape, Gather and Concat. What can be followed is kept, so
that ``[batch, seq, 768]`` becomes ``[batch, seq, 12, 64]`` and not a new symbol. A value is an array of its own dtype;
integers that depend on symbols are an array of dims. What ONNX's evaluator would give is given, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shapewright.models.graph import ONE, CannotLift, Shape
from shapewright.models.views import product
from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr

Values = NDArray[Any]
MAX_VALUES = 64
"""Elements of an integer tensor that are followed: shapes are short."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIZES = ("int32", "int64")
"""Dtypes that hold any size of a tensor."""


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


def reshaped(shape: Shape, wanted: Shape, copies_zero: bool = True) -> Shape:
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
    """NumPy's broadcasting. Raises CannotLift where it depends on whether a symbol is 1."""
    rank = max(map(len, shapes), default=0)
    result = []
    for axis in range(rank):
        dims = {shape[axis - rank + len(shape)] for shape in shapes if axis - rank + len(shape) >= 0} - {ONE}
        fixed = [dim for dim in dims if dim.constant is not None]
        if len(fixed) > 1 or (len(dims) > 1 and not fixed):
            raise CannotLift(f"{' and '.join(sorted(map(str, dims)))} are sizes of one axis: one of them may be 1")
        result.append((fixed or [*dims, ONE])[0])
    return tuple(result)


# -- what is known --------------------------------------------------------------------------------------------------
def shape_values(shape: Shape) -> Values:
    """A shape as a tensor of it would be."""
    return _normal(np.array([*shape, None], dtype=object)[:-1])


def number_of(values: Values | None) -> float | None:
    """The one number of a tensor; what it was before it was stored as float32: 1e-5, not 9.999999747e-06."""
    if values is None or values.size != 1 or values.dtype.name not in (*FLOATS, *INTEGERS):
        return None
    element = values.reshape(-1)[0]
    number = float(str(element)) if values.dtype == np.float32 else float(element)
    return None if math.isnan(number) else number


def dims_of(values: Values | None) -> Shape | None:
    """A tensor of sizes as dims; None where it is not known, or is none."""
    if values is None or values.ndim != 1 or values.dtype.name not in (*SIZES, "object"):
        return None
    return tuple(DimExpr.of(each if isinstance(each, DimExpr) else int(each)) for each in values)


def integers_of(values: Values | None, what: str) -> list[int]:
    """Known integers that depend on no symbol. Raises CannotLift for others."""
    if values is None or values.dtype.name not in SIZES:
        raise CannotLift(f"{what} is computed at run time")
    return [int(each) for each in values.reshape(-1)]


def is_kept(dtype: str, sizes: Sequence[int]) -> bool:
    """Whether a tensor's elements are worth knowing: a number, or a few integers."""
    elements = math.prod(sizes)
    if dtype in (*SIZES, "object"):
        return elements <= MAX_VALUES
    return elements == 1 and dtype in (*FLOATS, *INTEGERS, "bool")


def _normal(values: Values) -> Values:
    """Dims that depend on nothing are plain integers."""
    if values.dtype != object:
        return values
    constants = [DimExpr.of(each).constant for each in values.reshape(-1)]
    if any(each is None for each in constants):
        return values
    return np.array(constants, dtype=np.int64).reshape(values.shape)


# -- arithmetic -----------------------------------------------------------------------------------------------------
Inputs = Sequence[Values]
Attrs = Mapping[str, Any]


def _both(function: Callable[[Any, Any], Any]) -> Callable[[Inputs, Attrs], Values | None]:
    """An operation of two tensors of one dtype, which overflows as that does."""

    def apply(inputs: Inputs, attrs: Attrs) -> Values | None:
        is_symbolic = any(each.dtype == object for each in inputs)
        left, right = map(_symbolic, inputs) if is_symbolic else inputs
        is_as_numpy = left.dtype == right.dtype and attrs.get("axis") is None
        return np.asarray(function(left, right)) if is_as_numpy else None

    return apply


def _symbolic(values: Values) -> Values:
    if values.dtype == object:
        return values
    return np.array([*map(DimExpr.of, values.reshape(-1).tolist()), None], dtype=object)[:-1].reshape(values.shape)


def _quotient(left: Values, right: Values) -> Values:
    """Integers are rounded towards zero."""
    if left.dtype == object:
        return np.asarray(np.frompyfunc(_divided_dims, 2, 1)(left, right), dtype=object)
    if left.dtype.kind == "f" or left.dtype.name in FLOATS:
        return np.asarray(left / right)
    if not right.all():
        raise ValueError("an integer is divided by zero")
    return np.asarray((left - np.fmod(left, right)) // right)


def _divided_dims(left: DimExpr, right: DimExpr) -> DimExpr:
    """The quotient, rounded towards zero, which is not rounding down where a dim may be negative."""
    divisor, is_positive = right.constant, all(coefficient >= 0 for _, coefficient in left.terms)
    return left // divisor if divisor and divisor > 0 and is_positive else divided(left, right)


def _power(inputs: Inputs, attrs: Attrs) -> Values | None:
    base, exponent = inputs
    return np.asarray(np.power(base, exponent.astype(base.dtype))) if base.dtype.name in FLOATS else None


def _of_floats(function: Callable[[Any], Any]) -> Callable[[Inputs, Attrs], Values | None]:
    return lambda inputs, attrs: np.asarray(function(inputs[0])) if inputs[0].dtype.name in FLOATS else None


def _cast(inputs: Inputs, attrs: Attrs) -> Values | None:
    """Numbers are rounded towards zero; what does not fit, or has a dtype of few bits, is not followed."""
    (values,), dtype = inputs, attrs["to"]
    if values.dtype == object:
        return values if dtype == "int64" else None
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: PLC0415 - of no use to whoever has no such model

        return values.astype(ml_dtypes.bfloat16)
    if dtype in INTEGERS and values.dtype.name in FLOATS:
        limits, wide = np.iinfo(dtype), values.astype(np.float64)
        if not ((wide > float(limits.min) - 1) & (wide < float(limits.max))).all():
            return None
    return values.astype(dtype) if dtype in (*FLOATS, *INTEGERS, "bool") else None


# -- what moves elements --------------------------------------------------------------------------------------------
def _gather(inputs: Inputs, attrs: Attrs) -> Values | None:
    data, indices = inputs
    return np.take(data, indices, axis=attrs["axis"]) if indices.dtype.kind == "i" else None


def _concat(inputs: Inputs, attrs: Attrs) -> Values | None:
    return None if attrs["axis"] is None else np.concatenate(inputs, axis=attrs["axis"])


def _slice(inputs: Inputs, attrs: Attrs) -> Values | None:
    data, starts, ends, *rest = (each if n == 0 else each.tolist() for n, each in enumerate(inputs))
    axes = rest[0] if rest else range(len(starts))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places: list[Any] = [slice(None)] * data.ndim
        places[axis] = slice(start, end, step)
        data = data[tuple(places)]
    return np.asarray(data)


def _unsqueezed(inputs: Inputs, attrs: Attrs) -> Values | None:
    axes = attrs.get("axes") if len(inputs) == 1 else inputs[1].tolist()
    return None if axes is None else np.expand_dims(inputs[0], tuple(axes))


def _squeezed(inputs: Inputs, attrs: Attrs) -> Values | None:
    axes = attrs.get("axes") if len(inputs) == 1 else inputs[1].tolist()
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _reshape(inputs: Inputs, attrs: Attrs) -> Values | None:
    wanted = inputs[1].tolist() if len(inputs) > 1 else [0]
    return None if 0 in wanted else inputs[0].reshape(wanted)


def _product(inputs: Inputs, attrs: Attrs) -> Values | None:
    """The product of all elements of a list; others are not followed."""
    data, axes = inputs[0], attrs.get("axes") if len(inputs) == 1 else inputs[1].tolist()
    if data.ndim != 1 or axes not in (None, [0], [-1]) or attrs.get("noop_with_empty_axes"):
        return None
    total = np.array([math.prod(data.tolist(), start=ONE if data.dtype == object else 1), None], dtype=object)[:1]
    total = total if data.dtype == object else total.astype(data.dtype)
    return total if attrs["keepdims"] else total.reshape(())


FOLDED: Mapping[str, Callable[[Inputs, Attrs], Values | None]] = {
    "Add": _both(lambda left, right: left + right),
    "Sub": _both(lambda left, right: left - right),
    "Mul": _both(lambda left, right: left * right),
    "Div": _both(_quotient),
    "Pow": _power,
    "Sqrt": _of_floats(np.sqrt),
    "Reciprocal": _of_floats(lambda values: np.asarray(1, values.dtype) / values),
    "Cast": _cast,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "ReduceProd": _product,
    "Unsqueeze": _unsqueezed,
    "Squeeze": _squeezed,
    "Reshape": _reshape,
    "Identity": lambda inputs, attrs: inputs[0],
}
"""Operators that are followed. Of operator sets that have the arguments of one as attributes, not all are."""


def folded(op: str, inputs: Sequence[Values | None], attrs: Attrs) -> Values | None:
    """The value that an operator gives of known ones; None where it is not followed. ``to`` of a Cast is a dtype."""
    known = [each for each in inputs if each is not None]
    if op not in FOLDED or not known or len(known) < len(inputs):
        return None
    try:
        with np.errstate(all="ignore"):
            values = FOLDED[op](known, attrs)
        values = None if values is None else _normal(np.asarray(values))
    except (CannotLift, InvalidInput, ArithmeticError, LookupError, TypeError, ValueError):
        # Sizes that do not fit, indices that are outside: the model says something that has no value.
        return None
    return values if values is not None and is_kept(values.dtype.name, values.shape) else None
