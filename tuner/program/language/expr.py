"""Expressions of a program: frozen trees of constants, axes, tensor reads, arithmetic and scalar functions.

Every node carries ``at``, the offset in the text it was parsed from, for error messages; it takes no part in equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

FUNCTIONS: Mapping[str, int] = {
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "erf": 1, "sigmoid": 1, "sin": 1, "cos": 1, "abs": 1,
    "round": 1, "floor": 1, "min": 2, "max": 2, "where": 3,
}  # fmt: skip
"""Scalar functions and how many arguments each takes. ``cast`` and ``extent`` have nodes of their own."""
TRANSCENDENTAL = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "sin", "cos"})
"""Functions of a dozen instructions and more."""

REDUCERS = ("sum", "max", "min", "prod")
"""What may stand first on the right-hand side of a stage: ``sum(k) ...``."""

PRECEDENCE: Mapping[str, int] = {
    "|": 1, "&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "<<": 4, ">>": 4, "+": 5, "-": 5,
    "*": 6, "/": 6, "//": 6, "%": 6,
}  # fmt: skip
"""Binary operators, the tightest highest; all are left-associative. Comparisons do not chain."""
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
BITWISE = frozenset({"&", "|", "<<", ">>"})
"""Their operands print in parentheses if they are operators too: languages differ in how tightly these bind."""
NEGATION = 7
"""The precedence of the unary minus."""


@dataclass(frozen=True, slots=True)
class Const:
    """A number: an int, or a float (``inf`` included)."""

    value: int | float
    at: int = field(default=0, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(repr(self.value))

    def __eq__(self, other: object) -> bool:
        """1 and 1.0 are different constants, and so are 0.0 and -0.0: equal constants print alike."""
        return isinstance(other, Const) and repr(self.value) == repr(other.value)


@dataclass(frozen=True, slots=True)
class Axis:
    """The value of an axis, an integer from 0."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Extent:
    """``extent(n)``: how many values an axis (or a named size) has."""

    name: str
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a tensor."""

    tensor: str
    indices: tuple[Expr, ...]
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Neg:
    """``-operand``."""

    operand: Expr
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binary:
    """``left operator right``; ``/`` is the division of real numbers, ``//`` and ``%`` round down."""

    operator: str
    left: Expr
    right: Expr
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function of FUNCTIONS."""

    function: str
    args: tuple[Expr, ...]
    at: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cast:
    """``cast(operand, dtype)``."""

    operand: Expr
    dtype: str
    at: int = field(default=0, compare=False, repr=False)


Expr = Const | Axis | Extent | Read | Neg | Binary | Call | Cast


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands of a node, in the order of the text."""
    match expr:
        case Read(indices=indices):
            return indices
        case Neg(operand=operand) | Cast(operand=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return (left, right)
        case Call(args=args):
            return args
        case _:
            return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents before children, in the order of the text."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``expr`` with ``change`` applied to every node, children first."""
    match expr:
        case Read():
            expr = replace(expr, indices=tuple(rebuild(index, change) for index in expr.indices))
        case Neg() | Cast():
            expr = replace(expr, operand=rebuild(expr.operand, change))
        case Binary():
            expr = replace(expr, left=rebuild(expr.left, change), right=rebuild(expr.right, change))
        case Call():
            expr = replace(expr, args=tuple(rebuild(arg, change) for arg in expr.args))
        case _:
            pass
    return change(expr)


def reads(expr: Expr) -> list[Read]:
    """Every tensor read of an expression in the order of the text; those inside indices included."""
    return [node for node in walk(expr) if isinstance(node, Read)]


def axes_of(expr: Expr) -> frozenset[str]:
    """The axes whose values an expression depends on."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Axis))


def text_of(expr: Expr, above: int = 0) -> str:
    """The notation of an expression, in parentheses where an operator of precedence ``above`` needs them."""
    match expr:
        case Const(value=value):
            text = repr(value)
            return f"({text})" if text.startswith("-") and above > PRECEDENCE["+"] else text
        case Neg(operand=operand):
            # A constant under a minus would be read as a negative constant.
            inner = f"({text_of(operand)})" if isinstance(operand, Const) else text_of(operand, NEGATION)
            return f"(-{inner})" if above > PRECEDENCE["+"] else f"-{inner}"
        case Binary(operator=operator, left=left, right=right):
            level = PRECEDENCE[operator]
            chained = operator in COMPARISONS
            text = f"{_side(left, operator, level + chained)} {operator} {_side(right, operator, level + 1)}"
            return f"({text})" if above > level else text
        case _:
            return _named_text(expr)


def _side(side: Expr, operator: str, above: int) -> str:
    """One side of a binary operator."""
    unclear = operator in BITWISE and isinstance(side, Binary) and side.operator != operator
    return f"({text_of(side)})" if unclear else text_of(side, above)


def _named_text(expr: Axis | Extent | Read | Call | Cast) -> str:
    """The notation of what starts with a name, which never needs parentheses."""
    match expr:
        case Axis(name=name):
            return name
        case Extent(name=name):
            return f"extent({name})"
        case Read(tensor=tensor, indices=indices):
            return f"{tensor}[{', '.join(map(text_of, indices))}]"
        case Call(function=function, args=args):
            return f"{function}({', '.join(map(text_of, args))})"
        case Cast(operand=operand, dtype=dtype):
            return f"cast({text_of(operand)}, {dtype})"
