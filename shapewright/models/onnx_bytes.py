"""ONNX's operators of quantised tensors, spelled out: a byte stands for (byte - zero point) * scale.

A node becomes several of the neutral graph. The last of each output has its name, the others have names behind that of
the node's first. A constant that becomes floats is one node, which is computed before all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shapewright.models.elementwise import BYTES
from shapewright.models.graph import ONE, CannotLift, Input, Node, Shape
from shapewright.models.onnx_schemas import Call, axis_of
from shapewright.models.onnx_values import broadcast_shapes, number_of

FLOAT = "float32"


@dataclass
class Spelling:
    """The nodes that one of ONNX becomes. ``outputs``: the names of its values, empty ones left out. ``known``: by name
    the nodes before it."""

    outputs: Sequence[str]
    known: Mapping[str, Node]
    place: str
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[Input], shape: Shape, dtype: str = FLOAT, **attrs: Any) -> str:
        # Exporters have names like y:0 themselves.
        name = f"{self.outputs[0]} (step {len(self.nodes)})"
        self.nodes.append(Node(name, op, tuple(inputs), attrs, shape, dtype, place=self.place))
        return name

    def give(self, position: int) -> str:
        """The last node is the value of an output; nothing has read it yet. Its name."""
        name = self.outputs[position]
        self.nodes[-1] = replace(self.nodes[-1], name=name)
        return name

    def dtype(self, name: Input) -> str:
        own = next((each for each in self.nodes if each.name == name), None)
        return (own or self.known[name]).dtype if isinstance(name, str) else ""

    def is_constant(self, name: Input) -> bool:
        return isinstance(name, str) and name in self.known and self.known[name].op == "constant"

    def is_zero(self, call: Call, position: int) -> bool:
        """Whether an input is left out, or 0 everywhere."""
        name = call.tensor(position)
        return name is None or number_of(call.value(position)) == 0 or self.known[name].attrs.get("value") == 0


@dataclass(frozen=True)
class Scaled:
    """A scale and a zero point, nodes or numbers, with their shapes; ``zero`` is None where it is 0. ``names``: their
    nodes. ``axis``: along which they differ, None where they do not."""

    scale: Input
    zero: Input
    names: tuple[str | None, str | None]
    shapes: tuple[Shape, Shape]
    axis: int | None

    @staticmethod
    def of(call: Call, spelling: Spelling, scale: int, zero: int, shape: Shape, axis: Any = None) -> Scaled:
        """Those at two inputs, for a tensor of ``shape``. Raises CannotLift."""
        names = call.tensor(scale), call.tensor(zero)
        shapes = call.shape(scale), call.shape(zero) if names[1] else ()
        if spelling.dtype(names[0]) != FLOAT:
            raise CannotLift("its scale is not of float32")
        is_one = all(dim == ONE for each in shapes for dim in each)
        if not is_one and (axis is None or max(map(len, shapes)) > 1):
            raise CannotLift("its scales are of blocks, or along an axis that is not known")
        has_zero = not spelling.is_zero(call, zero)
        number, offset = number_of(call.value(scale)), number_of(call.value(zero)) if has_zero else None
        given: Input = names[1] if offset is None else offset
        along = None if is_one else axis_of(axis, len(shape))
        return Scaled(names[0] if number is None else number, given if has_zero else None, names, shapes, along)

    def along(self, spelling: Spelling, node: Input, shape: Shape, rank: int) -> Input:
        """A scale or a zero point in the shape that it is broadcast from, to a tensor of ``rank`` axes."""
        if self.axis is None or self.axis == rank - 1 or not shape:
            return node
        return spelling.add("reshape", (node,), (*shape, *(ONE,) * (rank - 1 - self.axis)))


def spelled(call: Call, spelling: Spelling) -> list[Node] | None:
    """The nodes of a quantised operator; None for another one. Raises CannotLift."""
    if call.op not in SPELLED:
        return None
    SPELLED[call.op](call, spelling)
    call.require_all_read()
    return spelling.nodes


def _floats(spelling: Spelling, x: str, shape: Shape, how: Scaled) -> str:
    """What bytes stand for."""
    if spelling.dtype(x) not in (*BYTES, "int32"):
        raise CannotLift(f"numbers of {spelling.dtype(x) or 'an unknown dtype'}")
    names = how.names if how.zero is not None else how.names[:1]
    if all(map(spelling.is_constant, (x, *names))):
        return spelling.add("dequantised", (x, *names), shape, axis=how.axis)
    value, zero, rank = spelling.add("cast", (x,), shape), how.zero, len(shape)
    if zero is not None:
        zero = spelling.add("cast", (zero,), how.shapes[1]) if isinstance(zero, str) else zero
        zero = how.along(spelling, zero, how.shapes[1], rank)
        value = spelling.add("sub", (value, zero), shape)
    return spelling.add("mul", (value, how.along(spelling, how.scale, how.shapes[0], rank)), shape)


def _bytes(spelling: Spelling, x: str, shape: Shape, how: Scaled, dtype: str) -> str:
    """Numbers as bytes: rounded to even, and no further than bytes reach."""
    if spelling.dtype(x) not in ("", FLOAT) or dtype not in BYTES:
        raise CannotLift(f"{spelling.dtype(x)} becomes {dtype or 'an unknown dtype'}")
    low, high = BYTES[dtype]
    value = spelling.add("div", (x, how.along(spelling, how.scale, how.shapes[0], len(shape))), shape)
    value, zero = spelling.add("round", (value,), shape), how.zero
    if zero is not None:
        zero = spelling.add("cast", (zero,), how.shapes[1]) if isinstance(zero, str) else zero
        value = spelling.add("add", (value, how.along(spelling, zero, how.shapes[1], len(shape))), shape)
    value = spelling.add("clamp", (value,), shape, low=float(low), high=float(high))
    return spelling.add("cast", (value,), shape, dtype)


def _axis(call: Call) -> Any:
    """The axis of scales that are several. Raises CannotLift for what newer operator sets may say beside it."""
    for name in ("block_size", "output_dtype", "precision"):
        if call.attr(name):
            raise CannotLift(f"{name} {call.attr(name)}")
    call.attr("saturate")  # of float8
    return call.attr("axis")


def _dequantize(call: Call, spelling: Spelling) -> None:
    shape = call.shape(0)
    x, how = _tensor(call, 0), Scaled.of(call, spelling, 1, 2, shape, _axis(call))
    _floats(spelling, x, shape, how)
    spelling.give(0)


def _quantize(call: Call, spelling: Spelling) -> None:
    shape = call.shape(0)
    x, how = _tensor(call, 0), Scaled.of(call, spelling, 1, 2, shape, _axis(call))
    _bytes(spelling, x, shape, how, spelling.dtype(how.names[1]) or "uint8")
    spelling.give(0)


def _dynamic(call: Call, spelling: Spelling) -> None:
    """One scale and one zero point for all of a tensor, so that its numbers and 0 fit."""
    x, shape, single = _tensor(call, 0), call.shape(0), ()
    axes = tuple(range(len(shape)))
    if spelling.dtype(x) != FLOAT or len(spelling.outputs) != 3:
        raise CannotLift("it is not of float32, or an output of it is left out")
    low, high = (
        spelling.add(bound, (spelling.add("reduce", (x,), single, kind=kind, axes=axes, keep=False), 0.0), single)
        for kind, bound in (("min", "minimum"), ("max", "maximum"))
    )
    spelling.add("div", (spelling.add("sub", (high, low), single), 255.0), single)
    scale = spelling.give(1)
    shifted = spelling.add("neg", (spelling.add("div", (low, scale), single),), single)
    limited = spelling.add("clamp", (shifted,), single, low=0.0, high=255.0)
    spelling.add("cast", (spelling.add("round", (limited,), single),), single, "uint8")
    zero = spelling.give(2)
    _bytes(spelling, x, shape, Scaled(scale, zero, (scale, zero), (single, single), None), "uint8")
    spelling.give(0)


def _integers(call: Call, spelling: Spelling) -> None:
    """Rows of bytes, less their zero point, by a matrix of int8 that has none."""
    x, w = _tensor(call, 0), _tensor(call, 1)
    if spelling.dtype(x) not in BYTES or spelling.dtype(w) != "int8":
        raise CannotLift("its right side is not of int8")
    has_zero = not spelling.is_zero(call, 2)
    if not spelling.is_zero(call, 3) or (has_zero and any(dim != ONE for dim in call.shape(2))):
        raise CannotLift("its right side has a zero point, or its left side one for each row")
    zero = call.tensor(2) if has_zero else None
    spelling.add("int_matmul", (x, w) if zero is None else (x, w, zero), _product(call, 0, 1), "int32")
    spelling.give(0)


def _product(call: Call, x: int, y: int) -> Shape:
    left, right = call.shape(x), call.shape(y)
    if min(len(left), len(right)) < 2:
        raise CannotLift("a product of vectors")
    return (*broadcast_shapes([left[:-2], right[:-2]]), left[-2], right[-1])


def _quantized_matmul(call: Call, spelling: Spelling) -> None:
    x, w, shape = _tensor(call, 0), _tensor(call, 3), _product(call, 0, 3)
    left = _floats(spelling, x, call.shape(0), Scaled.of(call, spelling, 1, 2, call.shape(0)))
    right = _floats(spelling, w, call.shape(3), Scaled.of(call, spelling, 4, 5, call.shape(3), len(call.shape(3)) - 1))
    product = spelling.add("matmul", (left, right), shape)
    _bytes(spelling, product, shape, Scaled.of(call, spelling, 6, 7, shape), spelling.dtype(call.tensor(7)) or "uint8")
    spelling.give(0)


def _tensor(call: Call, position: int) -> str:
    name = call.tensor(position)
    if name is None:
        raise CannotLift(f"its input {position} is left out")
    return name


SPELLED: Mapping[str, Callable[[Call, Spelling], None]] = {
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
    "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": _integers,
    "QLinearMatMul": _quantized_matmul,
}
