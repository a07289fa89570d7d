"""Random operands, drawn from where a program is defined: the same ones for the same tensor everywhere."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.program.language.arrays import NUMPY
from tuner.program.language.dtypes import INTEGERS
from tuner.program.language.expr import (
    COMPARISONS,
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Neg,
    Read,
    axes_of,
    children,
    reads,
    walk,
)
from tuner.program.language.program import Program
from tuner.program.language.workload import Tensor, Workload

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Domain:
    """What values are drawn from: ``[low, high)`` for floats, ``low`` to ``high`` inclusive for integers.
    ``is_ascending``: integers do not fall along the last axis, from ``low`` to ``high``: offsets of a ragged batch.
    """

    low: float
    high: float
    is_ascending: bool = False


REALS = Domain(-1.0, 1.0)
POSITIVE = Domain(0.5, 1.5)
"""Arguments of logarithms and roots, and divisors."""
FEW = Domain(-8, 8)
"""Integers, so that some are equal and no sum overflows; those of 8 bits have their whole range."""
DIVISORS = Domain(1, 8)
SHIFTS = Domain(0, 7)
HIDDEN, ALONE = 4, 0.125
"""One in HIDDEN lines of a mask is hidden whole; ALONE is the share of elements that are hidden in the others."""


Made = dict[tuple[str, Domain], Array]
"""Inputs that have the same shape whatever the symbols are, by name, and what their values were drawn from."""


def random_inputs(workload: Workload, dims: Mapping[str, int], made: Made | None = None) -> tuple[Array, ...]:
    """All inputs in call order for these values of the symbols. ``made``: those of earlier calls, which are taken from
    there and added to it: of large weights one copy is enough, and drawing them takes as long as using them."""
    return tuple(_input(workload, tensor, dims, {} if made is None else made) for tensor in workload.inputs)


def _input(workload: Workload, tensor: Tensor, dims: Mapping[str, int], made: Made) -> Array:
    domain = domain_of(workload, tensor.name, dims)
    key = (tensor.name, domain)
    if key in made:
        return made[key]
    array = random_array(tensor.name, tensor.shape(dims), tensor.dtype, domain)
    if tensor.name in _uses(workload.program).masks:
        array = _hiding(tensor.name, array)
    if not any(dim.variables for dim in tensor.dims):
        made[key] = array
    return array


def _hiding(name: str, array: Array) -> Array:
    """A mask that hides some elements, and some lines along its last axis as a whole."""
    if array.dtype.kind in "iu" or not array.ndim or not array.size:
        return array
    rng = np.random.default_rng([zlib.crc32(name.encode()), 1, *array.shape])
    lines = np.arange(array.size // array.shape[-1]).reshape((*array.shape[:-1], 1))
    hidden = (lines % HIDDEN == 1) | (rng.random(array.shape) < ALONE)
    return np.where(hidden, np.asarray(False if array.dtype == bool else -np.inf, array.dtype), array)


def random_array(name: str, shape: Sequence[int], dtype: str = "float32", domain: Domain = REALS) -> Array:
    """Random values, equal for equal names and shapes in every process."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), *shape])
    if dtype == "bool":
        return rng.integers(0, 2, tuple(shape)).astype(np.bool_)
    if dtype in INTEGERS:
        whole = rng.integers(int(domain.low), int(domain.high), tuple(shape), np.int64, endpoint=True)
        return (_ascending(whole, domain) if domain.is_ascending else whole).astype(dtype)
    values: Array = rng.random(tuple(shape), dtype=np.float64 if dtype == "float64" else np.float32)
    values *= domain.high - domain.low
    values += domain.low
    return values.astype(NUMPY[dtype], copy=False)


def _ascending(values: Array, domain: Domain) -> Array:
    values = np.sort(values)
    values[..., :1], values[..., 1:][..., -1:] = domain.low, domain.high
    return values


def domain_of(workload: Workload, name: str, dims: Mapping[str, int]) -> Domain:
    """Where a tensor's test values lie: what the workload says, or what its program is defined for.

    Indices run from one before the first to one past the last, since kernels must clamp them, and so do integers that
    axes are compared with.
    """
    given = dict(workload.domain)
    if name in given:
        return Domain(*given[name])
    dtype = dict(workload.dtypes)[name]
    if name in workload.program.index_tensors:
        size = min(_indexed_sizes(workload, name, dims))
        return Domain(-1, size) if dtype != "uint8" else Domain(0, min(size, 255))
    uses = _uses(workload.program)
    if dtype in INTEGERS and name in uses.positions:
        return _positions(workload, name, dims, uses)
    if dtype in INTEGERS:
        return _integers(name, dtype, uses)
    return POSITIVE if name in uses.positive else REALS


def _integers(name: str, dtype: str, uses: _Uses) -> Domain:
    if name in uses.shifts:
        return SHIFTS
    if name in uses.positive:
        return DIVISORS
    info = np.iinfo(dtype)
    return Domain(int(info.min), int(info.max)) if info.bits == 8 or name in uses.bits else FEW


def _positions(workload: Workload, name: str, dims: Mapping[str, int], uses: _Uses) -> Domain:
    """Values that an axis is compared with."""
    info, size = np.iinfo(dict(workload.dtypes)[name]), workload.axis_sizes(dims)[uses.positions[name]]
    if name in uses.offsets:
        return Domain(0, min(size, int(info.max)), is_ascending=True)
    return Domain(max(-1, int(info.min)), min(size + 1, int(info.max)))


