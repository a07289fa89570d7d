"""Ranges as they are written in queries and options: ``T=1..512,S=4``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.errors import InvalidInput, shown
from tuner.program.dims import MAX_DIM

Ranges = Mapping[str, tuple[int, int]]
"""By shape variable or symbol the least and the largest value, both included."""

FORM = "as in T=1..512, or T=1..512,S=4"
_PART = re.compile(r"\s*([^\W\d]\w*)\s*=\s*(\d{1,10})\s*(?:\.\.\s*(\d{1,10})\s*)?", re.ASCII)


def parse_ranges(text: str) -> dict[str, tuple[int, int]]:
    """``T=1..512,S=4`` as ``{"T": (1, 512), "S": (4, 4)}``. Raises InvalidInput on field ``range``."""
    result: dict[str, tuple[int, int]] = {}
    for part in filter(str.strip, text.split(",")):
        match = _PART.fullmatch(part)
        if match is None or match[1] in result:
            raise InvalidInput("range", f"{shown(part)} does not give one variable a range", FORM)
        low = int(match[2])
        result[match[1]] = (low, int(match[3]) if match[3] else low)
    check_ranges(result)
    return result


def check_ranges(ranges: Ranges) -> None:
    """Raise InvalidInput on field ``range`` unless each is of sizes, the lower first."""
    for name, (low, high) in ranges.items():
        if not 0 <= low <= high <= MAX_DIM:
            problem = f"{shown(name)} from {shown(low)} to {shown(high)} is no range"
            raise InvalidInput("range", problem, f"sizes from 0 to {MAX_DIM}, the lower first")


def format_ranges(ranges: Ranges) -> str:
    """``T=1..512,S=4``; ``any size`` where there is nothing to give a range of."""
    parts = (f"{name}={low}..{high}" if low != high else f"{name}={low}" for name, (low, high) in ranges.items())
    return ",".join(sorted(parts)) or "any size"
