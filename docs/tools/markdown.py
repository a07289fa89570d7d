"""Markdown from values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; pipes and line breaks in cells are spelled so that they stay in their cell."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def code(value: object) -> str:
    return f"`{value}`"


def prose(text: str | None) -> str:
    """A docstring as paragraphs: reStructuredText's double backquotes become single ones."""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.cleandoc(text or "")).strip()


def sentence(text: str | None) -> str:
    """A docstring's paragraphs on one line."""
    return " ".join(prose(text).split())


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("\n", " ")
