"""Index expressions: affine in the axes, with // and % by constants, as integer polynomials.

``extent(n)`` appears in them as a variable of that name; it may be a factor of an axis, as in ``i*extent(j) + j``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from functools import lru_cache

from tuner.errors import InvalidInput
from tuner.program.language.dims import MAX_DIM, DimExpr, Quotient
from tuner.program.language.expr import Axis, Binary, Const, Expr, Extent, Neg, Read, rebuild, text_of, walk
from tuner.program.language.notation import parse_stages

MAX_TERMS = 16
"""Terms of an index, multiplied out."""
MAX_FACTORS = 4
"""Factors of one term: an axis and extents."""
MAX_QUOTIENTS = 4
"""Levels of // and % in each other."""
FORM = "sums of axes times constants or extents, // and % by constants, or an element of an integer tensor"


class NotAnIndex(Exception):
    """Why an expression is no index, and the node that it is about."""

    def __init__(self, node: Expr, problem: str, remedy: str = FORM) -> None:
        super().__init__(problem)
        self.node, self.problem, self.remedy = node, problem, remedy


@lru_cache(maxsize=4096)
def index_dim(index: Expr) -> DimExpr | None:
    """An index as an integer expression over axes and extents; None for all others, elements of tensors included.

    ``extent(n)`` appears as a variable named ``extent(n)``.
    """
    try:
        return checked_index(index)
    except NotAnIndex:
        return None


def checked_index(index: Expr) -> DimExpr:
    """``index_dim`` of an index that is no element of a tensor. Raises NotAnIndex."""
    match index:
        case Const(value=int() as value):
            return _limited(index, lambda: DimExpr.of(value))
        case Axis(name=name):
            return DimExpr.var(name)
        case Extent(name=name):
            return DimExpr.var(f"extent({name})")
        case Neg(operand=operand):
            inner = checked_index(operand)
            return _limited(index, lambda: inner * -1)
        case Binary(left=left, right=right):
            return _combined(index, checked_index(left), checked_index(right))
        case Read():
            raise NotAnIndex(index, f"{text_of(index)} is part of an index", "an element of a tensor stands alone")
        case Const():
            raise NotAnIndex(index, f"{text_of(index)} is no integer")
        case _:
            raise NotAnIndex(index, "a function is part of an index")


def _combined(node: Binary, left: DimExpr, right: DimExpr) -> DimExpr:
    match node.operator:
        case "+":
            return _limited(node, lambda: left + right)
        case "-":
            return _limited(node, lambda: left - right)
        case "*":
            if not _is_size(left) and not _is_size(right):
                raise NotAnIndex(node, f"{text_of(node)} multiplies two axes")
            if len(left.terms) * len(right.terms) > 4 * MAX_TERMS:
                raise _too_long(node)
            return _limited(node, lambda: left * right)
        case "//" | "%" if (divisor := right.constant) is not None:
            return _limited(node, lambda: left // divisor if node.operator == "//" else left % divisor)
        case "//" | "%":
            raise NotAnIndex(node, f"{text_of(node)} divides by something that is not constant")
        case _:
            raise NotAnIndex(node, f"{node.operator} is part of an index")


def _limited(node: Expr, compute: Callable[[], DimExpr]) -> DimExpr:
    """What ``compute`` gives, if it is small enough."""
    try:
        dim = compute()
    except InvalidInput as error:
        raise NotAnIndex(node, error.problem, error.remedy) from None
    factors = max((len(monomial) for monomial, _ in dim.terms), default=0)
    if len(dim.terms) > MAX_TERMS or factors > MAX_FACTORS or _quotients(dim) > MAX_QUOTIENTS:
        raise _too_long(node)
    return dim


def _too_long(node: Expr) -> NotAnIndex:
    limits = f"at most {MAX_TERMS} terms of {MAX_FACTORS} factors, and {MAX_QUOTIENTS} levels of // and %"
    return NotAnIndex(node, "the index is too long when it is multiplied out", limits)


def _quotients(dim: DimExpr) -> int:
    """How deeply // and % stand in each other."""
    atoms = (atom for monomial, _ in dim.terms for atom in monomial)
    return max((1 + _quotients(atom.numerator) for atom in atoms if isinstance(atom, Quotient)), default=0)


def shifts_inside(amount: Expr, bits: int) -> bool:
    """Whether a shift by ``amount`` is certain to be by 0 or more, and by fewer than ``bits``."""
    dim = index_dim(amount)
    if dim is None:
        return False
    try:
        low, high = dim.bounds(dict.fromkeys(dim.variables, (0, MAX_DIM)))
    except InvalidInput:
        return False
    return low >= 0 and high < bits


def is_extent(atom: str) -> bool:
    """Whether a variable of an index is an extent, not an axis."""
    return atom.startswith("extent(")


def _is_size(dim: DimExpr) -> bool:
    """Whether a dim is made of constants and extents alone; its quotients are 0 or more."""
    quotients = [atom for monomial, _ in dim.terms for atom in monomial if isinstance(atom, Quotient)]
    positive = all(coefficient > 0 for atom in quotients for _, coefficient in atom.numerator.terms)
    return positive and all(map(is_extent, dim.variables))


def normal_index(index: Expr) -> Expr:
    """An index in its normal form: sums in one order, constants folded. Elements of tensors stay as they are.

    Raises InvalidInput if the normal form is longer than what the notation takes.
    """
    if isinstance(index, Axis):
        return index
    dim = index_dim(index)
    return index if dim is None else index_of(dim)


def index_of(dim: DimExpr) -> Expr:
    """The index of an expression over axes and extents, in its normal form: the opposite of ``index_dim``."""
    return _parsed(str(dim))


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Expr:
    """An index from its text: the same few occur again and again."""
    (stage,) = parse_stages(f"x[] = x[{text}]")
    assert isinstance(stage.body, Read)
    return rebuild(stage.body.indices[0], lambda node: replace(node, at=0))


def index_range(index: Expr, extents: Mapping[str, DimExpr]) -> tuple[DimExpr, DimExpr] | None:
    """The least and the largest value of an index where no extent is 0; None for an element of a tensor.

    Raises InvalidInput, with an empty field, for numbers that no extent reaches.
    """
    if isinstance(index, Axis):
        return DimExpr.of(0), extents[index.name] - 1
    dim = index_dim(index)
    return None if dim is None else _range(dim, extents)


def _range(dim: DimExpr, extents: Mapping[str, DimExpr]) -> tuple[DimExpr, DimExpr]:
    sizes = {f"extent({name})": extent for name, extent in extents.items()}
    low = high = DimExpr.of(0)
    for monomial, coefficient in dim.terms:
        factor, bounds = DimExpr.of(coefficient), (DimExpr.of(1), DimExpr.of(1))
        for atom in monomial:
            if isinstance(atom, str) and not is_extent(atom):
                bounds = (DimExpr.of(0), extents[atom] - 1)
            elif isinstance(atom, str):
                factor = factor * sizes[atom]
            elif all(map(is_extent, atom.numerator.variables)):
                factor = factor * atom.substituted(sizes)
            else:
                bounds = _quotient_range(atom, extents)
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


def foreign_extents(index: Expr, axes: Container[str]) -> bool:
    """Whether an index names the extent of something that is no axis."""
    return any(isinstance(node, Extent) and node.name not in axes for node in walk(index))
