"""Stages of a program carried out in turn, in blocks: temporaries stay small however large the shapes are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np

from tuner.errors import InvalidInput
from tuner.program.language.dtypes import FLOATS, promoted
from tuner.program.language.expr import Binary, Expr, Read, axes_of, children, reads
from tuner.program.language.notation import Stage
from tuner.program.language.rounding import TF32, rounded_weights, tf32_products
from tuner.program.language.workload import Workload
from tuner.program.reference.arithmetic import VALUES, Arithmetic, Array, Bounded, Error, Sums
from tuner.program.reference.blocks import Box, block_of, lengths, sampled, sliced, tiles
from tuner.program.reference.expressions import Expressions, extremes
from tuner.program.reference.groups import Groups
from tuner.program.reference.products import sum_of_products
from tuner.program.reference.runs import runs_of, same_along

INPUT_SHARE = 3
"""Elements that a factor of a sum takes: itself, its magnitude, and one of them rearranged for a matrix product."""


class Interpreter:
    """Computes the outputs of one workload at one shape, once; with ``bounds``, also how far a kernel's may be off."""

    def __init__(self, workload: Workload, inputs: Sequence[Array], dims: Mapping[str, int], bounds: bool) -> None:
        if not workload.is_consistent(dims):
            raise InvalidInput(
                "dims", f"{dict(dims)}: the program reads outside of a tensor", "sizes that fit together"
            )
        self._program = workload.program
        self._bounds = bounds
        self._arithmetic = Arithmetic(bounds)
        self._expressions = Expressions(workload, dims, self._arithmetic)
        self._sizes, self._dtypes = self._expressions.sizes, self._expressions.dtypes
        self._rounded = _rounded_factors(workload) if bounds else {}
        self._ahead, self._shared = sliced(workload.program, self._sizes)
        self._groups: Groups | None = None
        for tensor, array in zip(workload.inputs, inputs, strict=True):
            shape = tensor.shape(dims)
            if tuple(array.shape) != shape:
                raise InvalidInput(tensor.name, f"an array of shape {tuple(array.shape)}", f"shape {shape}")
            values = np.asarray(array).astype(VALUES[tensor.dtype], copy=False)
            self._expressions.hold(tensor.name, Bounded(values), [0] * len(shape))

    def run(self, share: float = 1.0) -> tuple[Bounded, ...]:
        """The outputs in call order. Intermediates that are large are computed in slices of shared axes. Below 1
        ``share`` is the part of these slices that is computed at all (``sampled``); in others errors are inf."""
        inputs = {name: self._expressions.held(name).value for name in self._program.inputs}
        groups = self._groups = Groups.of(self._program, self._sizes, inputs) if share >= 1.0 else None
        if groups is None:
            return self._run(share)
        for name, array in inputs.items():
            self._expressions.hold(name, Bounded(groups.together(name, array)), [0] * array.ndim)

        def apart(name: str, output: Bounded) -> Bounded:
            error = None if output.error is None else groups.apart(name, output.error)
            return Bounded(groups.apart(name, output.value), error)

        return tuple(map(apart, self._program.outputs, self._run(share)))

    def _run(self, share: float) -> tuple[Bounded, ...]:
        sizes = {axis: self._sizes[axis] for axis in self._shared}
        block = block_of(sizes, self._intermediates)
        is_whole = share >= 1.0 or not sizes
        with np.errstate(all="ignore"):
            if is_whole and block == sizes:
                self._stages(self._program.stages, {})
                return tuple(self._expressions.held(name) for name in self._program.outputs)
            whole = {axis: (0, size) for axis, size in self._sizes.items()}
            outputs = {name: self._empty(name, whole, 0.0 if is_whole else math.inf) for name in self._program.outputs}
            self._stages(self._ahead, {})
            rest = [stage for stage in self._program.stages if stage not in self._ahead]
            for part in [whole] if is_whole else sampled(sizes, share):
                for box in tiles(part, block, self._shared):
                    self._stages(rest, box)
                    for name, output in outputs.items():
                        _put(output, self._expressions.held(name), self._program.stage[name].axes, whole | box, whole)
            return tuple(outputs.values())

    def _intermediates(self, block: Mapping[str, int]) -> float:
        """Elements of all stages' tensors in slices of ``block``; 0 if there is but one stage."""
        if len(self._program.stages) == 1:
            return 0
        rest = (stage for stage in self._program.stages if stage not in self._ahead)
        shapes = ([block.get(axis, self._sizes[axis]) for axis in stage.axes] for stage in rest)
        return (1 + self._bounds) * sum(map(math.prod, shapes))

    def _stages(self, stages: Sequence[Stage], part: Box) -> None:
        """These stages over ``part`` of some axes and the whole of the others. Their intermediates live until they are
        last read."""
        last = {read.tensor: stage.tensor for stage in self._program.stages for read in reads(stage.body)}
        own = {stage.tensor for stage in stages}
        for stage in stages:
            whole = {axis: part.get(axis, (0, self._sizes[axis])) for axis in stage.axes}
            self._expressions.hold(stage.tensor, self._stage(stage, whole), [whole[axis][0] for axis in stage.axes])
            for name in self._program.intermediates:
                if last[name] == stage.tensor and name in own:
                    self._expressions.forget(name)

    def _stage(self, stage: Stage, whole: Box) -> Bounded:
        """The elements of a stage's tensor over ``whole``."""
        ranges = {**whole, **{axis: (0, self._sizes[axis]) for axis in stage.reduce_axes}}
        computed = self._expressions.type_of(stage.body)
        if stage.reducer in ("sum", "prod"):
            computed = promoted([computed if computed != "bool" else "int32"])
        factors = self._factors(stage.body, computed) if stage.reducer == "sum" else [stage.body]
        same = [self._groups.same(factor) if self._groups and stage.reducer == "sum" else set() for factor in factors]
        block = self._block(stage, factors, same, ranges)
        result = self._empty(stage.tensor, whole)
        cut = self._groups.parts(ranges) if self._groups and any(same) else [ranges]
        for box in itertools.chain.from_iterable(tiles(part, block, stage.axes) for part in cut):
            parts = (box | tile for tile in tiles(ranges, block, stage.reduce_axes))
            match stage.reducer:
                case None:
                    value = self._expressions.spread(stage.body, box, stage.axes)
                case "sum" | "prod":
                    value = self._accumulated(stage, factors, parts, box, computed)
                case _:
                    value = self._extreme(stage, parts, box, computed)
            value = self._arithmetic.stored(value, computed, self._dtypes[stage.tensor])
            _put(result, value, stage.axes, box, whole)
        return result

    def _factors(self, expr: Expr, dtype: str) -> list[Expr]:
        """What is multiplied, all in ``dtype``, to give a body."""
        if isinstance(expr, Binary) and expr.operator == "*" and self._expressions.type_of(expr) == dtype:
            return [*self._factors(expr.left, dtype), *self._factors(expr.right, dtype)]
        return [expr]

    def _block(self, stage: Stage, factors: Sequence[Expr], same: Sequence[Set[str]], ranges: Box) -> dict[str, int]:
        """How much of each axis is evaluated at a time. ``same``: the axes along which each factor does not differ."""
        # What is read at ``o // 8`` is the same in a run of eight: a matrix product takes it once.
        runs = runs_of(factors, stage.axes, self._sizes) if stage.reducer == "sum" else {}
        shares = [
            (
                axes_of(factor) - same_along(factor, runs) - alike if stage.reducer == "sum" else ranges.keys(),
                INPUT_SHARE + _height(factor),
            )
            for factor, alike in zip(factors, same, strict=True)
        ]

        def cost(block: Mapping[str, int]) -> float:
            volumes = [share * math.prod(block[axis] for axis in axes) for axes, share in shares]
            return (1 + self._bounds) * (sum(volumes) + INPUT_SHARE * math.prod(block[axis] for axis in stage.axes))

        sizes = {axis: stop - start for axis, (start, stop) in ranges.items()}
        return block_of(sizes | {axis: min(sizes[axis], run) for axis, run in runs.items()}, cost)

    # -- reductions -----------------------------------------------------------------------------------------------
    def _accumulated(
        self, stage: Stage, factors: Sequence[Expr], parts: Iterator[Box], box: Box, dtype: str
    ) -> Bounded:
        """A sum or product over ``parts``, which differ in the reduced axes alone. Integers wrap around."""
        is_sum = stage.reducer == "sum"
        start = np.full(lengths(box, stage.axes), 0 if is_sum else 1, np.float64 if dtype in FLOATS else np.int64)
        totals: list[Array] = [start, *(start.astype(np.float64) for _ in range(3))] if self._bounds else [start]
        for part in parts:
            result = self._sums(factors, stage, part, dtype) if is_sum else self._products(stage, part, dtype)
            totals = [total + one if is_sum else total * one for total, one in zip(totals, result, strict=False)]
        terms = math.prod(self._sizes[axis] for axis in stage.reduce_axes)
        summed = self._arithmetic.summed(Sums(*totals[:3]), terms, dtype)
        if is_sum and stage.tensor in self._rounded:
            summed = self._arithmetic.of_rounded(summed, totals[3], self._rounded[stage.tensor])
        return Bounded(summed.value.astype(VALUES[dtype], copy=False), summed.error)

    def _sums(self, factors: Sequence[Expr], stage: Stage, box: Box, dtype: str) -> list[Array]:
        """Over one box: the sum of products; with bounds that of their magnitudes, and of these with errors added; that
        of their squares, where a kernel may round a factor."""
        scope = (*stage.axes, *stage.reduce_axes)
        orders = [tuple(axis for axis in scope if axis in axes_of(factor)) for factor in factors]
        along = [
            self._expressions.along(factor, box, order, stage.reduce_axes)
            for factor, order in zip(factors, orders, strict=True)
        ]
        arrays, axes = [self._arithmetic.converted(array, dtype) for array, _ in along], [own for _, own in along]

        def total(values: Sequence[Array]) -> Array:
            result = sum_of_products(list(zip(values, axes, strict=True)), stage.axes)
            return np.broadcast_to(result, lengths(box, stage.axes))

        value = total([array.value for array in arrays])
        certain = all(array.error is None for array in arrays)
        if not self._bounds or (certain and dtype not in FLOATS):
            return [value]
        sizes = [np.abs(array.value, dtype=np.float64) for array in arrays]
        size = total(sizes)
        squares = [total([each * each for each in sizes])] if stage.tensor in self._rounded else []
        if certain:
            return [value, size, size, *squares]
        grown = [s if a.error is None else s + a.error for s, a in zip(sizes, arrays, strict=True)]
        return [value, size, total(grown), *squares]

    def _products(self, stage: Stage, box: Box, dtype: str) -> list[Array]:
        """Over one box: the product of terms; with bounds that of their magnitudes, and of these with errors added."""
        term = self._arithmetic.converted(self._terms(stage, box), dtype)
        over = _reduced(stage)
        value = term.value.prod(axis=over)
        if not self._bounds or (term.error is None and dtype not in FLOATS):
            return [value]
        size = np.abs(term.value, dtype=np.float64)
        grown = size if term.error is None else size + term.error
        return [value, size.prod(axis=over), grown.prod(axis=over)]

    def _extreme(self, stage: Stage, parts: Iterator[Box], box: Box, dtype: str) -> Bounded:
        """The largest or least over ``parts``; over nothing, the end of the tensor's dtype."""
        function = np.maximum if stage.reducer == "max" else np.minimum
        least, most = extremes(self._dtypes[stage.tensor])
        value: Array = np.full(lengths(box, stage.axes), 0, VALUES[dtype])
        error: Error = None
        over = _reduced(stage)
        is_first = True
        for part in parts:
            term = self._terms(stage, part)
            result = function.reduce(term.value, axis=over)
            value, is_first = result if is_first else function(value, result), False
            if term.error is not None:
                largest = term.error.max(axis=over)
                error = largest if error is None else np.maximum(error, largest)
        return Bounded(np.full(value.shape, least if stage.reducer == "max" else most) if is_first else value, error)

    def _terms(self, stage: Stage, box: Box) -> Bounded:
        return self._expressions.spread(stage.body, box, (*stage.axes, *stage.reduce_axes))

    def _empty(self, name: str, whole: Box, error: float = 0.0) -> Bounded:
        """A stage's elements over ``whole``, to be filled in, and their errors until then."""
        shape = lengths(whole, self._program.stage[name].axes)
        return Bounded(np.zeros(shape, VALUES[self._dtypes[name]]), np.full(shape, error) if self._bounds else None)


def _rounded_factors(workload: Workload) -> dict[str, str]:
    """By the name of each sum of products: what a kernel may round its factors to."""
    types = workload.element_types
    in_tf32 = tf32_products(workload.program, types) if workload.tf32 else ()
    return {**dict.fromkeys(in_tf32, TF32), **rounded_weights(workload.program, types.of)}


def _put(result: Bounded, part: Bounded, axes: Sequence[str], box: Box, whole: Box) -> None:
    """Write what was computed over ``box`` into a result over ``whole``."""
    at = tuple(slice(box[axis][0] - whole[axis][0], box[axis][1] - whole[axis][0]) for axis in axes)
    result.value[at] = part.value
    if result.error is not None:
        result.error[at] = 0.0 if part.error is None else part.error


def _reduced(stage: Stage) -> tuple[int, ...]:
    """The positions of the reduced axes after those that are kept."""
    return tuple(range(len(stage.axes), len(stage.axes) + len(stage.reduce_axes)))


def _height(expr: Expr) -> int:
    """Levels of arithmetic: about how many temporaries are alive at a time."""
    return 0 if isinstance(expr, Read) else 1 + max(map(_height, children(expr)), default=0)
