"""The notation of programs: text to stages, with errors that show the line and a caret under the column.

A program is a list of stages, parted by ``;`` or new lines (a line inside brackets goes on)::

    top[m] = max(n) x[m, n]
    e[m, n] = exp(x[m, n] - top[m])
    out[m, n] = e[m, n] / extent(n)

It is parsed, never executed. Work is bounded: the text by MAX_TEXT characters, the tree by MAX_NODES nodes and
MAX_DEPTH levels, each counted as it is read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from tuner.errors import InvalidInput
from tuner.program.dtypes import DTYPES
from tuner.program.expr import (
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
    text_of,
)

MAX_TEXT = 8000
MAX_NODES = 2000
MAX_DEPTH = 48
MAX_STAGES = 32
MAX_NAME = 40
MAX_NUMBER = 40
"""Characters of one number."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|\#[^\n]*)|(?P<end>[;\n])|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<symbol>//|<<|>>|<=|>=|==|!=|[-+*/%<>&|()\[\],=])"
)
RESERVED = frozenset({*FUNCTIONS, *REDUCERS, "cast", "extent", "inf", "nan"})


@dataclass(frozen=True, slots=True)
class Stage:
    """``tensor[axes] = [reducer(reduce_axes)] body``."""

    tensor: str
    axes: tuple[str, ...]
    body: Expr
    reducer: str | None = None
    reduce_axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        reduction = f"{self.reducer}({', '.join(self.reduce_axes)}) " if self.reducer else ""
        return f"{self.tensor}[{', '.join(self.axes)}] = {reduction}{text_of(self.body)}"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


def parse_stages(text: object) -> tuple[Stage, ...]:
    """The stages of a program's text. Raises InvalidInput on field ``program`` with line, column and a caret."""
    if not isinstance(text, str):
        raise InvalidInput("program", f"{type(text).__name__} is not text", "as in out[m] = sum(k) x[m, k]")
    if len(text) > MAX_TEXT:
        raise InvalidInput("program", f"a program of {len(text)} characters", f"at most {MAX_TEXT}")
    return _Parser(text).stages()


