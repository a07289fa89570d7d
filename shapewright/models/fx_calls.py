"""Calls in graphs of torch.fx, and their arguments by place or by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shapewright.models.graph import CannotLift, Input, Node, Shape
from shapewright.models.translated import Translated

ELEMENTWISE_NAMES: Mapping[str, str] = {
    **{name: name for name in ("relu", "sigmoid", "tanh", "silu", "exp", "log", "sqrt", "rsqrt", "erf", "sin", "cos")},
    **{name: name for name in ("abs", "neg", "reciprocal", "square", "floor", "round", "maximum", "minimum", "sub")},
    **{name: name for name in ("add", "mul", "div", "hardswish", "hardsigmoid")},
    "truediv": "div",
}
"""By name the neutral operation: tensors and numbers in the same order."""
PLAIN_KEYWORDS = frozenset({"input", "other", "self", "inplace", "alpha", "out", "rounding_mode", "decimals"})


@dataclass(frozen=True, slots=True)
class Call:
    """A node that calls an operator. ``shape`` and ``dtype`` are those of its first output."""

    node: Any
    input_of: Callable[[Any], Input]
    nodes: Mapping[str, Node]
    shape: Shape | None
    dtype: str

    def arg(self, position: int, *names: str, default: Any = None) -> Any:
        """An argument by its place, or by one of its names."""
        if position < len(self.node.args):
            return self.node.args[position]
        return next((self.node.kwargs[name] for name in names if name in self.node.kwargs), default)

    def tensor(self, position: int, *names: str) -> Input:
        return self.input_of(self.arg(position, *names))

    def elementwise(self, op: str) -> Translated:
        """Its positional arguments, and ``other``. Raises CannotLift for arguments that change what is computed."""
        kwargs = self.node.kwargs
        changed = [name for name in kwargs if name not in PLAIN_KEYWORDS]
        if changed or kwargs.get("alpha", 1) != 1 or kwargs.get("rounding_mode") or kwargs.get("decimals", 0):
            raise CannotLift(f"its arguments {', '.join(f'{k}={v}' for k, v in kwargs.items())} are not translated")
        given = [self.arg(0, "input", "self")]
        if op in BINARY:
            given.append(self.arg(1, "other"))
        return Translated(op, tuple(map(self.input_of, given)))

    def rank(self, name: Input) -> int:
        """Axes of an input. Raises CannotLift where its shape is not known."""
        shape = self.nodes[name].shape if isinstance(name, str) else None
        if shape is None:
            raise CannotLift(f"the shape of {name} is not known")
        return len(shape)


BINARY = frozenset({"add", "sub", "mul", "div", "maximum", "minimum"})


def constant_numbers(values: Any, rank: int) -> tuple[int, ...]:
    """``values``, one for all axes or one for each, as ints. Raises CannotLift for sizes that are dynamic."""
    listed = list(values) if isinstance(values, list | tuple) else [values]
    listed = listed * rank if len(listed) == 1 else listed
    if len(listed) != rank or not all(type(each) is int for each in listed):
        raise CannotLift(f"{values} are not {rank} constants")
    return tuple(listed)
