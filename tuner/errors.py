"""Errors that reach a user. Each says which input was wrong, what was wrong with it, and what would do."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

MAX_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

MAX_MEANT, NEAR = 3, 0.6
"""Names that are suggested for a word, and how similar they must be to it (difflib)."""

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What would move a terminal's cursor, set its title or turn text around; and halves of characters."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = MAX_SHOWN


class ShapewrightError(Exception):
    """Base of every error that Shapewright raises on purpose."""


class InvalidInput(ShapewrightError, ValueError):
    """An input that can never work.

    ``field`` is a dotted path into what was given (``workload.args.m``), ``problem`` says what is wrong with the
    value there, ``remedy`` says what would be accepted.
    """

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        # A problem of several lines shows a text and a caret: the remedy has a line of its own below them.
        closing = (f"\n  {remedy}" if "\n" in problem else f" ({remedy})") if remedy else ""
        super().__init__((f"{field}: " if field else "") + problem + closing)
        self.field = field
        self.problem = problem
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str, str, str]]:
        return type(self), (self.field, self.problem, self.remedy)

    def within(self, prefix: str) -> InvalidInput:
        """A copy of this error, seen from one level further out: ``args.m`` becomes ``workload.args.m``."""
        return InvalidInput(f"{prefix}.{self.field}" if self.field else prefix, self.problem, self.remedy)


class IllegalKernel(ShapewrightError, ValueError):
    """A micro-kernel that the hardware or the rule cannot carry; the message holds the need and the limit."""


class MachineFailed(ShapewrightError):
    """This machine could not do it: it lacks a linker, or room on a disk. Whatever it was done for is not to blame."""


class GpuFailed(ShapewrightError):
    """There is no GPU that a library runs on, or its driver did not do what was asked of it."""


def shown(value: object) -> str:
    """A wrong value as a message repeats it, however long or deep it is."""
    text = _repr.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def did_you_mean(word: object, names: Iterable[str], synonyms: Mapping[str, Sequence[str]] | None = None) -> str:
    """``did you mean dense? ``, to begin a remedy with, for a word that none of ``names`` is; empty if none is near.

    ``synonyms``: other words for a name. Case, hyphens and underscores do not count.
    """
    if not isinstance(word, str) or len(word) > MAX_SHOWN:
        return ""
    known: dict[str, dict[str, None]] = {}
    for name in names:
        for each in (name, *(synonyms or {}).get(name, ())):
            known.setdefault(_plain(each), {})[name] = None
    near = [_plain(word)] if _plain(word) in known else get_close_matches(_plain(word), known, MAX_MEANT, NEAR)
    meant = list(dict.fromkeys(name for each in near for name in known[each]))[:MAX_MEANT]
    return f"did you mean {' or '.join(meant)}? " if meant else ""


def _plain(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "").replace(" ", "")


def clean(text: str, *, as_json: bool = False) -> str:
    """A text that may come from elsewhere, as a terminal can show it: what would control that is spelled out."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}" if as_json else ascii(found[0])[1:-1], text)
