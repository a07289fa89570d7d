"""Ranges as they are written in queries and options: ``T=1..512,S=4``, ``T=8..512:8``, ``T=1|2|4|8``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.errors import InvalidInput, shown
from tuner.program.language.dims import MAX_DIM
from tuner.program.language.spans import MAX_LISTED, Span, ends, span_of

Ranges = Mapping[str, Span]
"""The sizes of each shape variable or symbol, by name, or the least and the largest alone."""

FORM = "as in T=1..512, T=1..512,S=4, T=8..512:8 (in steps of 8) or T=1|2|4|8"
_SIZE = r"\s*(\d{1,10})\s*"
_NAMED = re.compile(r"\s*([^\W\d]\w*)\s*=(.*)", re.ASCII | re.DOTALL)
_SPAN = re.compile(rf"{_SIZE}(?:\.\.{_SIZE}(?::{_SIZE})?)?", re.ASCII)
_LISTED = re.compile(rf"{_SIZE}(?:\|{_SIZE})+", re.ASCII)


def parse_ranges(text: str) -> dict[str, Span]:
    """``T=1..512,S=4`` as ``{"T": (1, 512), "S": (4, 4)}``. Raises InvalidInput on field ``range``."""
    result: dict[str, Span] = {}
    for part in filter(str.strip, text.split(",")):
        match = _NAMED.fullmatch(part)
        span = _parsed(match[2]) if match and match[1] not in result else None
        if match is None or span is None:
            raise InvalidInput("range", f"{shown(part)} does not give one variable a range", FORM)
        result[match[1]] = span
    check_ranges(result)
    return result


def _parsed(text: str) -> Span | None:
    if _LISTED.fullmatch(text):
        return span_of({int(size) for size in text.split("|")})
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    low, high = int(match[1]), int(match[2] or match[1])
    return _stepped(low, high, int(match[3])) if match[3] else (low, high)


def _stepped(low: int, high: int, step: int) -> Span | None:
    return range(low, high + 1, step) if step > 0 and low <= high else None


def check_ranges(ranges: Ranges) -> None:
    """Raise InvalidInput on field ``range`` unless each is of sizes, the lower first, and listed ones are few."""
    for name, span in ranges.items():
        low, high = ends(span) if span else (0, -1)
        if not 0 <= low <= high <= MAX_DIM:
            problem = f"{shown(name)} from {shown(low)} to {shown(high)} is no range"
            raise InvalidInput("range", problem, f"sizes from 0 to {MAX_DIM}, the lower first")
        if isinstance(span, frozenset) and len(span) > MAX_LISTED:
            problem = f"{len(span)} sizes of {shown(name)} are listed"
            raise InvalidInput("range", problem, f"at most {MAX_LISTED}; a range may have more")


def format_ranges(ranges: Ranges) -> str:
    """``T=1..512,S=4``; ``any size`` where there is nothing to give a range of. A step of 1 is left out."""
    return ",".join(sorted(f"{name}={_text(span)}" for name, span in ranges.items())) or "any size"


def _text(span: Span) -> str:
    low, high = ends(span)
    if isinstance(span, frozenset):
        return "|".join(map(str, sorted(span)))
    step = f":{span.step}" if isinstance(span, range) and span.step > 1 else ""
    return f"{low}..{high}{step}" if low != high else f"{low}"
