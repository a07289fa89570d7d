"""Constants as a library's kernels read them, and the facts that their packed form lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shapewright.operands import as_array
from tuner.errors import InvalidInput
from tuner.program.language.workload import Workload


class PackedWeight:
    """A constant tensor as the kernels of one library read it. Other libraries refuse it."""

    __slots__ = ("digest", "name", "shape", "tensor")

    def __init__(self, digest: str, name: str, shape: tuple[int, ...], tensor: Any) -> None:
        self.digest = digest
        self.name = name
        self.shape = shape
        """The shape before it was packed."""
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"<PackedWeight {self.name} {tuple(self.tensor.shape)} for library {self.digest[:12]}>"


@dataclass(frozen=True, slots=True)
class PackedSize:
    """A dynamic dim of a packed weight, and the dim of another operand that equals it.

    The packed form is padded to whole panels and does not tell the size.
    """

    name: str
    dim: int
    constant: int
    other_name: str
    other_dim: int
    other: int

    def check(self, operands: Sequence[Any]) -> None:
        """Raises InvalidInput where the two differ."""
        if len(operands) <= self.other:
            return
        size = operands[self.constant].shape[self.dim]
        shape = as_array(operands[self.other], self.other_name).shape
        if len(shape) > self.other_dim and shape[self.other_dim] != size:
            problem = (
                f"shape[{self.dim}] is {size}, {self.other_name}.shape[{self.other_dim}] is {shape[self.other_dim]}"
            )
            raise InvalidInput(self.name, problem, "pass the weight that belongs to the other operands")


def packed_sizes(workload: Workload, constant: int) -> Iterator[PackedSize]:
    """The dynamic dims of operand ``constant``, each with where another operand has it."""
    weight = workload.operands[constant]
    for dim, size in enumerate(weight.dims):
        if size.constant is None:
            yield next(
                PackedSize(weight.name, dim, constant, tensor.name, other_dim, other)
                for other, tensor in enumerate(workload.operands)
                for other_dim, its in enumerate(tensor.dims)
                if not tensor.constant and its == size
            )
