"""The notation of programs: text to stages, with errors that show the line and a caret under the column.

A program is a list of stages, parted by ``;`` or new lines (a line inside brackets goes on)::

    top[m] = max(n) x[m, n]
    e[m, n] = exp(x[m, n] - top[m])
    out[m, n] = e[m, n] / extent(n)

It is parsed, never executed. Work is bounded: the text by MAX_TEXT characters, the tree by MAX_NODES nodes, its height
by MAX_DEPTH levels, so that whoever walks it may recurse. Whatever is accepted is accepted again as it prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from tuner.errors import InvalidInput
from tuner.program.language.expr import PRECEDENCE, REDUCERS, Expr, text_of
from tuner.program.language.expr_parser import MAX_DEPTH, MAX_INDEX_DEPTH, MAX_NESTING, MAX_NODES, RESERVED, ExprParser
from tuner.program.language.hints import SCATTER, WORDS_OF_OTHERS
from tuner.program.language.tokens import MAX_NAME, MAX_TEXT, Token, refuse

__all__ = [
    "MAX_DEPTH",
    "MAX_INDEX_DEPTH",
    "MAX_NAME",
    "MAX_NESTING",
    "MAX_NODES",
    "MAX_STAGES",
    "MAX_TEXT",
    "RESERVED",
    "Stage",
    "parse_stages",
    "refuse",
]

MAX_STAGES = 32
_UPDATES = ("+", "-", "*", "/", "//", "%", "&", "|", "<<", ">>")


@dataclass(frozen=True, slots=True)
class Stage:
    """``tensor[axes] = [reducer(reduce_axes)] body``. ``at``: its offset in the text, no part of its value."""

    tensor: str
    axes: tuple[str, ...]
    body: Expr
    reducer: str | None = None
    reduce_axes: tuple[str, ...] = ()
    at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        reduction = f"{self.reducer}({', '.join(self.reduce_axes)}) " if self.reducer else ""
        return f"{self.tensor}[{', '.join(self.axes)}] = {reduction}{text_of(self.body)}"


def parse_stages(text: object) -> tuple[Stage, ...]:
    """The stages of a program's text. Raises InvalidInput on field ``program`` with line, column and a caret."""
    if not isinstance(text, str):
        raise InvalidInput("program", f"{type(text).__name__} is not text", "as in out[m] = sum(k) x[m, k]")
    if len(text) > MAX_TEXT:
        raise InvalidInput("program", f"a program of {len(text)} characters", f"at most {MAX_TEXT}")
    return _Parser(text).stages()


class _Parser(ExprParser):
    """Stages, one after the other."""

    def stages(self) -> tuple[Stage, ...]:
        stages: list[Stage] = []
        self._skip_ends()
        while self._peek.kind != "eof":
            if len(stages) == MAX_STAGES:
                self._refuse(self._peek, f"more than {MAX_STAGES} stages", "split the program")
            stages.append(self._stage())
            if self._peek.kind not in ("end", "eof"):
                self._refuse_rest(self._peek)
            self._heights.clear()
            self._skip_ends()
        if not stages:
            refuse(self._text, 0, "the program is empty", "as in out[m] = sum(k) x[m, k]")
        return tuple(stages)

    def _stage(self) -> Stage:
        token = self._name("a tensor's name, as in out[m, n] = ...")
        tensor = token.text
        self._expect("[", f"the axes of {tensor}, as in {tensor}[m, n]; {tensor}[] is a single number")
        axes = self._axes("]")
        if self._peek.text in _UPDATES and self._tokens[self._next + 1].text == "=":
            remedy = f"{tensor}[...] = sum(k) ... adds over an axis; a further stage has a tensor of its own"
            self._refuse(self._peek, f"{self._peek.text}= updates a tensor in place", remedy)
        self._expect("=", "= and an expression")
        reducer: str | None = None
        reduce_axes: tuple[str, ...] = ()
        if self._peek.text in REDUCERS and self._is_reducer():
            reducer = self._take().text
            self._expect("(", f"the axes of {reducer}, as in {reducer}(k) x[m, k]")
            reduce_axes = self._axes(")", reducer)
        return Stage(tensor, axes, self._expr(0), reducer, reduce_axes, token.at)

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

    def _axes(self, close: str, reducer: str = "") -> tuple[str, ...]:
        """Names of axes up to ``close``: of a stage, or of a ``reducer``, which has at least one."""
        axes: list[str] = []
        opening = self._peek
        while self._peek.text != close:
            if axes:
                self._expect(",", f", or {close}")
            token = self._axis_name(reducer)
            if token.text in axes:
                self._refuse(token, f"axis {token.text} is given twice", "each axis once")
            axes.append(token.text)
        if reducer and not axes:
            self._refuse(opening, "no axis is given", f"as in {reducer}(k) x[m, k]")
        self._take()
        return tuple(axes)

    def _axis_name(self, reducer: str) -> Token:
        token, after = self._peek, self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        computed = after.text in PRECEDENCE or token.kind == "number" or token.text in ("-", "(")
        if reducer and (computed or after.text in ("[", "(")):
            remedy = f"{reducer}(k) x[m, k]; where(k < 3, x[m, k], 0) leaves elements out"
            self._refuse(token, f"{reducer} takes the names of axes", remedy)
        if after.text == "[":
            self._refuse(token, "an element of a tensor says where to write: a scatter", SCATTER)
        if computed:
            remedy = "name an axis, and put the arithmetic into what is read, as in out[m] = x[m - 1]"
            self._refuse(token, "the left-hand side computes an index", remedy)
        return self._name("the name of an axis")

    def _refuse_rest(self, token: Token) -> NoReturn:
        """Say what is wrong with a token after a whole stage."""
        shown = repr(token.text)
        if token.text in WORDS_OF_OTHERS:
            self._refuse(token, f"{token.text} is not part of the notation", WORDS_OF_OTHERS[token.text])
        if token.text == "[":
            self._refuse(token, "a second pair of brackets", "all indices stand in one, as in x[m, k]")
        if token.text in (")", "]"):
            self._refuse(token, f"{shown} closes nothing", "leave it out, or open it before")
        if token.text == "=":
            self._refuse(token, "a second =", "== compares; stages are parted by ; or a new line")
        if token.text == ",":
            self._refuse(token, "',' after the end of a stage", "one expression for each stage")
        self._refuse(token, f"an operator is missing before {shown}", "as in a * b; part stages by ; or a new line")
