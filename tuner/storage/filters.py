"""The language that lists are searched in: words, and ``field:value`` for a few fields.

``bert tag:nightly -state:failed owner:ada name:"dense layer"``: all of it must hold. A word is looked for in the name,
the owner and the tags, and at the start of the id; ``-`` before a term finds what lacks it; quotation marks hold spaces
together. What stands before a colon and is no field is part of a word: names may have colons.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.errors import InvalidInput

FIELDS = ("name", "id", "owner", "tag", "state", "device", "note")
MAX_TERMS = 20
_TERM = re.compile(r'(?P<absent>-?)(?:(?P<field>[a-z]+):)?(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+))')
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=+-]{0,49}")
MAX_TAGS, MAX_NOTE = 20, 4000


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: ``field`` holds ``text``, or any of those that words are looked for in; or it does not."""

    text: str
    field: str | None = None
    absent: bool = False


def parse_filter(text: str) -> tuple[Term, ...]:
    """The terms of a search. Raises InvalidInput on field ``q`` for more than MAX_TERMS."""
    terms = []
    for found in _TERM.finditer(text):
        value = found["quoted"] if found["quoted"] is not None else found["plain"]
        field, absent = found["field"], bool(found["absent"])
        if field is not None and field not in FIELDS:
            field, value = None, f"{field}:{value}"
        if value:
            terms.append(Term(value, field, absent))
    if len(terms) > MAX_TERMS:
        raise InvalidInput("q", f"it has {len(terms)} terms", f"{MAX_TERMS} terms at most")
    return tuple(terms)


def checked_tags(tags: list[str]) -> tuple[str, ...]:
    """Tags, each once, in their order. Raises InvalidInput on field ``tags``."""
    for tag in tags:
        if _TAG.fullmatch(tag) is None:
            form = "1 to 50 of A-Z a-z 0-9 . _ : / = + -, the first a letter or a digit"
            raise InvalidInput("tags", f"{tag[:60]!r} is not a tag", form)
    result = tuple(dict.fromkeys(tags))
    if len(result) > MAX_TAGS:
        raise InvalidInput("tags", f"{len(result)} tags are too many", f"{MAX_TAGS} at most")
    return result
