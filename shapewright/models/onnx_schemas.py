"""Which operator a node of ONNX is, and what it says: by domain, name and operator set, as ONNX's own schemas have it.

A translation reads attributes and inputs through a ``Call``, which keeps what was read. What a node has and nobody
read is a meaning that the translation does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from shapewright.models.graph import CannotLift, Input, Shape
from shapewright.models.onnx_values import Values, integers_of, number_of
from shapewright.models.translated import Translated

Result = tuple[Translated, Shape | None]
"""What a node becomes, and its shape where that follows."""

KNOWN_OPSET = 28
"""The newest operator set whose operators the translations were compared with."""
STANDARD = ("", "ai.onnx")
"""Both names of ONNX's own domain."""
RUNTIMES_OWN: Mapping[str, Mapping[str, Any]] = {
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
}
"""Operators that ONNX Runtime has in ONNX's domain and ONNX has not, with the defaults of their attributes."""
RUNTIMES = "com.microsoft"
HINTS = frozenset({"consumed_inputs"})
"""Attributes that never had a meaning for values."""


@dataclass(frozen=True, slots=True)
class Operator:
    """``version``: the operator set that brought this meaning. ``defaults``: by attribute, None where there is none.

    ``kinds``: by attribute the type that it has in a file. ``inputs``: the least and the most that a node has;
    ``optional``: the positions of those that may be left out.
    """

    name: str
    version: int
    defaults: Mapping[str, Any]
    kinds: Mapping[str, int]
    inputs: tuple[int, int]
    optional: frozenset[int]

    def require_form(self, node: Any, opset: int) -> None:
        """Raises CannotLift for attributes that it has not, and for numbers of inputs."""
        unknown = sorted({each.name for each in node.attribute} - set(self.defaults))
        if unknown:
            raise CannotLift(f"operator set {opset} has no attribute {', '.join(unknown)} of it")
        if any(each.type != self.kinds.get(each.name, each.type) for each in node.attribute):
            raise CannotLift("an attribute is of another type than its operator set says")
        least, most = self.inputs
        if not least <= len(node.input) <= most:
            raise CannotLift(f"it has {len(node.input)} inputs")
        for position, name in enumerate(node.input):
            if not name and position not in self.optional:
                raise CannotLift(f"its input {position} is left out, and operator set {opset} requires it")


CONTRIBUTED: Mapping[str, Operator] = {
    each.name: each
    for each in (
        Operator(
            "MatMulNBits", 1,
            {"K": None, "N": None, "bits": 4, "block_size": None, "accuracy_level": 0, "weight_prepacked": 0},
            dict.fromkeys(("K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked"), 2),
            (3, 6), frozenset({3, 4, 5}),
        ),
    )
}  # fmt: skip
"""Operators of ONNX Runtime's own domain, of which ONNX has no schemas; attributes are integers (2)."""


class Operators:
    """What the names of operators mean in one model."""

    def __init__(self, proto: Any) -> None:
        self._functions = {(_domain(each.domain), each.name) for each in proto.functions}
        self._opsets = sorted({each.version for each in proto.opset_import if each.domain in STANDARD})

    def operator(self, node: Any) -> Operator:
        """Raises CannotLift where the node is none of ONNX's own operators, and none of CONTRIBUTED."""
        domain, name = _domain(node.domain), node.op_type
        if (domain, name) in self._functions:
            raise CannotLift("the model has a function of its own for it")
        if domain == RUNTIMES and name in CONTRIBUTED:
            CONTRIBUTED[name].require_form(node, 1)
            return CONTRIBUTED[name]
        if domain:
            raise CannotLift(f"operators of the domain {domain} are not known")
        if len(self._opsets) != 1:
            raise CannotLift(f"the model names {len(self._opsets)} operator sets, so what it means is not known")
        operator = _standard(name, self._opsets[0])
        operator.require_form(node, self._opsets[0])
        return operator


def _domain(name: str) -> str:
    return "" if name in STANDARD else name


