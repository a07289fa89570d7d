"""Text of Triton kernels: lines, names, and values that know along which dims of a tile they vary."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tuner.program.language.dims import DimExpr, Quotient
from tuner.schedule.gpu.functions import TYPES

NO_DIMS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Value:
    """An expression in text. ``dtype``: of an element in a register; None for a literal, which takes that of what it
    meets. ``dims``: of the tile, along which it varies; in others its size is 1, and with none it is a scalar."""

    text: str
    dtype: str | None
    dims: frozenset[int] = NO_DIMS


def literal(number: float, dtype: str) -> Value:
    """A constant of a dtype as text."""
    if dtype.startswith("float"):
        value = float(number)
        return Value(repr(value) if math.isfinite(value) else f'float("{value}")', None)
    return Value(str(int(number)), None)


def joined(*values: Value) -> frozenset[int]:
    """The dims along which any of some values varies."""
    return NO_DIMS.union(*(value.dims for value in values))


@dataclass
class Writer:
    """The lines of one function."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
    count: int = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, stem: str) -> str:
        """A name that no other value has."""
        self.count += 1
        return f"{re.sub('[^A-Za-z0-9]+', '_', stem).strip('_') or 'v'}_{self.count}"

    def bind(self, value: Value, stem: str = "v") -> Value:
        """The value under a name of its own, unless it has one."""
        if value.text.isidentifier() or value.dtype is None:
            return value
        name = self.name(stem)
        self.line(f"{name} = {value.text}")
        return Value(name, value.dtype, value.dims)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Lines under a header, as of a loop."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1


def spread(text: str, dim: int, rank: int) -> str:
    """A vector as a tile that varies along one dim of several."""
    if rank == 1:
        return text
    return f"{text}[{', '.join(':' if other == dim else 'None' for other in range(rank))}]"


def cast(value: Value, dtype: str) -> Value:
    """The value as an element of a dtype in a register."""
    if value.dtype in (dtype, None):
        return Value(value.text, value.dtype, value.dims) if value.dtype else Value(value.text, None)
    if dtype == "bool":
        return Value(f"({value.text} != 0)", dtype, value.dims)
    return Value(f"tl.cast({value.text}, {TYPES[dtype]})", dtype, value.dims)


def dim_text(dim: DimExpr, names: Mapping[str, str], is_host: bool = False) -> str:
    """A dim as text over ``names``, for a kernel, or in Python for the host."""
    value = affine(dim, {name: Value(text, "int32") for name, text in names.items()}, is_host)
    return value.text


def affine(dim: DimExpr, names: Mapping[str, Value], is_host: bool = False) -> Value:
    """A dim as a value of the same dtype as those of its variables."""
    terms: list[Value] = []
    for monomial, coefficient in dim.terms:
        factors = [_quotient(atom, names, is_host) if isinstance(atom, Quotient) else names[atom] for atom in monomial]
        if not factors:
            terms.append(Value(str(coefficient), None))
            continue
        texts = [value.text for value in factors] + ([str(coefficient)] if coefficient != 1 else [])
        terms.append(Value(" * ".join(texts), _widest(factors), joined(*factors)))
    if not terms:
        return Value("0", None)
    if len(terms) == 1 and terms[0].text.isidentifier():
        return terms[0]
    # Scalars first: what is the same in a tile is added once.
    terms.sort(key=lambda term: len(term.dims))
    text = " + ".join(term.text for term in terms)
    return Value(f"({text})" if len(terms) > 1 or " " in text else text, _widest(terms), joined(*terms))


def _widest(values: Iterable[Value]) -> str | None:
    dtypes = {value.dtype for value in values}
    return "int64" if "int64" in dtypes else "int32" if "int32" in dtypes else None


def _quotient(atom: Quotient, names: Mapping[str, Value], is_host: bool) -> Value:
    numerator = affine(atom.numerator, names, is_host)
    is_counting = all(coefficient > 0 for _, coefficient in atom.numerator.terms)
    if is_host or is_counting:
        return Value(f"({numerator.text} {atom.operator} {atom.divisor})", numerator.dtype, numerator.dims)
    function = "floor_div" if atom.operator == "//" else "floor_mod"
    return Value(f"{function}({numerator.text}, {atom.divisor})", numerator.dtype, numerator.dims)
