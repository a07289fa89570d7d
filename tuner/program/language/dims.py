"""Dims: integer expressions over shape variables, such as ``16*T``, ``T+128`` or ``T//2``.

An expression is parsed, never evaluated as code, into a polynomial in normal form, so that ``16*T`` and ``T*8*2`` are
equal, hash alike and print alike. ``a//c`` and ``a%c`` (``c`` a positive constant) are atoms of the polynomial unless
they fold away.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.errors import InvalidInput, shown
from tuner.program.language.effort import spend

MAX_SOURCE_LENGTH = 200
"""Characters; longer expressions are refused before they are parsed."""
MAX_TERMS = 200
"""Products of sums grow with every factor; a dim that is meant for tensors has a few terms."""
MAX_DIM = 2**31 - 1
"""The largest extent of one axis. Products of extents (element counts) are held in int64."""

ALLOWED = "integers, shape variables, + - * and // or % by a positive constant, as in 16*T or (T+1)//2"


@dataclass(frozen=True, slots=True)
class Quotient:
    """An atom ``numerator // divisor`` or ``numerator % divisor``."""

    numerator: DimExpr
    operator: str
    divisor: int

    def evaluate(self, values: Mapping[str, int]) -> int:
        value = self.numerator.evaluate(values)
        return value // self.divisor if self.operator == "//" else value % self.divisor

    def substituted(self, values: Mapping[str, DimExpr]) -> DimExpr:
        numerator = self.numerator.substituted(values)
        return numerator // self.divisor if self.operator == "//" else numerator % self.divisor

    def __str__(self) -> str:
        text = str(self.numerator)
        return f"{text if text.isidentifier() else f'({text})'}{self.operator}{self.divisor}"


_Atom = str | Quotient
_Monomial = tuple[_Atom, ...]  # sorted by text, repeated for powers; () is the constant