@lru_cache(maxsize=1024)
def _standard(name: str, opset: int) -> Operator:
    import onnx  # noqa: PLC0415 - a frontend for those who have the framework

    if name in RUNTIMES_OWN:
        return Operator(name, opset, RUNTIMES_OWN[name], {}, (2, 2), frozenset())
    try:
        schema = onnx.defs.get_schema(name, opset, "")
    except onnx.defs.SchemaError as error:
        raise CannotLift("the operator has no translation") from error
    if opset > onnx.defs.onnx_opset_version() or schema.since_version > KNOWN_OPSET:
        raise CannotLift(f"what it means in operator set {opset} is not known")
    defaults = {each: _default(value) for each, value in schema.attributes.items()}
    kinds = {each: int(value.type.value) for each, value in schema.attributes.items()}
    inputs = schema.min_input, schema.max_input
    kind = onnx.defs.OpSchema.FormalParameterOption.Optional
    optional = frozenset(position for position, each in enumerate(schema.inputs) if each.option == kind)
    return Operator(name, schema.since_version, defaults, kinds, inputs, optional)


def _default(attribute: Any) -> Any:
    return attribute_value(attribute.default_value) if attribute.default_value.type else None


def attribute_value(attribute: Any) -> Any:
    """A number, a text, or a list of them; a number of float32 is what it was before it was stored."""
    import onnx  # noqa: PLC0415

    return _read(onnx.helper.get_attribute_value(attribute))


def _read(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return float(str(np.float32(value))) if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Call:
    """One node: its inputs, the shapes of these, their values where they are known, and its attributes.

    ``inputs`` are names of nodes of the graph, None where there is none. ``outputs``: how many it has.
    """

    operator: Operator
    inputs: tuple[str | None, ...]
    given: Mapping[str, Any]
    shapes: tuple[Shape | None, ...]
    values: tuple[Values | None, ...]
    outputs: int
    _seen: set[str | int] = field(default_factory=set)

    @property
    def op(self) -> str:
        return self.operator.name

    @property
    def version(self) -> int:
        return self.operator.version

    def attr(self, name: str) -> Any:
        """An attribute or its default in this operator set; None where it has none, or is not of this set."""
        self._seen.add(name)
        return self.given.get(name, self.operator.defaults.get(name))

    def tensor(self, position: int) -> str | None:
        """The node at an input."""
        self._seen.add(position)
        return self.inputs[position] if position < len(self.inputs) else None

    def tensors(self, count: int) -> tuple[str | None, ...]:
        """The first inputs, as many as there are of ``count``."""
        return tuple(self.tensor(position) for position in range(min(count, len(self.inputs))))

    def shape(self, position: int) -> Shape:
        """Raises CannotLift where it is not known."""
        shape = self.shapes[position] if position < len(self.shapes) else None
        if shape is None:
            raise CannotLift(f"the shape of input {position} is not known")
        return shape

    def value(self, position: int) -> Values | None:
        """What is known of an input's elements."""
        return self.values[position] if self.tensor(position) is not None else None

    def number(self, position: int) -> float | None:
        """The one element of an input; None where there is no input. Raises CannotLift where it is not known."""
        if self.tensor(position) is None:
            return None
        number = number_of(self.value(position))
        if number is None:
            raise CannotLift(f"input {position} is no constant number")
        return number

    def operand(self, position: int) -> Input:
        """A number where an input is one and has no more axes than the others, otherwise the node."""
        name, number = self.tensor(position), number_of(self.value(position))
        ranks = [len(shape) for place, shape in enumerate(self.shapes) if place != position and shape is not None]
        return number if number is not None and len(self.shape(position)) <= max(ranks, default=0) else name

    def integers(self, name: str, position: int) -> list[int] | None:
        """Integers that older operator sets have as an attribute, newer ones as an input; None if there are none."""
        if name in self.operator.defaults:
            given = self.attr(name)
            return None if given is None else list(given)
        return None if self.tensor(position) is None else integers_of(self.value(position), name)

    def require_all_read(self) -> None:
        """Raises CannotLift where the node says something that nobody looked at."""
        seen = self._seen | HINTS
        for name, value in self.given.items():
            if name not in seen and value != self.operator.defaults.get(name):
                raise CannotLift(f"its attribute {name} = {value!r} is not known"[:200])
        for position, source in enumerate(self.inputs):
            if position not in seen and source is not None:
                raise CannotLift(f"its input {position} is not known")


def axis_of(axis: Any, rank: int) -> int:
    """An axis, counted from the front. Raises CannotLift where there is none of that number."""
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise CannotLift(f"there is no axis {axis} of {rank}")
    return axis % rank
