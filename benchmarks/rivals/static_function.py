"""Any program at one shape as an unscheduled PrimFunc: what MetaSchedule and DLight start from. Imports TVM.

One ``te.compute`` for each stage, and one for each padded tensor, as TVM's own operators have it. Reductions that store
another type than they compute in have a second block that casts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import te, tirx

from benchmarks.harness.calls import DoesNotApply
from tuner.program.language import expr as ast
from tuner.program.language.dims import DimExpr
from tuner.program.language.indices import checked_index, index_range
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload

Expr = Any

REDUCERS: Mapping[str, Callable[..., Expr]] = {
    "sum": te.sum,
    "max": te.max,
    "min": te.min,
    "prod": te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), "prod"),
}
OPERATORS: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": tirx.floormod,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": tirx.EQ, "!=": tirx.NE,
    "&": tirx.bitwise_and, "|": tirx.bitwise_or, "<<": tirx.shift_left, ">>": tirx.shift_right,
}  # fmt: skip
FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
    **{name: getattr(tirx, name) for name in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos")},
    "abs": tirx.abs, "round": tirx.nearbyint, "floor": tirx.floor, "min": tirx.min, "max": tirx.max,
}  # fmt: skip


def static_function(workload: Workload, shape: Mapping[str, int]) -> Any:
    """The program at ``shape``; the layout of a constant operand is free. Raises DoesNotApply where a size is zero."""
    dims = workload.dims(shape)
    sizes = {name: size.evaluate(dims) for name, size in workload.sizes.items()}
    if min((sizes[axis] for axis in workload.program.axes), default=1) < 1:
        raise DoesNotApply("it needs every size to be 1 or more")
    tensors = {tensor.name: te.placeholder(tensor.shape(dims), tensor.dtype, tensor.name) for tensor in workload.inputs}
    padded: dict[str, Padded] = {}
    for stage in workload.program.stages:
        for name in dict(workload.padding).keys() & tensors.keys() - padded.keys():
            padded[name] = _padded(workload, name, tensors[name], sizes)
        tensors[stage.tensor] = _computed(workload, stage, _Values(workload, tensors, padded, sizes, {}))
    function = te.create_prim_func([tensors[operand.name] for operand in workload.operands])
    free = layout_free(workload)
    return function if free is None else function.with_attr("layout_free_buffers", [free])


def layout_free(workload: Workload) -> int | None:
    """The position of the input that a rival may keep in a layout of its own: the first constant that is not read at
    indices from a tensor."""
    gathered = {each.tensor for each in workload.program.reads if any(isinstance(at, ast.Read) for at in each.indices)}
    free = [tensor.constant and tensor.name not in gathered and bool(tensor.dims) for tensor in workload.inputs]
    return free.index(True) if True in free else None


Padded = tuple[Any, tuple[int, ...]]
"""A tensor with what is read outside of it, and the index of its first element, by dim."""


def _padded(workload: Workload, name: str, tensor: Any, sizes: Mapping[str, int]) -> Padded:
    """A tensor padded from the least to the largest index of all reads, so that nothing is read outside of it."""
    extents = {axis: DimExpr.of(size) for axis, size in sizes.items()}
    low, high = [0] * len(tensor.shape), [int(size) - 1 for size in tensor.shape]
    for read in (read for read in workload.program.reads if read.tensor == name):
        for position, index in enumerate(read.indices):
            bounds = index_range(index, extents) if not isinstance(index, ast.Read) else None
            if bounds is not None:
                low[position] = min(low[position], bounds[0].evaluate({}))
                high[position] = max(high[position], bounds[1].evaluate({}))
    value = tirx.const(dict(workload.padding)[name], tensor.dtype)

    def element(*indices: Expr) -> Expr:
        at = [index + first if first else index for index, first in zip(indices, low, strict=True)]
        outside = [(index, int(size)) for index, size in zip(at, tensor.shape, strict=True)]
        inside = [test for index, size in outside for test in (index >= 0, index < size)]
        return tirx.if_then_else(tirx.all(*inside), tensor(*at), value)

    shape = [last - first + 1 for first, last in zip(low, high, strict=True)]
    return te.compute(shape, element, name=f"{name}_padded"), tuple(low)


def _computed(workload: Workload, stage: Stage, values: _Values) -> Any:
    types, dtype = workload.element_types, workload.tensors[stage.tensor].dtype
    shape = [values.sizes[axis] for axis in stage.axes]
    if not stage.reducer:
        return te.compute(shape, lambda *at: values.at(stage.axes, at).value(stage.body, dtype), name=stage.tensor)
    computed = types.reduced_type(stage)
    reduced = [te.reduce_axis((0, values.sizes[axis]), name=axis) for axis in stage.reduce_axes]

    def element(*at: Expr) -> Expr:
        inner = values.at((*stage.axes, *stage.reduce_axes), (*at, *reduced))
        return REDUCERS[str(stage.reducer)](inner.value(stage.body, computed), axis=reduced)

    if computed == dtype:
        return te.compute(shape, element, name=stage.tensor)
    total = te.compute(shape, element, name=f"{stage.tensor}_total")
    return te.compute(shape, lambda *at: total(*at).astype(dtype), name=stage.tensor)


@dataclass(frozen=True)
class _Values:
    """Expressions at the values of axes, each in the type that the notation gives it."""

    workload: Workload
    tensors: Mapping[str, Any]
    padded: Mapping[str, Padded]
    sizes: Mapping[str, int]
    axes: Mapping[str, Expr]

    def at(self, names: Sequence[str], values: Sequence[Expr]) -> _Values:
        return replace(self, axes=dict(zip(names, values, strict=True)))

    def value(self, expr: ast.Expr, dtype: str | None = None) -> Expr:
        """The value, cast to ``dtype`` if that is given."""
        own = self.workload.element_types.type_of(expr)
        wanted = dtype or own
        if isinstance(expr, ast.Const):
            return tirx.const(expr.value, wanted)
        value = self._value(expr, own)
        return value if str(value.ty.dtype) == wanted else value.astype(wanted)

    def _value(self, expr: ast.Expr, dtype: str) -> Expr:
        match expr:
            case ast.Axis(name=name):
                return tirx.convert(self.axes[name])
            case ast.Extent(name=name):
                return tirx.const(self.sizes[name], "int64")
            case ast.Read():
                return self._read(expr)
            case ast.Cast(operand=operand, dtype=narrow):
                return self.value(operand).astype(narrow)
            case ast.Neg(operand=operand):
                return -self.value(operand, dtype)
            case ast.Binary():
                return self._binary(expr, dtype)
            case ast.Call(function="where", args=(condition, left, right)):
                return tirx.Select(self.value(condition, "bool"), self.value(left, dtype), self.value(right, dtype))
            case ast.Call(function=name, args=args):
                return FUNCTIONS[name](*(self.value(arg, dtype) for arg in args))
        raise DoesNotApply(f"{type(expr).__name__} has no TE expression")

    def _binary(self, expr: ast.Binary, dtype: str) -> Expr:
        if expr.operator in ast.COMPARISONS:
            dtype = self.workload.element_types.type_of(ast.Binary("+", expr.left, expr.right))
        left, right = (self.value(operand, dtype) for operand in (expr.left, expr.right))
        if dtype == "bool" and expr.operator in ("&", "|"):
            return tirx.all(left, right) if expr.operator == "&" else tirx.any(left, right)
        if expr.operator == "//":
            return tirx.floor(left / right) if dtype.startswith("float") else tirx.floordiv(left, right)
        return OPERATORS[expr.operator](left, right)

    def _read(self, read: ast.Read) -> Expr:
        sizes = map(int, self.tensors[read.tensor].shape)
        at = [self._index(index, size) for index, size in zip(read.indices, sizes, strict=True)]
        if read.tensor not in self.padded:
            return self.tensors[read.tensor](*at)
        tensor, low = self.padded[read.tensor]
        return tensor(*(index - first if first else index for index, first in zip(at, low, strict=True)))

    def _index(self, index: ast.Expr, size: int) -> Expr:
        """One from a tensor is clamped to the size of what it points into."""
        if isinstance(index, ast.Read):
            return tirx.max(tirx.min(self.value(index, "int32"), size - 1), 0)
        extents = {f"extent({name})": extent for name, extent in self.sizes.items()}
        return checked_index(index).evaluate({**self.axes, **extents})