def _indexed_sizes(workload: Workload, name: str, dims: Mapping[str, int]) -> Iterator[int]:
    """The dims that elements of an integer tensor are indices of."""
    for read in workload.program.reads:
        for index, size in zip(read.indices, workload.tensors[read.tensor].shape(dims), strict=True):
            if isinstance(index, Read) and index.tensor == name:
                yield size


@dataclass(frozen=True, slots=True)
class _Uses:
    """Inputs that must be positive, that are shifted by, and whose bits are taken apart; those that hide elements where
    the program tests whether all of them are hidden, that is, whether something is -inf; those whose elements an axis
    is compared with, by order, and that axis; those of which a largest or least one along the last axis is sought.
    """

    positive: frozenset[str]
    shifts: frozenset[str]
    bits: frozenset[str]
    masks: frozenset[str]
    positions: Mapping[str, str]
    offsets: frozenset[str]


@cache
def _uses(program: Program) -> _Uses:
    positive: set[str] = set()
    shifts: set[str] = set()
    bits: set[str] = set()
    masks: set[str] = set()
    for node in (node for stage in program.stages for node in walk(stage.body)):
        match node:
            case Call(function="log" | "sqrt" | "rsqrt", args=(argument,)):
                positive |= _signed(program, argument)
            case Binary(operator="/" | "//" | "%", right=divisor):
                positive |= _signed(program, divisor)
            case Binary(operator="<<" | ">>", left=left, right=right):
                bits |= _read_by(left)
                shifts |= _read_by(right)
            case Binary(operator="&" | "|", left=left, right=right):
                bits |= _read_by(left) | _read_by(right)
            case Binary(operator="==", left=Read(tensor=tensor), right=Const(value=value)) if value == -np.inf:
                masks |= _added(program, program.stage[tensor].body) if tensor in program.stage else {tensor}
            case _:
                pass
    inputs = frozenset(program.inputs)
    return _Uses(
        frozenset(positive),
        frozenset(shifts) & inputs,
        frozenset(bits) & inputs,
        frozenset(masks - positive) & inputs,
        _compared_with_axes(program),
        _lines(program),
    )


def _compared_with_axes(program: Program) -> Mapping[str, str]:
    """By input the axis that its elements are first compared with, and that they do not stand along."""
    found: dict[str, str] = {}
    along = {(read.tensor, axis) for read in program.reads for axis in axes_of(read)}
    for node in (node for stage in program.stages for node in walk(stage.body)):
        match node:
            case Binary(operator="<" | "<=" | ">" | ">=", left=left, right=right):
                for side, other in ((left, right), (right, left)):
                    if isinstance(side, Axis):
                        names = (name for name in _reaching(program, other) if (name, side.name) not in along)
                        found = {**dict.fromkeys(names, side.name), **found}
            case _:
                pass
    return found


def _lines(program: Program) -> frozenset[str]:
    """Inputs of which a largest or least element along the last axis is sought."""
    return frozenset(
        read.tensor
        for stage in program.stages
        if stage.reducer in ("max", "min")
        for read in reads(stage.body)
        if read.indices and read.indices[-1] in [Axis(axis) for axis in stage.reduce_axes]
    )


def _reaching(program: Program, expr: Expr) -> set[str]:
    """The inputs whose elements reach an expression, through stages too, and not as the truth of a comparison."""
    match expr:
        case Read(tensor=tensor):
            return _reaching(program, program.stage[tensor].body) if tensor in program.stage else {tensor}
        case Binary(operator=operator) if operator in COMPARISONS:
            return set()
        case Call(function="where", args=(_, yes, no)):
            return _reaching(program, yes) | _reaching(program, no)
        case _:
            return set().union(*(_reaching(program, operand) for operand in children(expr)))


def _added(program: Program, expr: Expr) -> set[str]:
    """The inputs of which a single element makes an expression -inf: those that are added, and conditions."""
    match expr:
        case Read(tensor=tensor) if tensor in program.stage:
            stage = program.stage[tensor]
            return _added(program, stage.body) if stage.reducer in (None, "max") else set()
        case Read(tensor=tensor):
            return {tensor}
        case Binary(operator="+" | "&", left=left, right=right):
            return _added(program, left) | _added(program, right)
        case Call(function="where", args=args):
            return set().union(*(_added(program, arg) for arg in args))
        case _:
            return set()


def _signed(program: Program, expr: Expr) -> set[str]:
    """The inputs whose signs decide whether an expression is positive; none if it cannot be negative."""
    match expr:
        case Read(tensor=tensor):
            return {tensor} if tensor not in program.stage else _signed(program, program.stage[tensor].body)
        case Binary(operator="*", left=left, right=right) if left == right:
            return set()
        case Call(function="exp" | "sigmoid" | "abs" | "sqrt" | "rsqrt"):
            return set()
        case Call(function="max", args=args) if any(isinstance(arg, Const) and arg.value > 0 for arg in args):
            return set()
        case Call(function="where", args=(_, yes, no)):
            return _signed(program, yes) | _signed(program, no)
        case _:
            return set().union(*(_signed(program, operand) for operand in children(expr)))


def _read_by(expr: Expr) -> set[str]:
    """Tensors whose elements reach an expression by arithmetic, and not as the truth of a comparison."""
    match expr:
        case Read(tensor=tensor):
            return {tensor}
        case Binary(operator=operator) if operator in COMPARISONS:
            return set()
        case Binary() | Cast() | Neg():
            return set().union(*map(_read_by, children(expr)))
        case _:
            return set()
