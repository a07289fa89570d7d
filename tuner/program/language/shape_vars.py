"""Shape variables, the values they take, and the instances that occur."""

from __future__ import annotations

import keyword
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import InvalidInput, shown
from tuner.program.language.dims import DimExpr, DimLike

JsonObject = dict[str, Any]
MAX_POINTS = 1_000_000
"""The most values that one shape variable may take."""
MAX_NAME = 40
"""Characters of a shape variable's name."""


@dataclass(frozen=True, slots=True)
class ShapeVar:
    """A size that is known only at run time, and the values it can take: ``ShapeVar("T", range(1, 129))``.

    A ``range`` stays one, with its step: ``range(8, 1025, 8)`` takes no more memory than ``range(1, 129)``.
    """

    name: str
    values: range | tuple[int, ...]

    def __init__(self, name: str, values: Iterable[int]) -> None:
        if not is_name(name):
            raise InvalidInput(
                "shape_vars",
                f"{shown(name)} is not a name",
                f"a letter, then letters, digits or _, at most {MAX_NAME}; not weight",
            )
        field = f"shape_vars.{name}"
        kept = _ascending(values) if isinstance(values, range) else _sizes(field, values)
        count = _count(kept)
        if count == 0:
            raise InvalidInput(field, "the range is empty", "min must not be above max; values must not be empty")
        if kept[0] < 0:
            raise InvalidInput(field, f"the smallest value is {kept[0]}", "extents are 0 or more")
        if count > MAX_POINTS:
            raise InvalidInput(field, f"{count} values", f"at most {MAX_POINTS}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", kept)

    @property
    def min(self) -> int:
        return self.values[0]

    @property
    def max(self) -> int:
        return self.values[-1]

    @property
    def count(self) -> int:
        """How many values it takes."""
        return len(self.values)

    def takes(self, value: int) -> bool:
        """Whether ``value`` is one of its values."""
        if isinstance(self.values, range):
            return value in self.values
        place = bisect_left(self.values, value)
        return place < len(self.values) and self.values[place] == value

    @property
    def expr(self) -> DimExpr:
        return DimExpr.var(self.name)

    def __add__(self, other: DimLike) -> DimExpr:
        return self.expr + other

    def __sub__(self, other: DimLike) -> DimExpr:
        return self.expr - other

    def __rsub__(self, other: DimLike) -> DimExpr:
        return DimExpr.of(other) - self.expr

    def __mul__(self, other: DimLike) -> DimExpr:
        return self.expr * other

    def __floordiv__(self, divisor: int) -> DimExpr:
        return self.expr // divisor

    def __mod__(self, divisor: int) -> DimExpr:
        return self.expr % divisor

    __radd__ = __add__
    __rmul__ = __mul__

    def to_json(self) -> JsonObject:
        if not isinstance(self.values, range):
            return {"values": list(self.values)}
        return {"min": self.min, "max": self.max} | ({"step": self.values.step} if self.values.step > 1 else {})


def _ascending(values: range) -> range:
    """``values`` from the least; a single one in steps of 1."""
    upward = values if values.step > 0 else values[::-1]
    return range(upward.start, upward.start + 1) if _count(upward) == 1 else upward


def _count(values: range | tuple[int, ...]) -> int:
    """len() of a range cannot count beyond 63 bits."""
    return max(0, -((values.start - values.stop) // values.step)) if isinstance(values, range) else len(values)


def _sizes(field: str, values: object) -> tuple[int, ...]:
    """``values`` sorted, each once. Raises InvalidInput unless they are integers."""
    sizes = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
    if sizes is None or any(isinstance(value, bool) or not isinstance(value, int) for value in sizes):
        raise InvalidInput(field, f"{shown(values)} are not sizes", "integers, as in range(1, 129) or [5, 24, 43]")
    return tuple(sorted(set(sizes)))


@dataclass(frozen=True, slots=True)
class WorkloadInstance:
    """One shape that occurs: a value for each shape variable (sorted by name), and how much it weighs."""

    values: tuple[tuple[str, int], ...]
    weight: float = 1.0

    @staticmethod
    def of(values: Mapping[str, int], weight: float = 1.0) -> WorkloadInstance:
        return WorkloadInstance(tuple(sorted(values.items())), float(weight))

    @property
    def shape(self) -> dict[str, int]:
        return dict(self.values)

    def to_json(self) -> JsonObject:
        return {**self.shape, "weight": self.weight}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> WorkloadInstance:
        """Read what ``to_json`` wrote."""
        values = dict(data)
        return WorkloadInstance.of(values, values.pop("weight", 1.0))

    def __str__(self) -> str:
        return format_shape(self.shape)


def is_name(name: object) -> bool:
    """Whether dims, instances and URLs can tell the name from everything else that they hold."""
    plain = isinstance(name, str) and len(name) <= MAX_NAME and name.isascii() and name.isidentifier()
    return plain and not keyword.iskeyword(str(name)) and name != "weight"


def format_shape(values: Mapping[str, int]) -> str:
    """``T=37,S=4``: how a shape is written in URLs, tables and logs."""
    return ",".join(f"{name}={values[name]}" for name in sorted(values))
