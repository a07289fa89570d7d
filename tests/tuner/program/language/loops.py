"""Programs computed by loops over scalars, as naively as their notation reads; the reference is checked against it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.arrays import NUMPY
from tuner.program.language.dtypes import FLOATS, promoted
from tuner.program.language.expr import COMPARISONS, Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read, children
from tuner.program.language.notation import Stage
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload

Array = NDArray[Any]

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh, "abs": abs,
    "erf": lambda x: type(x)(math.erf(x)), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sin": np.sin, "cos": np.cos,
    "round": np.rint, "floor": np.floor, "min": np.minimum, "max": np.maximum,
}  # fmt: skip
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": np.divide,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def looped(workload: Workload, inputs: Sequence[Array], dims: Mapping[str, int], real: Any = np.float64) -> list[Array]:
    """The outputs of ``workload``; floats are computed in ``real``."""
    with np.errstate(all="ignore"):
        return _Loops(workload, inputs, dims, real).outputs()


class _Loops:
    def __init__(self, workload: Workload, inputs: Sequence[Array], dims: Mapping[str, int], real: Any) -> None:
        self.workload, self.real = workload, real
        self.types = ElementTypes(workload.program, dict(workload.dtypes))
        self.known: dict[int, str] = {}
        self.sizes = {name: size.evaluate(dims) for name, size in workload.sizes.items()}
        self.tensors = {tensor.name: array for tensor, array in zip(workload.inputs, inputs, strict=True)}

    def outputs(self) -> list[Array]:
        for stage in self.workload.program.stages:
            self.tensors[stage.tensor] = self.stage(stage)
        return [self.tensors[name] for name in self.workload.program.outputs]

    def scalar(self, value: Any, dtype: str) -> Any:
        """A value in the type that it is computed in."""
        return self.real(value) if dtype in FLOATS else NUMPY[dtype].type(value)

    def stage(self, stage: Stage) -> Array:
        dtype = self.types.of[stage.tensor]
        computed = self.types.type_of(stage.body)
        computed = promoted([computed]) if stage.reducer in ("sum", "prod") and computed != "bool" else computed
        ranges = [range(self.sizes[axis]) for axis in stage.axes]
        out = np.zeros([len(r) for r in ranges], self.real if dtype in FLOATS else NUMPY[dtype])
        for place in itertools.product(*ranges):
            at = dict(zip(stage.axes, place, strict=True))
            inner = itertools.product(*(range(self.sizes[axis]) for axis in stage.reduce_axes))
            terms = [self.value(stage.body, {**at, **dict(zip(stage.reduce_axes, i, strict=True))}) for i in inner]
            value = self.reduced(stage, terms, computed, dtype) if stage.reducer else terms[0]
            out[place] = np.asarray(value).astype(out.dtype)
        return out

    def reduced(self, stage: Stage, terms: Sequence[Any], computed: str, dtype: str) -> Any:
        if stage.reducer in ("max", "min"):
            floats = dtype in FLOATS
            ends = (-np.inf, np.inf) if floats else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            return functools.reduce(FUNCTIONS[stage.reducer], terms) if terms else ends[stage.reducer == "min"]
        add = OPERATORS["+" if stage.reducer == "sum" else "*"]
        return functools.reduce(add, terms, self.scalar(0 if stage.reducer == "sum" else 1, computed))

    def value(self, expr: Expr, at: Mapping[str, int]) -> Any:
        match expr:
            case Axis(name=name):
                return np.int64(at[name])
            case Extent(name=name):
                return np.int64(self.sizes[name])
            case Const(value=value):
                return self.scalar(value, self.type_of(expr))
            case Read():
                return self.scalar(self.element(expr, at), self.type_of(expr))
        return self.operation(expr, [self.value(operand, at) for operand in children(expr)])

    def operation(self, expr: Expr, operands: Sequence[Any]) -> Any:
        dtype = self.type_of(expr)
        if isinstance(expr, Cast):
            return self.scalar(np.asarray(operands[0]).astype(NUMPY[expr.dtype]), dtype)
        if isinstance(expr, Call) and expr.function == "where":
            return self.scalar(operands[1] if operands[0] else operands[2], dtype)
        compares = isinstance(expr, Binary) and expr.operator in COMPARISONS
        common = promoted(map(self.type_of, children(expr))) if compares else dtype
        values = [self.scalar(operand, common) for operand in operands]
        if isinstance(expr, Neg):
            return -values[0]
        return OPERATORS[expr.operator](*values) if isinstance(expr, Binary) else FUNCTIONS[_name(expr)](*values)

    def type_of(self, expr: Expr) -> str:
        if id(expr) not in self.known:
            self.known[id(expr)] = self.types.type_of(expr)
        return self.known[id(expr)]

    def element(self, read: Read, at: Mapping[str, int]) -> Any:
        array = self.tensors[read.tensor]
        place = []
        for index, size in zip(read.indices, array.shape, strict=True):
            value = int(self.value(index, at))
            place.append(min(max(value, 0), size - 1) if isinstance(index, Read) else value)
        if all(0 <= index < size for index, size in zip(place, array.shape, strict=True)):
            return array[tuple(place)]
        return dict(self.workload.padding).get(read.tensor, 0)


def _name(expr: Expr) -> str:
    assert isinstance(expr, Call)
    return expr.function
