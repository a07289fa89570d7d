"""Ages on a command line: ``30d``, ``12h``."""

from __future__ import annotations

import re
from typing import Any

import click

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
LONGEST_S = 1e10
"""About three hundred years."""
_AGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", re.ASCII)


class Age(click.ParamType[float]):
    """A time that has passed, in seconds: a number and one of s, m, h, d, w."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _AGE.fullmatch(str(value))
        seconds = float(match[1]) * UNITS_S[match[2]] if match else LONGEST_S + 1
        if seconds > LONGEST_S:
            self.fail(f"{str(value)[:40]!r} is not an age: a number and s, m, h, d or w, as in 30d", param, ctx)
        return seconds
