"""The scalar functions and the reducers of the program notation in Triton: text, and the functions that it calls.

They mean what NumPy does: NaN passes through ``min`` and ``max``, ``//`` and ``%`` round down, ``round`` goes to even.
``exp`` is corrected by what its argument loses: the hardware's own is off by as many units as the argument is large.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.schedule.vector import functions

PRELUDE = """
@triton.jit
def floor_mod(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_div(a, b):
    return (a - floor_mod(a, b)) // b


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def exponential(x):
    # What the product loses by rounding is made good; where the power is no normal number there is nothing to lose.
    scaled = x * 1.4426950216293335
    lost = tl.fma(x, 1.4426950216293335, -scaled) + x * 1.9259629911266175e-8
    power = tl.exp2(scaled)
    return tl.where(tl.abs(x) < 87.0, power + power * (lost * 0.6931471805599453), power)


@triton.jit
def error_function(x):
    # Abramowitz and Stegun 7.1.26: off by 1.5e-7 at most.
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.3275911 * size)
    sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    result = 1.0 - sum * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0, -result, result)


@triton.jit
def sigmoid(x):
    return tl.div_rn(1.0, 1.0 + exponential(-x))


@triton.jit
def tanh(x):
    size = 1.0 - tl.div_rn(2.0, exponential(2.0 * tl.abs(x)) + 1.0)
    return tl.where(x < 0, -size, size)


@triton.jit
def rounded(x):
    near = tl.floor(x + 0.5)
    is_odd = near - 2.0 * tl.floor(near * 0.5) != 0
    even = tl.where((near - x == 0.5) & is_odd, near - 1.0, near)
    return tl.where(tl.abs(x) < 4194304.0, even, x)


@triton.jit
def as_tf32(x):
    bits = x.to(tl.int32, bitcast=True)
    near = ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)
    return tl.where(x == x, near, x)


@triton.jit
def tile_of(pid, tiles_m, tiles_n, GROUP: tl.constexpr):
    in_group = GROUP * tiles_n
    first = (pid // in_group) * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    return first + (pid % in_group) % size, (pid % in_group) // size
"""
"""Functions that emitted modules call."""

FLOAT32: Mapping[str, str] = {
    "exp": "exponential({0})", "log": "tl.log({0})", "sqrt": "tl.sqrt_rn({0})", "tanh": "tanh({0})",
    "rsqrt": "tl.div_rn(1.0, tl.sqrt_rn({0}))", "erf": "error_function({0})", "sigmoid": "sigmoid({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "floor": "tl.floor({0})", "round": "rounded({0})",
}  # fmt: skip
FLOAT64: Mapping[str, str] = {
    **FLOAT32,
    "erf": "tl.erf({0})",    "exp": "tl.exp({0})", "sqrt": "tl.sqrt({0})", "rsqrt": "(1.0 / tl.sqrt({0}))",
    "sigmoid": "(1.0 / (1.0 + tl.exp(-{0})))", "tanh": "(1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0))",
}  # fmt: skip
ANY: Mapping[str, str] = {"abs": "tl.abs({0})", "min": "minimum({0}, {1})", "max": "maximum({0}, {1})"}
"""Functions of floats and integers alike."""
COMBINE: Mapping[str, str] = {
    "sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})"
}  # fmt: skip
REDUCE: Mapping[str, str] = {
    "sum": "tl.sum({0}, axis={1}, keep_dims=True)",
    "prod": "tl.reduce({0}, {1}, multiply, keep_dims=True)",
    "max": "tl.reduce({0}, {1}, maximum, keep_dims=True)",
    "min": "tl.reduce({0}, {1}, minimum, keep_dims=True)",
}
TYPES: Mapping[str, str] = {
    "float32": "tl.float32", "float64": "tl.float64", "float16": "tl.float16", "bfloat16": "tl.bfloat16",
    "int8": "tl.int8", "uint8": "tl.uint8", "int16": "tl.int16", "int32": "tl.int32", "int64": "tl.int64",
    "bool": "tl.int1",
}  # fmt: skip
POINTERS: Mapping[str, str] = {
    "float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8", "uint8": "*u8",
    "int16": "*i16", "int32": "*i32", "int64": "*i64", "bool": "*i1",
}  # fmt: skip


def identity(reducer: str, dtype: str) -> str:
    """What a reduction over nothing gives in a tensor of ``dtype``, as text."""
    if reducer in ("sum", "prod"):
        number = int(reducer == "prod")
        return f"{number}.0" if dtype.startswith("float") else str(number)
    if dtype.startswith("float"):
        return 'float("-inf")' if reducer == "max" else 'float("inf")'
    return str(functions.identity(reducer, dtype))
