"""Keyset cursors: opaque text that says after which row a page begins."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from tuner.errors import InvalidInput
from tuner.storage.jobs import Page

T = TypeVar("T")
R = TypeVar("R")

MAX_NUMBER = 2**62


def opaque(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(cursor: str) -> str:
    """What ``opaque`` was given; empty for what it never gave."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
    except (binascii.Error, UnicodeError):
        return ""


def encode(listing: str, number: int) -> str:
    return opaque(f"{listing}:{number}")


def decode(listing: str, cursor: str | None) -> int | None:
    """The number that ``encode`` was given. Raises InvalidInput unless it is of the same listing."""
    if cursor is None:
        return None
    name, _, number = text_of(cursor).partition(":")
    if name != listing or not number.isdecimal() or len(number) > 18:
        raise InvalidInput("cursor", f"{cursor[:80]!r} is not a cursor of this list", "take it from a page")
    return int(number)


def page(listing: str, rows: Sequence[R], limit: int, number: Callable[[R], int], item: Callable[[R], T]) -> Page[T]:
    """A page of at most ``limit`` items from up to ``limit + 1`` rows: the extra one says that there is more."""
    kept = rows[:limit]
    cursor = encode(listing, number(kept[-1])) if len(rows) > limit else None
    return Page(tuple(item(row) for row in kept), cursor)


def checked(limit: int) -> int:
    """Raises InvalidInput unless ``limit`` is at least 1."""
    if limit < 1:
        raise InvalidInput("limit", f"{limit} is not a number of rows", "1 or more")
    return min(limit, MAX_NUMBER)


def position(after: int) -> int:
    """``after`` as a number that the databases can hold: no row has a higher one, nor one below 0."""
    return max(0, min(after, MAX_NUMBER))
