"""The expressions of the notation: tokens to trees, within limits on their size and height."""

from __future__ import annotations

import math
from typing import NoReturn

from tuner.program.language.dtypes import DTYPES
from tuner.program.language.expr import (
    COMPARISONS,
    FUNCTIONS,
    NEGATION,
    PRECEDENCE,
    REDUCERS,
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    Neg,
    Read,
    children,
)
from tuner.program.language.hints import FUNCTIONS_OF_OTHERS, STAGE_OF_ITS_OWN
from tuner.program.language.tokens import Token, refuse, tokens_of

MAX_NODES = 2000
MAX_DEPTH = 64
"""Levels of a stage's expression, a sum of n terms having n; a read of a tensor is one level."""
MAX_INDEX_DEPTH = 24
"""Levels of one index."""
MAX_NESTING = 2 * (MAX_DEPTH + 2 * MAX_INDEX_DEPTH) + 8
"""Depth of brackets and signs, those of calls and reads counted twice: what is accepted prints two for each level."""

RESERVED = frozenset({*FUNCTIONS, *REDUCERS, "cast", "extent", "inf", "nan"})


class ExprParser:
    """Recursive descent with one token of look-ahead; operators by precedence climbing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._next = 0
        self._nodes = 0
        self._nesting = 0
        self._heights: dict[int, int] = {}
        """The height of each node that is part of the tree, or about to be, by the node's ``id``."""

    def _expr(self, above: int) -> Expr:
        self._enter()
        left, is_comparison = self._operand(), False
        while (level := PRECEDENCE.get(self._peek.text, 0)) > above and self._peek.kind == "symbol":
            operator = self._take()
            right = self._expr(level)
            if operator.text in COMPARISONS and is_comparison:
                self._refuse(operator, "comparisons do not chain", "join them by &, as in (a < b) & (b < c)")
            is_comparison = operator.text in COMPARISONS
            left = self._count(Binary(operator.text, left, right, operator.at))
        self._nesting -= 1
        return left

    def _operand(self) -> Expr:
        token = self._peek
        if token.text == "-":
            self._take()
            if self._peek.kind == "number" or self._peek.text == "inf":
                return self._count(Const(-self._number(self._take()), token.at))
            return self._count(Neg(self._expr(NEGATION), token.at))
        if token.text == "(":
            self._take()
            inner = self._expr(0)
            self._expect(")", ") to close the parenthesis")
            return inner
        if token.kind == "number" or token.text == "inf":
            return self._count(Const(self._number(self._take()), token.at))
        if token.kind != "name":
            remedy = "a number, axis, tensor[...] or function(...)"
            self._refuse(token, f"{self._shown()} in place of an operand", remedy)
        self._enter()
        named = self._named(self._take())
        self._nesting -= 1
        return named

    def _enter(self) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._refuse(self._peek, f"nested deeper than {MAX_NESTING} levels", "use a stage for a part of it")

    def _named(self, token: Token) -> Expr:
        name = token.text
        if self._peek.text == "[":
            self._check_name(token)
            self._take()
            return self._read(token)
        if self._peek.text != "(":
            self._check_name(token)
            return self._count(Axis(name, token.at))
        if name in ("cast", "extent"):
            return self._special(token)
        if name in REDUCERS and name not in FUNCTIONS:
            self._refuse(token, f"{name} is inside an expression", STAGE_OF_ITS_OWN)
        if name not in FUNCTIONS:
            known = ", ".join(sorted({*FUNCTIONS, "cast", "extent"}))
            remedy = FUNCTIONS_OF_OTHERS.get(name, f"one of: {known}; a tensor is read as {name}[...]")
            self._refuse(token, f"{name} is not a function", remedy)
        self._take()
        args = self._arguments(")")
        if len(args) != FUNCTIONS[name]:
            is_reducer = name in REDUCERS and all(isinstance(arg, Axis) for arg in args)
            remedy = STAGE_OF_ITS_OWN if is_reducer else "correct the call"
            count = FUNCTIONS[name]
            self._refuse(token, f"{name} takes {count} argument{'s' * (count > 1)}, got {len(args)}", remedy)
        return self._count(Call(name, args, token.at))

    def _read(self, token: Token) -> Expr:
        indices = self._arguments("]")
        for index in indices:
            if self._heights[id(index)] > MAX_INDEX_DEPTH:
                refuse(self._text, index.at, f"an index of more than {MAX_INDEX_DEPTH} levels", "a shorter sum")
        return self._count(Read(token.text, indices, token.at))

    def _special(self, token: Token) -> Expr:
        """``cast(x, dtype)`` and ``extent(axis)``: what stands in them is not all an expression."""
        self._take()
        if token.text == "extent":
            name = self._name("the name of an axis")
            if self._peek.text == "[":
                remedy = "extent(k) is the size of the axis k; sizes that depend on data are not supported"
                self._refuse(name, f"{name.text} is a tensor here", remedy)
            self._expect(")", ") after the axis")
            return self._count(Extent(name.text, token.at))
        operand = self._expr(0)
        self._expect(",", ", and a dtype, as in cast(x[m], float32)")
        dtype = self._name("a dtype", reserved=True)
        if dtype.text not in DTYPES:
            self._refuse(dtype, f"{dtype.text} is not a dtype", f"one of: {', '.join(DTYPES)}")
        self._expect(")", ") after the dtype")
        return self._count(Cast(operand, dtype.text, token.at))

    def _arguments(self, close: str) -> tuple[Expr, ...]:
        args: list[Expr] = []
        while self._peek.text != close:
            if args:
                self._expect(",", f", or {close}")
            args.append(self._expr(0))
        self._take()
        return tuple(args)

    def _number(self, token: Token) -> int | float:
        if token.text == "inf":
            return math.inf
        value = int(token.text) if token.text.isdigit() else float(token.text)
        if isinstance(value, float) and math.isinf(value):
            self._refuse(token, f"{token.text} is too large", "write inf for infinity")
        if isinstance(value, int) and value >= 2**63:
            self._refuse(token, f"{token.text} is too large for an integer", "below 2**63, or a float such as 1e20")
        return value

    def _count(self, node: Expr) -> Expr:
        """The node, once the tree with it is small enough."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            refuse(self._text, node.at, f"more than {MAX_NODES} operations and operands", "split the program")
        below = () if isinstance(node, Read) else children(node)
        height = 1 + max((self._heights[id(child)] for child in below), default=0)
        if height > MAX_DEPTH:
            remedy = "join parts of a long sum by parentheses, or use a stage for a part"
            refuse(self._text, node.at, f"an expression of more than {MAX_DEPTH} levels", remedy)
        self._heights[id(node)] = height
        return node

    # -- tokens ---------------------------------------------------------------------------------------------------
    @property
    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._peek
        self._next += token.kind != "eof"
        return token

    def _expect(self, text: str, what: str) -> None:
        if self._peek.text != text:
            self._refuse(self._peek, f"{self._shown()} in place of {text}", f"expected {what}")
        self._take()

    def _name(self, what: str, reserved: bool = False) -> Token:
        if self._peek.kind != "name":
            self._refuse(self._peek, f"{self._shown()} in place of a name", f"expected {what}")
        if not reserved:
            self._check_name(self._peek)
        return self._take()

    def _check_name(self, token: Token) -> None:
        if token.text == "nan":
            self._refuse(token, "nan is not a constant here", "a number, or inf")
        if token.text in RESERVED:
            kind = "a number" if token.text == "inf" else "a function"
            self._refuse(token, f"{token.text} is {kind}, not a name", "call it, or choose another name")

    def _skip_ends(self) -> None:
        while self._peek.kind == "end":
            self._take()

    def _shown(self) -> str:
        return repr(self._peek.text) if self._peek.kind not in ("eof", "end") else "the end of the stage"

    def _refuse(self, token: Token, problem: str, remedy: str) -> NoReturn:
        refuse(self._text, token.at, problem, remedy)
