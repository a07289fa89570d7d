"""Expressions of a workload evaluated over boxes of axis values, with the elements of the tensors that they read."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import FLOATS, promoted
from tuner.program.language.expr import COMPARISONS, Axis, Binary, Call, Cast, Const, Expr, Extent, Neg, Read, children
from tuner.program.language.program import index_dim
from tuner.program.language.shapes import ElementTypes
from tuner.program.language.workload import Workload
from tuner.program.reference.arithmetic import Arithmetic, Bounded, Error
from tuner.program.reference.blocks import Box, lengths
from tuner.program.reference.reads import Affine, Array, Index, axis_values, read


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Elements of a tensor from the indices ``origin`` on; the whole tensor's sizes; what is read outside of it."""

    elements: Bounded
    origin: tuple[int, ...]
    sizes: tuple[int, ...]
    fill: float


class Expressions:
    """Evaluates expressions of one workload at one shape. Call inside ``np.errstate``.

    ``sizes``: of every axis; ``dtypes``: of every tensor.
    """

    def __init__(self, workload: Workload, dims: Mapping[str, int], arithmetic: Arithmetic) -> None:
        self._workload, self._dims, self._arithmetic = workload, dims, arithmetic
        self._types = ElementTypes(workload.program, dict(workload.dtypes))
        self.sizes = {name: max(size.evaluate(dims), 0) for name, size in workload.sizes.items()}
        self.dtypes = self._types.of
        self._type_of: dict[int, str] = {}
        self._indices: dict[int, Affine | None] = {}
        self._held: dict[str, _Held] = {}

    def hold(self, name: str, elements: Bounded, origin: Sequence[int]) -> None:
        """Keep the elements of a tensor, those from ``origin`` on, for reads of it."""
        dtype = self.dtypes[name]
        fill = dict(self._workload.padding).get(name, 0.0)
        if dtype not in FLOATS and not math.isfinite(fill):
            fill = extremes(dtype)[fill > 0]
        self._held[name] = _Held(elements, tuple(origin), self._workload.tensors[name].shape(self._dims), fill)

    def held(self, name: str) -> Bounded:
        return self._held[name].elements

    def forget(self, name: str) -> None:
        del self._held[name]

    def type_of(self, expr: Expr) -> str:
        """The dtype that an expression is computed in."""
        if id(expr) not in self._type_of:
            self._type_of[id(expr)] = self._types.type_of(expr)
        return self._type_of[id(expr)]

    def spread(self, expr: Expr, box: Box, order: Sequence[str]) -> Bounded:
        """An expression over a box: an array over the axes of ``order``."""
        result, shape = self._evaluate(expr, box, order), lengths(box, order)
        error = None if result.error is None else np.broadcast_to(result.error, shape)
        return Bounded(np.broadcast_to(result.value, shape), error)

    def along(
        self, expr: Expr, box: Box, order: Sequence[str], always: Collection[str]
    ) -> tuple[Bounded, tuple[str, ...]]:
        """An expression over a box, and the axes of its array: those of ``order`` along which its elements differ, and
        those of ``always``."""
        result, shape = self._evaluate(expr, box, order), lengths(box, order)
        own = [1] * (len(order) - result.value.ndim) + list(result.value.shape)
        if result.error is not None:
            own = list(np.broadcast_shapes(own, result.error.shape))
        kept = [at for at, axis in enumerate(order) if own[at] > 1 or axis in always]
        sizes = [shape[at] if at in kept else 1 for at in range(len(order))]

        def reduced(array: Array) -> Array:
            return np.broadcast_to(array, sizes).reshape([shape[at] for at in kept])

        error = None if result.error is None else reduced(result.error)
        return Bounded(reduced(result.value), error), tuple(order[at] for at in kept)

    def _evaluate(self, expr: Expr, box: Box, order: Sequence[str]) -> Bounded:
        """An expression over a box, with length 1 along the axes of ``order`` that do not occur in it."""
        match expr:
            case Const(value=value):
                return self._arithmetic.constant(value, self.type_of(expr))
            case Axis(name=name):
                return Bounded(axis_values(name, box, order))
            case Extent(name=name):
                return Bounded(np.asarray(self.sizes[name], np.int64))
            case Read():
                return self._arithmetic.converted(self._read(expr, box, order), self.type_of(expr))
        operands = [self._evaluate(operand, box, order) for operand in children(expr)]
        return self._operation(expr, operands)

    def _operation(self, expr: Expr, operands: Sequence[Bounded]) -> Bounded:
        arithmetic, dtype = self._arithmetic, self.type_of(expr)
        match expr, operands:
            case Neg(), [operand]:
                return arithmetic.negated(operand, dtype)
            case Cast(operand=source, dtype=target), [operand]:
                return arithmetic.cast(operand, self.type_of(source), target)
            case Call(function="where"), [condition, yes, no]:
                return arithmetic.where(condition, yes, no, dtype)
            case Call(function=function), [argument]:
                return arithmetic.function(function, argument, dtype)
            case ((Binary(operator=operator) | Call(function=operator)), [left, right]):
                compared = dtype if operator not in COMPARISONS else promoted(map(self.type_of, children(expr)))
                return arithmetic.binary(operator, left, right, compared)
        raise NotImplementedError(f"{expr} has no reference")

    def _read(self, expr: Read, box: Box, order: Sequence[str]) -> Bounded:
        held = self._held[expr.tensor]
        indices: list[Index] = []
        uncertain: Error = None
        for index, size in zip(expr.indices, held.sizes, strict=True):
            if isinstance(index, Read):
                chosen = self._read(index, box, order)
                indices.append(_looked_up(np.clip(chosen.value.astype(np.int64), 0, size - 1)))
                uncertain = chosen.error if uncertain is None else uncertain
            else:
                indices.append(self._index(index, box, order))
        elements = held.elements
        value = read(elements.value, held.origin, indices, box, order, held.fill)
        error = None if elements.error is None else read(elements.error, held.origin, indices, box, order, 0.0)
        if uncertain is not None:
            error = np.where(uncertain > 0, np.inf, 0.0 if error is None else error)
        return Bounded(value, error)

    def _index(self, index: Expr, box: Box, order: Sequence[str]) -> Index:
        if id(index) not in self._indices:
            dim = index_dim(index)
            known = {} if dim is None else {name: self._size(name) for name in dim.variables}
            self._indices[id(index)] = None if dim is None else Affine.of(dim.substituted(known))
        affine = self._indices[id(index)]
        return affine if affine is not None else _varying(self._evaluate(index, box, order).value)

    def _size(self, name: str) -> DimExpr:
        """A variable of an index: an axis as it is, ``extent(n)`` as its value."""
        is_extent = name.startswith("extent(")
        return DimExpr.of(self.sizes[name[len("extent(") : -1]]) if is_extent else DimExpr.var(name)


def _varying(indices: Array) -> Array:
    """Indices with length 1 along the axes where they are all the same: ``o // 8`` in a box of one group."""
    for axis, size in enumerate(indices.shape):
        first = indices.take([0], axis=axis) if size > 1 else indices
        indices = first if bool((indices == first).all()) else indices
    return indices


def _looked_up(indices: Array) -> Index:
    """A constant where all of them are the same: what is read there is a view."""
    indices = _varying(indices)
    return Affine((), int(indices.flat[0])) if indices.size == 1 else indices


def extremes(dtype: str) -> tuple[float, float]:
    """The least and the largest value of a dtype."""
    if dtype in FLOATS:
        return -math.inf, math.inf
    return (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