@dataclass(frozen=True, slots=True, repr=False)
class DimExpr:
    """An integer expression in normal form: the sum over ``terms`` of coefficient x product of atoms."""

    terms: tuple[tuple[_Monomial, int], ...]

    @staticmethod
    def of(value: DimLike) -> DimExpr:
        """``value`` as an expression: an int, a shape variable, an expression or its source text."""
        if isinstance(value, DimExpr):
            return value
        if isinstance(value, bool):
            raise InvalidInput("", f"{shown(value)} is not a dim", f"allowed: {ALLOWED}")
        if isinstance(value, int):
            return _normal({(): value})
        if isinstance(value, str):
            return parse_dim(value)
        expr = getattr(value, "expr", None)  # a ShapeVar
        if isinstance(expr, DimExpr):
            return expr
        raise InvalidInput("", f"{shown(value)} is not a dim", f"allowed: {ALLOWED}")

    @staticmethod
    def var(name: str) -> DimExpr:
        return _normal({(name,): 1})

    @property
    def constant(self) -> int | None:
        """The value if no variable occurs, else None."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and self.terms[0][0] == ():
            return self.terms[0][1]
        return None

    @property
    def variables(self) -> frozenset[str]:
        result: set[str] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                result |= {atom} if isinstance(atom, str) else atom.numerator.variables
        return frozenset(result)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value where every variable has the value that ``values`` gives it."""
        total = 0
        for monomial, coefficient in self.terms:
            product = coefficient
            for atom in monomial:
                product *= values[atom] if isinstance(atom, str) else atom.evaluate(values)
            total += product
        return total

    def substituted(self, values: Mapping[str, DimExpr]) -> DimExpr:
        """The expression with an expression in the place of every variable."""
        total = DimExpr(())
        for monomial, coefficient in self.terms:
            product = DimExpr.of(coefficient)
            for atom in monomial:
                product = product * (values[atom] if isinstance(atom, str) else atom.substituted(values))
            total = total + product
        return total

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """An interval that holds every value over ``ranges`` (inclusive): exact if each variable occurs once."""
        spend(1 + len(self.terms))
        low = high = 0
        for monomial, coefficient in self.terms:
            term = (coefficient, coefficient)
            for atom in monomial:
                term = _times(term, ranges[atom] if isinstance(atom, str) else _quotient_bounds(atom, ranges))
            low, high = low + term[0], high + term[1]
        return low, high

    def __add__(self, other: DimLike) -> DimExpr:
        terms = dict(self.terms)
        for monomial, coefficient in DimExpr.of(other).terms:
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _normal(terms)

    def __mul__(self, other: DimLike) -> DimExpr:
        terms: dict[_Monomial, int] = {}
        factor = DimExpr.of(other)
        if len(self.terms) * len(factor.terms) > MAX_TERMS:
            raise InvalidInput("", f"the product has more than {MAX_TERMS} terms", f"allowed: {ALLOWED}")
        for left, a in self.terms:
            for right, b in factor.terms:
                monomial = tuple(sorted(left + right, key=str))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _normal(terms)

    def __sub__(self, other: DimLike) -> DimExpr:
        return self + DimExpr.of(other) * -1

    def __rsub__(self, other: DimLike) -> DimExpr:
        return DimExpr.of(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> DimExpr:
        return self._divided("//", divisor)

    def __mod__(self, divisor: int) -> DimExpr:
        return self._divided("%", divisor)

    def _divided(self, operator: str, divisor: int) -> DimExpr:
        if isinstance(divisor, bool) or not isinstance(divisor, int) or not 0 < divisor <= MAX_DIM:
            raise InvalidInput("", f"({self}){operator}{divisor} divides by {divisor}", "divide by a positive constant")
        if all(coefficient % divisor == 0 for _, coefficient in self.terms):
            quotient = {monomial: coefficient // divisor for monomial, coefficient in self.terms}
            return _normal(quotient if operator == "//" else {})
        if self.constant is not None:
            return _normal({(): self.constant // divisor if operator == "//" else self.constant % divisor})
        return _normal({(Quotient(self, operator, divisor),): 1})

    def __repr__(self) -> str:
        return f"<DimExpr {self}>"

    def __str__(self) -> str:
        # Nothing starts with a sign: what is added stands before what is taken away, and parse_dim reads it again.
        text = "" if any(coefficient > 0 for _, coefficient in self.terms) else "0"
        for monomial, coefficient in sorted(self.terms, key=lambda term: term[1] < 0):
            sign = "-" if coefficient < 0 else ("+" if text else "")
            text += sign + _product_text(monomial, abs(coefficient))
        return text


DimLike = DimExpr | int | str | object
"""The types that a dim can be given as; ``object`` stands for a ShapeVar, which this module does not know."""


def parse_dim(source: str) -> DimExpr:
    """Parse the text of a dim.

    Raises InvalidInput (with an empty field, for the caller to fill in) for anything but the allowed arithmetic.
    """
    if len(source) > MAX_SOURCE_LENGTH:
        raise InvalidInput("", f"a dim of {len(source)} characters is too long", f"at most {MAX_SOURCE_LENGTH}")
    try:
        tree = ast.parse(source.strip(), mode="eval").body
        return _from_ast(tree, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise _refused(source) from None


def _from_ast(node: ast.expr, source: str) -> DimExpr:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MAX_DIM:
        return DimExpr.of(node.value)
    if isinstance(node, ast.Name):
        return DimExpr.var(node.id)
    if isinstance(node, ast.BinOp):
        left, right = _from_ast(node.left, source), _from_ast(node.right, source)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and right.constant is not None:
            return left // right.constant if isinstance(node.op, ast.FloorDiv) else left % right.constant
    raise _refused(source)


def _refused(source: str) -> InvalidInput:
    return InvalidInput("", f"{source!r} is not an integer expression over shape variables", f"allowed: {ALLOWED}")


def _product_text(monomial: _Monomial, factor: int) -> str:
    factors = [] if factor == 1 and monomial else [str(factor)]
    alone = len(factors) + len(monomial) == 1
    # 16*(T//2) is not (16*T)//2.
    factors += [str(atom) if alone or isinstance(atom, str) else f"({atom})" for atom in monomial]
    return "*".join(factors)


def _normal(terms: Mapping[_Monomial, int]) -> DimExpr:
    spend(2 + len(terms))
    kept = [(monomial, coefficient) for monomial, coefficient in terms.items() if coefficient != 0]
    if any(abs(coefficient) > MAX_DIM for _, coefficient in kept):
        raise InvalidInput("", "a factor or a constant of it is too large", f"at most {MAX_DIM}")
    # Constants last, so that T+128 prints as it is written.
    kept.sort(key=lambda term: (term[0] == (), [str(atom) for atom in term[0]]))
    return DimExpr(tuple(kept))


def _times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _quotient_bounds(atom: Quotient, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    low, high = atom.numerator.bounds(ranges)
    if atom.operator == "//":
        return low // atom.divisor, high // atom.divisor
    if high - low < atom.divisor and low % atom.divisor <= high % atom.divisor:
        return low % atom.divisor, high % atom.divisor
    return 0, atom.divisor - 1
