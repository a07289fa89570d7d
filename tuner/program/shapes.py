"""Shapes and element types of a program's tensors, inferred from its axes; errors point at the column.

A dim of an input that is read at ``m`` has the extent of ``m``; read at ``2*p + r`` it reaches to the largest index.
Explicit shapes stand where that does not say it (indirect or padded reads), or where a tensor is larger than what is
read of it. Every read must stay inside, unless the tensor is padded: an index that cannot be proved to is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.errors import InvalidInput
from tuner.program.dims import DimExpr, Quotient
from tuner.program.dtypes import DTYPES, INTEGERS, promoted
from tuner.program.expr import (
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
)
from tuner.program.notation import Stage
from tuner.program.program import Program, index_dim

Dims = tuple[DimExpr, ...]
_KEEPS_INTEGERS = frozenset({"abs", "min", "max", "round", "floor"})
_INTEGERS_ONLY = frozenset({"//", "%", "<<", ">>"})


def index_range(index: Expr, extents: Mapping[str, DimExpr]) -> tuple[DimExpr, DimExpr] | None:
    """The least and the largest value of an index where no extent is 0; None for an element of a tensor."""
    dim = index_dim(index)
    return None if dim is None else _range(dim, extents)


def _range(dim: DimExpr, extents: Mapping[str, DimExpr]) -> tuple[DimExpr, DimExpr]:
    low = high = DimExpr.of(0)
    for monomial, coefficient in dim.terms:
        factor, bounds = DimExpr.of(coefficient), (DimExpr.of(1), DimExpr.of(1))
        for atom in monomial:
            if isinstance(atom, Quotient):
                bounds = _quotient_range(atom, extents)
            elif atom.startswith("extent("):
                factor = factor * extents[atom[len("extent(") : -1]]
            else:
                bounds = (DimExpr.of(0), extents[atom] - 1)
        least, most = (factor * bounds[0], factor * bounds[1])
        low, high = (low + least, high + most) if coefficient > 0 else (low + most, high + least)
    return low, high


def _quotient_range(atom: Quotient, extents: Mapping[str, DimExpr]) -> tuple[DimExpr, DimExpr]:
    least, most = _range(atom.numerator, extents)
    if atom.operator == "//":
        return least // atom.divisor, most // atom.divisor
    if least.constant is not None and most.constant is not None and 0 <= least.constant <= most.constant < atom.divisor:
        return least, most
    return DimExpr.of(0), DimExpr.of(atom.divisor - 1)


class Shapes:
    """The dims of every tensor, over the symbols that ``extents`` (by axis or size name) are given in.

    ``ranges``: of the symbols, inclusive; with them, two sizes that are written differently can be compared. Raises
    InvalidInput on field ``program`` or ``shapes``.
    """

    def __init__(
        self,
        program: Program,
        extents: Mapping[str, DimExpr],
        explicit: Mapping[str, Dims],
        padded: Sequence[str],
    ) -> None:
        self._program, self._extents, self._explicit, self._padded = program, extents, explicit, frozenset(padded)
        self.dims: dict[str, Dims] = {}
        for name in program.tensors:
            self.dims[name] = self._dims(name)
        self.unproved: list[tuple[Read, int, DimExpr, DimExpr]] = []
        """(read, position, size that is needed, size that there is) where only values of the symbols can tell."""
        for read in program.reads:
            self._check_inside(read)

    def _dims(self, name: str) -> Dims:
        if name in self._program.stage:
            return tuple(self._extents[axis] for axis in self._program.stage[name].axes)
        rank = self._program.rank(name)
        if name in self._explicit:
            if len(self._explicit[name]) != rank:
                problem = f"{len(self._explicit[name])} dims are given, the program reads it with {rank} indices"
                raise InvalidInput(f"shapes.{name}", problem, "one size for each index")
            return self._explicit[name]
        reads = [read for read in self._program.reads if read.tensor == name]
        return tuple(self._dim(name, reads, position) for position in range(rank))

    def _dim(self, name: str, reads: Sequence[Read], position: int) -> DimExpr:
        """The smallest size that holds every index."""
        needed: list[DimExpr] = []
        give = f"give its shape: shapes: {{{name}: [...]}}"
        for read in reads:
            index = read.indices[position]
            bounds = index_range(index, self._extents)
            if bounds is None:
                self._program.refuse(index, f"the size of dim {position} of {name} does not follow from the axes", give)
                continue
            if name in self._padded and not isinstance(index, Axis):
                self._program.refuse(index, f"{name} is padded, so the size of dim {position} does not follow", give)
            needed.append(bounds[1] + 1)
        constants = [dim.constant for dim in needed if dim.constant is not None]
        if len(constants) == len(needed):
            return DimExpr.of(max(constants))
        if len(set(needed)) > 1:
            sizes = " or ".join(map(str, dict.fromkeys(needed)))
            self._program.refuse(reads[0], f"dim {position} of {name} may be {sizes}", give)
        return needed[0]

    def _check_inside(self, read: Read) -> None:
        if read.tensor in self._padded:
            return
        for position, index in enumerate(read.indices):
            bounds = index_range(index, self._extents)
            if bounds is None:
                # Elements of tensors are clamped at run time: never an access out of bounds.
                continue
            low, high = bounds
            size = self.dims[read.tensor][position]
            remedy = f"if it is meant to read {read.tensor} outside its bounds, say what is there: padded: {{{read.tensor}: 0}}"
            if low.constant is not None and low.constant < 0:
                self._program.refuse(index, f"the index reaches down to {low}", remedy)
            excess = (high + 1 - size).constant
            if excess is not None and excess > 0:
                self._program.refuse(index, f"the index reaches to {high}, the dim's size is {size}", remedy)
            if low.constant is None:
                self.unproved.append((read, position, low * -1, DimExpr.of(0)))
            if excess is None:
                self.unproved.append((read, position, high + 1, size))


class ElementTypes:
    """The dtype of every tensor. ``given``: one for all inputs and outputs, or by name.

    Tensors that are used as indices are int32 unless said otherwise; what is not named follows from the arithmetic.
    Raises InvalidInput on field ``dtype`` or ``program``.
    """

    def __init__(self, program: Program, given: object) -> None:
        self._program = program
        named = self._named(given)
        whole = given if isinstance(given, str) else None
        self.of: dict[str, str] = {}
        for name in program.inputs:
            default = "int32" if name in program.index_tensors else whole or "float32"
            self.of[name] = named.get(name, default)
            if name in program.index_tensors and self.of[name] not in INTEGERS:
                raise InvalidInput(f"dtype.{name}", f"{name} is used as an index, {self.of[name]} is no integer", "int32")
        for stage in program.stages:
            computed = self.reduced_type(stage)
            default = whole if whole and stage.tensor in program.outputs else computed
            self.of[stage.tensor] = named.get(stage.tensor, default)

    def reduced_type(self, stage: Stage) -> str:
        """The dtype that a stage is computed in, its reduction included: bools are counted in int32."""
        computed = self.type_of(stage.body)
        return "int32" if computed == "bool" and stage.reducer in ("sum", "prod") else computed

    def type_of(self, expr: Expr) -> str:
        """The dtype that an expression is computed in."""
        match expr:
            case Const(value=value):
                return "int32" if isinstance(value, int) and abs(value) < 2**31 else "int64" if isinstance(value, int) else "float32"
            case Axis() | Extent():
                return "int64"
            case Read(tensor=tensor):
                return DTYPES[self.of[tensor]].compute
            case Cast(operand=operand, dtype=dtype):
                self.type_of(operand)
                return DTYPES[dtype].compute
            case Neg(operand=operand):
                return promoted([self._number(operand)])
            case Binary():
                return self._binary(expr)
            case Call():
                return self._call(expr)

    def _number(self, expr: Expr) -> str:
        found = self.type_of(expr)
        return "int32" if found == "bool" else found

    def _binary(self, expr: Binary) -> str:
        left, right = self.type_of(expr.left), self.type_of(expr.right)
        if expr.operator in COMPARISONS:
            return "bool"
        if expr.operator in ("&", "|") and left == right == "bool":
            return "bool"
        both = promoted([self._number(expr.left), self._number(expr.right)])
        if expr.operator in _INTEGERS_ONLY or expr.operator in ("&", "|"):
            if both not in INTEGERS:
                self._program.refuse(expr, f"{expr.operator} of {left} and {right}", "integers: cast(x, int32), or floor(x / y)")
            return both
        return promoted([both, "float32"]) if expr.operator == "/" else both

    def _call(self, expr: Call) -> str:
        found = [self.type_of(arg) for arg in expr.args]
        if expr.function == "where":
            return found[1] if found[1] == found[2] else promoted(["int32" if t == "bool" else t for t in found[1:]])
        both = promoted(["int32" if dtype == "bool" else dtype for dtype in found])
        return both if expr.function in _KEEPS_INTEGERS else promoted([both, "float32"])

    def _named(self, given: object) -> Mapping[str, str]:
        known = ", ".join(DTYPES)
        if isinstance(given, str):
            if given not in DTYPES:
                raise InvalidInput("dtype", f"{given!r} is not a dtype", f"one of: {known}")
            return {}
        if not isinstance(given, Mapping):
            raise InvalidInput("dtype", f"{given!r} is not a dtype", f"one of: {known}; or a mapping of tensors to them")
        for name, dtype in given.items():
            if name not in self._program.tensors:
                names = ", ".join(self._program.tensors)
                raise InvalidInput(f"dtype.{name}", f"{name!r} is not a tensor of the program", f"tensors: {names}")
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise InvalidInput(f"dtype.{name}", f"{dtype!r} is not a dtype", f"one of: {known}")
        return given
