"""ONNX's operators that take a part of a tensor: nothing is computed, and nothing is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shapewright.models.graph import CannotLift, Shape
from shapewright.models.onnx_schemas import Call, axis_of
from shapewright.models.onnx_values import integers_of
from shapewright.models.parts import part_from

Attrs = Mapping[str, Any]


def parts_of(call: Call, outputs: Sequence[Shape | None]) -> list[Attrs] | None:
    """The attributes of each output of a node, of such shapes, none where it is another part; None for an operator that
    takes none."""
    try:
        match call.op:
            case "Split":
                return _split(call, outputs)
            case "Slice":
                return [_slice(call)]
            case "Gather" if (index := _one_index(call)) is not None:
                axis = axis_of(call.attr("axis"), len(call.shape(0)))
                return [part_from(call.shape(0), axis, index, keep=False)]
    except CannotLift:
        return [{}] * len(outputs)
    return None


def _split(call: Call, outputs: Sequence[Shape | None]) -> list[Attrs]:
    shape = call.shape(0)
    axis, start, found = axis_of(call.attr("axis"), len(shape)), 0, list[Attrs]()
    for each in outputs:
        size = None if each is None else each[axis].constant
        if size is None:
            return [*found, *[{}] * (len(outputs) - len(found))]
        found.append(part_from(shape, axis, start))
        start += size
    return found


def _slice(call: Call) -> Attrs:
    """Of one axis, one element after the other."""
    starts = call.integers("starts", 1)
    axes = call.integers("axes", 3)
    steps = [1] if "starts" in call.operator.defaults or call.tensor(4) is None else integers_of(call.value(4), "steps")
    axes = list(range(len(starts or ()))) if axes is None else axes
    if starts is None or len(starts) != 1 or len(axes) != 1 or steps != [1]:
        return {}
    shape = call.shape(0)
    return part_from(shape, axis_of(axes[0], len(shape)), starts[0])


def _one_index(call: Call) -> int | None:
    """The one constant index of a Gather, which leaves out its axis."""
    value = call.value(1)
    is_one = value is not None and value.ndim == 0 and value.dtype.kind == "i"
    return int(value) if is_one and value is not None else None
