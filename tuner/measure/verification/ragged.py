"""Shapes to verify at: extents that no tile divides, of 1 and of 0, and sums of many lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner.program.language.dims import DimExpr
from tuner.program.language.expr import Axis, Binary, Read, reads
from tuner.program.language.notation import Stage
from tuner.program.language.workload import Workload

PRIMES = (37, 41, 43, 47)
"""Extents that no tile divides, within one block; a different one for each symbol."""
FEWER = ((17, 19, 23, 29), (7, 11, 13, 17), (3, 5, 7, 11))
"""Smaller primes, for programs of so many symbols that PRIMES are too much work."""
LARGER = (113, 127, 131, 137)
"""Extents over several blocks that no tile divides."""
BATCHES = (3, 5)
"""Stand for PRIMES and LARGER where a symbol only counts products: nothing tiles those, each repeats the work."""
SUMS = (563, 1543)
"""Further extents of a symbol that is reduced over: sums done in parts."""
MAX_WORK = 4e8
"""Operations that one ragged shape may take: the reference runs on the device's own CPU, too."""
MAX_LADDER_WORK = 8 * MAX_WORK
"""The most work of the first shape of primes, for windows of one symbol: a batch of large images gets smaller ones."""
POINT_WORK = 100
"""What one evaluation of an expression takes in the reference, in multiply-adds of a matrix product."""


def ragged_dims(workload: Workload) -> list[dict[str, int]]:
    """Values of the symbols to verify a candidate at: all 1, primes, larger primes, each symbol 0, and SUMS.

    They need not lie in a job's range: a kernel is right for every shape. The first two are always there, so that full
    tiles and ragged ones are checked; larger ones that are too much work are left out. Where values do not fit
    together (a window larger than its image), the sizes that are too small are raised. A workload without symbols has
    one shape.
    """
    if not workload.symbols:
        return [{}]
    small = _small(workload)
    others = [
        _primes(workload, LARGER, BATCHES[1]),
        *(small | {symbol: 0} for symbol in workload.symbols if symbol not in _indexed(workload)),
        *(small | {symbol: size} for symbol in _reduced(workload) for size in SUMS),
    ]
    wanted = [dict.fromkeys(workload.symbols, 1), small]
    wanted += [dims for dims in others if work(workload, dims) <= MAX_WORK]
    fitted = [dims for dims in (_fitted(workload, dims) for dims in wanted) if dims is not None]
    return _distinct(fitted or _of_shapes(workload))


def work(workload: Workload, dims: Mapping[str, int]) -> float:
    """About what the reference takes, in operations of a matrix product."""
    sizes = workload.axis_sizes(dims)
    return sum(
        math.prod(sizes[axis] for axis in (*stage.axes, *stage.reduce_axes)) * (2 if _is_product(stage) else POINT_WORK)
        for stage in workload.program.stages
    )


def _small(workload: Workload) -> dict[str, int]:
    """Primes within one block: of several symbols smaller ones, if that is too much work."""
    ladder = [_primes(workload, primes, BATCHES[0]) for primes in (PRIMES, *FEWER)]
    if len(workload.symbols) == 1 and not (_has_windows(workload) and work(workload, ladder[0]) > MAX_LADDER_WORK):
        return ladder[0]
    return next((dims for dims in ladder if work(workload, dims) <= MAX_WORK), ladder[-1])


def _has_windows(workload: Workload) -> bool:
    """Whether something is read at a sum of axes, as the elements of an image are: others fill tiles then."""
    return any(isinstance(index, Binary) for read in workload.program.reads for index in read.indices)


def _primes(workload: Workload, primes: Sequence[int], batch: int) -> dict[str, int]:
    each = itertools.cycle(primes)
    batches = _batches(workload)
    return {symbol: batch if symbol in batches else next(each) for symbol in workload.symbols}


def _is_product(stage: Stage) -> bool:
    """Whether a stage sums products of several elements."""
    return stage.reducer == "sum" and isinstance(stage.body, Binary) and stage.body.operator == "*"


def _batches(workload: Workload) -> set[str]:
    """Symbols that only count products: their axes stand first in all tensors of the stages that sum products."""
    products = [stage for stage in workload.program.stages if _is_product(stage)]
    if not products:
        return set()
    leading: list[str] = []
    for axis in products[0].axes:
        place = len(leading)
        every = [read.indices[place : place + 1] for stage in products for read in reads(stage.body)]
        if not all(index == (Axis(axis),) for index in every) or not all(
            stage.axes[place : place + 1] == (axis,) for stage in products
        ):
            break
        leading.append(axis)
    others = {axis for axis in workload.program.axes if axis not in leading}
    return _symbols_of(workload, leading) - _symbols_of(workload, others)


def _reduced(workload: Workload) -> list[str]:
    """Symbols that are reduced over."""
    axes = {axis for stage in workload.program.stages for axis in stage.reduce_axes}
    symbols = _symbols_of(workload, axes)
    return [symbol for symbol in workload.symbols if symbol in symbols]


def _indexed(workload: Workload) -> set[str]:
    """Symbols that are sizes of dims looked up by elements of a tensor: of 0 elements none can be read."""
    return {
        symbol
        for read in workload.program.reads
        for index, dim in zip(read.indices, workload.tensors[read.tensor].dims, strict=True)
        if isinstance(index, Read)
        for symbol in dim.variables
    }


def _symbols_of(workload: Workload, axes: Sequence[str] | set[str]) -> set[str]:
    return {symbol for axis in axes for symbol in workload.sizes[axis].variables}


def _fitted(workload: Workload, dims: Mapping[str, int]) -> dict[str, int] | None:
    """``dims`` with the sizes raised that are too small for what is read; None if that does not help."""
    fitted = dict(dims)
    for _ in workload.inference.unproved:
        for _, _, need, size in workload.inference.unproved:
            name = _variable(size)
            if name is not None:
                fitted[name] = max(fitted[name], need.evaluate(fitted))
        if workload.is_consistent(fitted):
            break
    return fitted if workload.is_consistent(fitted) else None


def _variable(dim: DimExpr) -> str | None:
    """The symbol that a dim is, if it is one."""
    return next((name for name in dim.variables if dim == DimExpr.var(name)), None)


def _of_shapes(workload: Workload) -> Iterator[dict[str, int]]:
    """Symbols for shape variables of one value each, where no values of the symbols themselves fit together."""
    for value in (1, 5, 17, *PRIMES[:1], 113):
        dims = workload.dims(dict.fromkeys(workload.variables, value))
        if min(dims.values()) >= 0 and workload.is_consistent(dims) and work(workload, dims) <= MAX_WORK:
            yield dims


def _distinct(result: Iterator[dict[str, int]] | Sequence[dict[str, int]]) -> list[dict[str, int]]:
    return list({tuple(sorted(dims.items())): dims for dims in result}.values())
