"""Lists that are read in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, newest first unless said otherwise; ``cursor`` asks for the next part, None at the end."""

    items: tuple[T, ...]
    cursor: str | None
