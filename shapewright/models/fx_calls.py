"""Calls of ATen's operators, their arguments by the names of the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shapewright.models.graph import CannotLift, Input, Node, Shape


@dataclass(frozen=True, slots=True)
class Call:
    """A node that calls an operator. ``shape`` and ``dtype`` are those of its first output.

    A translation reads the arguments that it knows. Those that it does not must have their defaults: an argument that
    nobody reads never changes what is computed.
    """

    node: Any
    input_of: Callable[[Any], Input]
    nodes: Mapping[str, Node]
    shape: Shape | None
    dtype: str
    _given: dict[str, Any] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        arguments = self.node.target._schema.arguments
        self._given.update(zip((each.name for each in arguments), self.node.args, strict=False))
        self._given.update(self.node.kwargs)

    def arg(self, name: str) -> Any:
        """An argument, or the schema's default of it."""
        self._read.add(name)
        return argument(self.node, name)

    def tensor(self, name: str) -> Input:
        """An argument that is a tensor, a number or nothing. Raises CannotLift for others."""
        return self.input_of(self.arg(name))

    def shape_of(self, name: str) -> Shape:
        """The shape of the tensor that is given for ``name``. Raises CannotLift where it is not known."""
        source = self.tensor(name)
        shape = self.nodes[source].shape if isinstance(source, str) else None
        if shape is None:
            raise CannotLift(f"the shape of {source} is not known")
        return shape

    def rank(self, name: str) -> int:
        """Axes of the tensor that is given for ``name``. Raises CannotLift where its shape is not known."""
        return len(self.shape_of(name))

    def check_read(self, *without_meaning: str) -> None:
        """Raise CannotLift for an argument that was not read and is not its default."""
        for each in self.node.target._schema.arguments:
            if each.name in self._read or each.name in without_meaning or each.name not in self._given:
                continue
            if not each.has_default_value() or self._given[each.name] != each.default_value:
                raise CannotLift(f"its argument {each.name}={self._given[each.name]} is not translated")


def constant_numbers(values: Any, rank: int) -> tuple[int, ...]:
    """``values``, one for all axes or one for each, as ints. Raises CannotLift for sizes that are dynamic."""
    listed = list(values) if isinstance(values, list | tuple) else [values]
    listed = listed * rank if len(listed) == 1 else listed
    if len(listed) != rank or not all(type(each) is int for each in listed):
        raise CannotLift(f"{values} are not {rank} constants")
    return tuple(listed)


def argument(node: Any, name: str) -> Any:
    """An argument of a call by the schema's name, or its default."""
    for place, each in enumerate(node.target._schema.arguments):
        if each.name == name:
            if place < len(node.args):
                return node.args[place]
            return node.kwargs.get(name, each.default_value)
    raise KeyError(name)
