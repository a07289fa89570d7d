"""Relax's parts of tensors: nothing is computed, and nothing is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shapewright.models.graph import Shape
from shapewright.models.parts import part_from

Attrs = Mapping[str, Any]
SPLIT, SLICE = "split", "strided_slice"


def slice_of(call: Any, shape: Shape) -> Attrs:
    """What a ``strided_slice`` takes of a tensor of ``shape``; nothing where that is another part."""
    given = [list(each) if hasattr(each, "__len__") else [] for each in call.args[1:]]
    numbers = [[_number(each) for each in values] for values in given]
    if len(numbers) not in (3, 4) or any(len(values) != 1 for values in numbers) or numbers[3:] not in ([], [[1]]):
        return {}
    (axis,), (start,), *_ = numbers
    return part_from(shape, axis, start)


def item_of(call: Any, number: int, before: Sequence[Shape | None], shape: Shape) -> Attrs:
    """What a ``split`` of a tensor of ``shape`` gives behind parts of the shapes ``before``."""
    axis = int(call.attrs["axis"]) % len(shape)
    sizes = [None if each is None else each[axis].constant for each in before[:number]]
    known = [size for size in sizes if size is not None]
    return part_from(shape, axis, sum(known)) if len(known) == len(sizes) else {}


def _number(value: Any) -> int | None:
    """The integer that an argument is, if it is a constant."""
    value = getattr(value, "value", value)
    value = getattr(value, "value", value)
    return value if type(value) is int else None
