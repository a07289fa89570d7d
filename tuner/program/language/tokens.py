"""Tokens of the notation, and errors that show the line and a caret under the column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from tuner.errors import InvalidInput
from tuner.program.language.effort import spend

MAX_TEXT = 8000
"""Characters of a program."""
MAX_NAME = 40
MAX_NUMBER = 40
"""Characters of one name, and of one number."""
_BEFORE, _SHOWN = 60, 120
"""Characters of a long line that are shown before the column, and in all."""

_TOKEN = re.compile(
    r"(?P<space>[ \t\r]+|\#[^\n\x00\ud800-\udfff]*)|(?P<end>[;\n])"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<symbol>//|<<|>>|<=|>=|==|!=|[-+*/%<>&|()\[\],=])"
)
_NO_OPERATORS = {
    "**": "x * x for a square, exp(y * log(x)) for others",
    "&&": "conditions are joined by &",
    "||": "conditions are joined by |",
}
_NO_CHARACTERS = {
    "^": "x * x for a square; the bits of integers are joined by & and |",
    "~": "where(condition, 0, 1) for a negation",
    "!": "!= compares; where(condition, 0, 1) for a negation",
    "?": "where(condition, a, b)",
    "@": "sum(k) x[m, k] * y[k, n]",
    ".": "a function is called by its name alone, as in exp(x[m])",
    ":": "each axis is named, as in x[m, n]; slices are not part of the notation",
}


@dataclass(frozen=True, slots=True)
class Token:
    """``kind``: name, number, symbol, end (of a stage) or eof. ``at``: its offset in the text."""

    kind: str
    text: str
    at: int


def tokens_of(text: str) -> list[Token]:
    """The tokens, the last one of kind eof; a new line inside brackets ends nothing. Raises InvalidInput."""
    spend(len(text))
    tokens, at, depth = [], 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            allowed = "names of ASCII letters, numbers, operators, ( ) [ ] and ,"
            refuse(text, at, f"{text[at]!r} is not part of the notation", _NO_CHARACTERS.get(text[at], allowed))
        if (pair := text[at : at + 2]) in _NO_OPERATORS:
            refuse(text, at, f"{pair} is not an operator", _NO_OPERATORS[pair])
        kind, result = str(match.lastgroup), match.group()
        longest = {"name": MAX_NAME, "number": MAX_NUMBER}.get(kind)
        if longest is not None and len(result) > longest:
            refuse(text, at, f"a {kind} of {len(result)} characters", f"at most {longest}")
        depth += (result in ("(", "[")) - (result in (")", "]"))
        if kind != "space" and not (result == "\n" and depth > 0):
            tokens.append(Token(kind, result, at))
        at = match.end()
    return [*tokens, Token("eof", "", len(text))]


def refuse(text: str, at: int, problem: str, remedy: str) -> NoReturn:
    """Raise InvalidInput on field ``program`` that points at offset ``at`` of ``text``."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : end if end >= 0 else len(text)]
    column = at - start
    first = max(0, column - _BEFORE)
    # What has no width, or moves the cursor, would put the caret elsewhere.
    shown = "".join(char if char.isprintable() else " " for char in line[first : first + _SHOWN])
    where = f"line {text.count(chr(10), 0, at) + 1}, column {column + 1}"
    raise InvalidInput("program", f"{where}: {problem}\n    {shown.rstrip()}\n    {' ' * (column - first)}^", remedy)
