"""Shapes and element types of a program's tensors, inferred from its axes; errors point at the column.

A dim of an input that is read at ``m`` has the extent of ``m``; read at ``2*p + r`` it reaches to the largest index.
Explicit shapes stand where that does not say it (indirect or padded reads), or where a tensor is larger than what is
read of it. Every read must stay inside, unless the tensor is padded: an index that cannot be proved to is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import cached_property

from tuner.errors import InvalidInput, did_you_mean, shown
from tuner.program.language.dims import DimExpr
from tuner.program.language.dtypes import DTYPES, INTEGERS, SYNONYMS, promoted
from tuner.program.language.expr import (
    COMPARISONS,
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Neg,
    Read,
    text_of,
)
from tuner.program.language.indices import index_range
from tuner.program.language.notation import Stage
from tuner.program.language.program import Program

Dims = tuple[DimExpr, ...]
_KEEPS_INTEGERS = frozenset({"abs", "min", "max", "round", "floor"})
_INTEGERS_ONLY = frozenset({"//", "%", "<<", ">>", "&", "|"})


class Shapes:
    """The dims of every tensor, over the symbols that ``extents`` (by axis or size name) are given in.

    Of two sizes that a tensor may have, the larger one holds, if it is larger for all symbols. Raises InvalidInput on
    field ``program`` or ``shapes``.
    """

    def __init__(
        self,
        program: Program,
        extents: Mapping[str, DimExpr],
        explicit: Mapping[str, Dims],
        padded: Collection[str],
    ) -> None:
        self._program, self._extents, self._explicit, self._padded = program, extents, explicit, frozenset(padded)
        self._reads: dict[str, list[Read]] = {}
        for read in program.reads:
            self._reads.setdefault(read.tensor, []).append(read)
        self.dims: dict[str, Dims] = {name: self._dims(name) for name in program.tensors}

    @cached_property
    def unproved(self) -> list[tuple[Read, int, DimExpr, DimExpr]]:
        """(read, position, size that is needed, size that there is) where it depends on values of the symbols.

        Raises InvalidInput for a read that is out of bounds whatever they are.
        """
        result: list[tuple[Read, int, DimExpr, DimExpr]] = []
        for read in self._program.reads:
            if read.tensor not in self._padded:
                self._check_inside(read, result)
        return result

    def follows(self, name: str) -> Dims | None:
        """The dims of an input as they follow from the axes, whatever its explicit shape is; None if they do not."""
        try:
            return self._inferred(name)
        except InvalidInput:
            return None

    def stays_inside(self, name: str) -> bool:
        """Whether no read of a tensor is out of bounds, whatever the sizes are: padding of it would decide nothing."""
        unproved: list[tuple[Read, int, DimExpr, DimExpr]] = []
        try:
            for read in self._reads.get(name, ()):
                self._check_inside(read, unproved)
        except InvalidInput:
            return False
        return not unproved

    def _dims(self, name: str) -> Dims:
        if name in self._program.stage:
            return tuple(self._extents[axis] for axis in self._program.stage[name].axes)
        if name not in self._explicit:
            return self._inferred(name)
        given, rank = self._explicit[name], len(self._reads[name][0].indices)
        if len(given) != rank:
            problem = f"{len(given)} dims are given, the program reads it with {rank} indices"
            raise InvalidInput(f"shapes.{name}", problem, "one size for each index")
        return given

    def _inferred(self, name: str) -> Dims:
        reads = self._reads[name]
        return tuple(self._dim(name, reads, position) for position in range(len(reads[0].indices)))

    def _dim(self, name: str, reads: Sequence[Read], position: int) -> DimExpr:
        """The smallest size that holds every index."""
        size: DimExpr | None = None
        largest: Expr | None = None
        give = f"give its shape: shapes: {{{name}: [...]}}"
        for read in reads:
            index = read.indices[position]
            bounds = self._bounds(index)
            if bounds is None:
                problem = f"the size of dim {position} of {name} does not follow from the axes"
                self._program.refuse(index, problem, give)
            if name in self._padded and not isinstance(index, Axis):
                problem = f"{name} is padded, so the size of dim {position} does not follow"
                self._program.refuse(index, problem, give)
            needed = bounds[1]
            more = self._excess(index, needed, size) if size is not None else 1
            if more is None and largest is not None:
                problem = f"dim {position} of {name} is read at {text_of(largest)} too, and either may be larger"
                self._program.refuse(index, problem, give)
            if more is not None and more > 0:
                size, largest = needed, index
        assert size is not None  # every input is read
        return size if size.constant is None else DimExpr.of(max(size.constant, 0))

    def _bounds(self, index: Expr) -> tuple[DimExpr, DimExpr] | None:
        """The least value of an index, and the size that holds the largest; None for an element of a tensor."""
        try:
            bounds = index_range(index, self._extents)
            return None if bounds is None else (bounds[0], bounds[1] + 1)
        except InvalidInput as error:
            self._program.refuse(index, f"the index is out of every range: {error.problem}", error.remedy)

    def _excess(self, index: Expr, needed: DimExpr, size: DimExpr) -> int | None:
        """How much a size that is needed exceeds another; None if values of the symbols decide."""
        try:
            return (needed - size).constant
        except InvalidInput as error:
            self._program.refuse(index, f"the index is out of every range: {error.problem}", error.remedy)

    def _check_inside(self, read: Read, unproved: list[tuple[Read, int, DimExpr, DimExpr]]) -> None:
        for position, index in enumerate(read.indices):
            bounds = self._bounds(index)
            size = self.dims[read.tensor][position]
            if bounds is None:
                # Elements of tensors are clamped at run time: never an access out of bounds.
                if size.constant is not None and size.constant < 1:
                    problem = f"dim {position} of {read.tensor} has no element to choose from"
                    self._program.refuse(index, problem, "a size of 1 or more")
                continue
            low, needed = bounds
            remedy = f"if {read.tensor} is read outside its bounds, say what is there: padded: {{{read.tensor}: 0}}"
            if low.constant is not None and low.constant < 0:
                self._program.refuse(index, f"the index reaches down to {low.constant}", remedy)
            excess = self._excess(index, needed, size)
            if excess is not None and excess > 0:
                problem = f"the index passes the end of dim {position} of {read.tensor} by {excess}"
                self._program.refuse(index, problem, remedy)
            if low.constant is None:
                unproved.append((read, position, low * -1, DimExpr.of(0)))
            if excess is None:
                unproved.append((read, position, needed, size))


class ElementTypes:
    """The dtype of every tensor. ``given``: one for all inputs and outputs, or by name; ``own``: of tensors that an
    operator has a dtype for, unless ``given`` names them.

    Tensors that are used as indices are int32 unless said otherwise; what is not named follows from the arithmetic.
    Raises InvalidInput on field ``dtype`` or ``program``.
    """

    def __init__(self, program: Program, given: object, own: Mapping[str, str] | None = None) -> None:
        self._program = program
        named = {**(own or {}), **self._named(given)}
        whole = given if isinstance(given, str) else None
        self.of: dict[str, str] = {}
        for name in program.inputs:
            default = "int32" if name in program.index_tensors else whole or "float32"
            self.of[name] = named.get(name, default)
            if name in program.index_tensors and self.of[name] not in INTEGERS:
                problem = f"{name} is used as an index, {self.of[name]} is no integer"
                raise InvalidInput(f"dtype.{name}", problem, "int32")
        for stage in program.stages:
            computed = self.reduced_type(stage)
            default = whole if whole and stage.tensor in program.outputs else computed
            self.of[stage.tensor] = named.get(stage.tensor, default)

    def with_tensor(self, name: str, dtype: str) -> ElementTypes:
        """A copy with one tensor more."""
        types = copy(self)
        types.of = {**self.of, name: dtype}
        return types

    def reduced_type(self, stage: Stage) -> str:
        """The dtype that a stage is computed in, its reduction included: bools are counted in int32."""
        computed = self.type_of(stage.body)
        return "int32" if computed == "bool" and stage.reducer in ("sum", "prod") else computed

    def type_of(self, expr: Expr) -> str:
        """The dtype that an expression is computed in."""
        match expr:
            case Const(value=value):
                return _constant_type(value)
            case Axis() | Extent():
                return "int64"
            case Read(tensor=tensor):
                return DTYPES[self.of[tensor]].compute
            case Binary():
                return self._binary(expr)
            case Call():
                return self._call(expr)
            case Neg(operand=operand) | Cast(operand=operand):
                result = self.type_of(operand)
                return DTYPES[expr.dtype].compute if isinstance(expr, Cast) else promoted([_number(result)])

    def _binary(self, expr: Binary) -> str:
        left, right = self.type_of(expr.left), self.type_of(expr.right)
        if expr.operator in COMPARISONS:
            return "bool"
        if expr.operator in ("&", "|") and left == right == "bool":
            return "bool"
        both = promoted([_number(left), _number(right)])
        if expr.operator not in _INTEGERS_ONLY:
            return promoted([both, "float32"]) if expr.operator == "/" else both
        if both not in INTEGERS:
            joined = "; conditions on both sides" if "bool" in (left, right) else ""
            remedy = f"integers: cast(x, int32), or floor(x / y){joined}"
            self._program.refuse(expr, f"{expr.operator} of {left} and {right}", remedy)
        return both

    def _call(self, expr: Call) -> str:
        result = [self.type_of(arg) for arg in expr.args]
        if expr.function == "where":
            if result[0] != "bool":
                problem = f"where takes a condition first, not a value of {result[0]}"
                self._program.refuse(expr.args[0], problem, "a comparison, as in where(x[m] != 0, a, b)")
            return result[1] if result[1] == result[2] else promoted(map(_number, result[1:]))
        both = promoted(map(_number, result))
        return both if expr.function in _KEEPS_INTEGERS else promoted([both, "float32"])

    def _named(self, given: object) -> Mapping[str, str]:
        known = f"one of: {', '.join(DTYPES)}"
        if isinstance(given, str) and given in DTYPES:
            return {}
        if not isinstance(given, Mapping):
            remedy = f"{_meant(given)}{known}; or a mapping of tensors to them"
            raise InvalidInput("dtype", f"{shown(given)} is not a dtype", remedy)
        for name, dtype in given.items():
            if name not in self._program.tensors:
                names = f"tensors: {', '.join(self._program.tensors)}"
                raise InvalidInput("dtype", f"{shown(name)} is not a tensor of the program", names)
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise InvalidInput(f"dtype.{name}", f"{shown(dtype)} is not a dtype", _meant(dtype) + known)
        return given


def _meant(given: object) -> str:
    return did_you_mean(given, DTYPES, SYNONYMS)


def _constant_type(value: int | float) -> str:
    if isinstance(value, float):
        return "float32"
    return "int32" if -(2**31) <= value < 2**31 else "int64"


def _number(dtype: str) -> str:
    """What a value is computed in where a number is needed: conditions count as 0 and 1."""
    return "int32" if dtype == "bool" else dtype