def refuse(text: str, at: int, problem: str, remedy: str) -> NoReturn:
    """Raise InvalidInput on field ``program`` that points at offset ``at`` of ``text``."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    column = at - start
    # A long line is shown around the column.
    first = max(0, column - 60)
    shown = "".join(char if char.isprintable() else " " for char in line[first : first + 120])
    where = f"line {text.count(chr(10), 0, at) + 1}, column {column + 1}"
    raise InvalidInput("program", f"{where}: {problem}\n    {shown}\n    {' ' * (column - first)}^\n", remedy)


class _Parser:
    """Recursive descent with one token of look-ahead; operators by precedence climbing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._lexed(text)
        self._next = 0
        self._nodes = 0
        self._depth = 0

    # -- stages ---------------------------------------------------------------------------------------------------
    def stages(self) -> tuple[Stage, ...]:
        stages: list[Stage] = []
        self._skip_ends()
        while self._peek.kind != "eof":
            if len(stages) == MAX_STAGES:
                self._refuse(self._peek, f"more than {MAX_STAGES} stages", "split the program")
            stages.append(self._stage())
            if self._peek.kind not in ("end", "eof"):
                self._refuse(self._peek, f"{self._shown()} after the end of a stage", "part stages by ; or a new line")
            self._skip_ends()
        if not stages:
            raise InvalidInput("program", "is empty", "as in out[m] = sum(k) x[m, k]")
        return tuple(stages)

    def _stage(self) -> Stage:
        tensor = self._name("a tensor's name, as in out[m, n] = ...").text
        self._expect("[", f"the axes of {tensor}, as in {tensor}[m, n]")
        axes = self._axes("]")
        self._expect("=", "= and an expression")
        reducer: str | None = None
        reduce_axes: tuple[str, ...] = ()
        if self._peek.text in REDUCERS and self._is_reducer():
            reducer = self._take().text
            self._expect("(", f"the axes of {reducer}")
            reduce_axes = self._axes(")", least=1)
        return Stage(tensor, axes, self._expr(0), reducer, reduce_axes)

    def _is_reducer(self) -> bool:
        """Whether ``max(`` or ``min(`` opens a reduction ``max(k) ...`` and not the function ``max(a, b)``.

        A reduction's parentheses hold plain names and are followed by an operand.
        """
        if self._peek.text in ("sum", "prod"):
            return True
        index = self._next + 1
        if self._tokens[index].text != "(":
            return True
        names, index = 0, index + 1
        while (token := self._tokens[index]).text != ")":
            if token.kind != "name" and token.text != ",":
                return False
            names += token.kind == "name"
            index += 1
        after = self._tokens[index + 1]
        # max(a, b) - 1 is a difference; with one name, or three, it could not be a call.
        return after.kind in ("name", "number") or after.text == "(" or (after.text == "-" and names != 2)

    def _axes(self, close: str, least: int = 0) -> tuple[str, ...]:
        axes: list[str] = []
        opening = self._peek
        while self._peek.text != close:
            if axes:
                self._expect(",", f", or {close}")
            token = self._name("the name of an axis")
            if token.text in axes:
                self._refuse(token, f"axis {token.text} is given twice", "each axis once")
            axes.append(token.text)
        if len(axes) < least:
            self._refuse(opening, "no axis is given", "as in sum(k)")
        self._take()
        return tuple(axes)

    # -- expressions ----------------------------------------------------------------------------------------------
    def _expr(self, above: int) -> Expr:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(self._peek, f"nested deeper than {MAX_DEPTH} levels", "use a stage for a part of it")
        left, is_comparison = self._operand(), False
        while (level := PRECEDENCE.get(self._peek.text, 0)) > above and self._peek.kind == "symbol":
            operator = self._take()
            right = self._expr(level)
            if operator.text in COMPARISONS and is_comparison:
                self._refuse(operator, "comparisons do not chain", "join them by &, as in (a < b) & (b < c)")
            is_comparison = operator.text in COMPARISONS
            left = self._count(Binary(operator.text, left, right, operator.at))
        self._depth -= 1
        return left

    def _operand(self) -> Expr:
        token = self._peek
        if token.text == "-":
            self._take()
            if self._peek.kind == "number" or self._peek.text == "inf":
                number = self._number(self._take())
                return self._count(Const(-number.value, token.at))
            return self._count(Neg(self._expr(NEGATION), token.at))
        if token.text == "(":
            self._take()
            inner = self._expr(0)
            self._expect(")", ") to close the parenthesis")
            return inner
        if token.kind == "number" or token.text == "inf":
            return self._count(self._number(self._take()))
        if token.kind == "name":
            return self._named(self._take())
        self._refuse(token, f"{self._shown()} in place of an operand", "a number, axis, tensor[...] or function(...)")

    def _named(self, token: _Token) -> Expr:
        name = token.text
        if self._peek.text == "[":
            self._check_name(token)
            self._take()
            return self._count(Read(name, self._arguments("]"), token.at))
        if self._peek.text != "(":
            if name in RESERVED:
                self._refuse(token, f"{name} is a function", f"call it, as in {name}(...)")
            self._check_name(token)
            return self._count(Axis(name, token.at))
        if name in ("cast", "extent"):
            return self._special(token)
        if name in REDUCERS and name not in FUNCTIONS:
            self._refuse(token, f"{name} is inside an expression", "a reducer stands first and takes all of its stage")
        if name not in FUNCTIONS:
            known = ", ".join(sorted({*FUNCTIONS, "cast", "extent"}))
            self._refuse(token, f"{name} is not a function", f"one of: {known}; a tensor is read as {name}[...]")
        self._take()
        args = self._arguments(")")
        if len(args) != FUNCTIONS[name]:
            self._refuse(token, f"{name} takes {FUNCTIONS[name]} arguments, got {len(args)}", "correct the call")
        return self._count(Call(name, args, token.at))

    def _special(self, token: _Token) -> Expr:
        """``cast(x, dtype)`` and ``extent(axis)``: what stands in them is not all an expression."""
        self._take()
        if token.text == "extent":
            name = self._name("the name of an axis")
            self._expect(")", ")")
            return self._count(Extent(name.text, token.at))
        operand = self._expr(0)
        self._expect(",", ", and a dtype, as in cast(x[m], float32)")
        dtype = self._name("a dtype", reserved=True)
        if dtype.text not in DTYPES:
            self._refuse(dtype, f"{dtype.text} is not a dtype", f"one of: {', '.join(DTYPES)}")
        self._expect(")", ")")
        return self._count(Cast(operand, dtype.text, token.at))

    def _arguments(self, close: str) -> tuple[Expr, ...]:
        args: list[Expr] = []
        while self._peek.text != close:
            if args:
                self._expect(",", f", or {close}")
            args.append(self._expr(0))
        self._take()
        return tuple(args)

    def _number(self, token: _Token) -> Const:
        if token.text == "inf":
            return Const(math.inf, token.at)
        if len(token.text) > MAX_NUMBER:
            self._refuse(token, f"a number of {len(token.text)} characters", f"at most {MAX_NUMBER}")
        value = int(token.text) if token.text.isdigit() else float(token.text)
        if isinstance(value, float) and math.isinf(value):
            self._refuse(token, f"{token.text} is too large", "write inf for infinity")
        if isinstance(value, int) and value >= 2**63:
            self._refuse(token, f"{token.text} is too large for an integer", "below 2**63, or a float such as 1e20")
        return Const(value, token.at)

    # -- tokens ---------------------------------------------------------------------------------------------------
    def _lexed(self, text: str) -> list[_Token]:
        tokens, at, depth = [], 0, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                refuse(text, at, f"{text[at]!r} is not part of the notation", "names, numbers, operators, ( ) [ ] ,")
            kind = str(match.lastgroup)
            depth += (match.group() in ("(", "[")) - (match.group() in (")", "]"))
            if kind != "space" and not (match.group() == "\n" and depth > 0):
                tokens.append(_Token(kind, match.group(), at))
            at = match.end()
        return [*tokens, _Token("eof", "", len(text))]

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek
        self._next += token.kind != "eof"
        return token

    def _expect(self, text: str, what: str) -> None:
        if self._peek.text != text or self._peek.kind == "eof":
            self._refuse(self._peek, f"{self._shown()} in place of {text}", f"expected {what}")
        self._take()

    def _name(self, what: str, reserved: bool = False) -> _Token:
        if self._peek.kind != "name":
            self._refuse(self._peek, f"{self._shown()} in place of a name", f"expected {what}")
        if not reserved:
            self._check_name(self._peek)
        return self._take()

    def _check_name(self, token: _Token) -> None:
        if token.text in RESERVED:
            self._refuse(token, f"{token.text} is a function, not a name", "another name")
        if len(token.text) > MAX_NAME:
            self._refuse(token, f"a name of {len(token.text)} characters", f"at most {MAX_NAME}")

    def _skip_ends(self) -> None:
        while self._peek.kind == "end":
            self._take()

    def _count(self, node: Expr) -> Expr:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            refuse(self._text, node.at, f"more than {MAX_NODES} operations and operands", "split the program")
        return node

    def _shown(self) -> str:
        return repr(self._peek.text) if self._peek.kind not in ("eof", "end") else "the end of the stage"

    def _refuse(self, token: _Token, problem: str, remedy: str) -> NoReturn:
        refuse(self._text, token.at, problem, remedy)
