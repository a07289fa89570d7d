"""The constants of a chain, looked at once for all of its calls.

What was made of each is found by ``shapewright.torch.packs``. What was found holds for the next call, too, as long as
no tensor has another version, place, shape, strides, dtype or storage, and nothing was packed anew or dropped
meanwhile. To look at one tensor after the other would take several times as long.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shapewright.torch.packs import changes, checks_values, tell_changes
from shapewright.torch.plan import Get

LOOKS: tuple[Callable[[torch.Tensor], Any], ...] = (
    operator.attrgetter("_version"),
    torch.Tensor.data_ptr,
    torch.Tensor.stride,
    operator.attrgetter("shape"),
    operator.attrgetter("dtype"),
)
"""What tells that a tensor is as it was, beside its storage."""
_storage, _address = torch.Tensor.untyped_storage, operator.attrgetter("_cdata")

Described = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each operand."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant of a call: what gives it, and the positions of the tensors that it is made of. ``is_made``: it lies
    in memory of its own."""

    get: Get
    tensors: tuple[int, ...]
    is_made: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The operands of one moment: where they lie, and ``number``, which is another one for other shapes or dtypes.
    ``kept`` has what must not go before the call is done."""

    pointers: array[int]
    described: Described
    number: int
    kept: tuple[Any, ...]
    looks: tuple[list[Any], ...] | None
    changes: int


class Weights:
    """Safe to use from several threads."""

    def __init__(self, operands: Sequence[Operand]) -> None:
        self._operands = tuple(operands)
        self._positions = sorted({position for each in operands for position in each.tensors})
        self._numbers = itertools.count()
        self._last: tuple[Described, int] | None = None
        self._found: Found | None = None
        tell_changes(self)

    def __len__(self) -> int:
        return len(self._operands)

    def of(self, tensors: Sequence[torch.Tensor]) -> Found:
        """The operands, of all tensors of the chain."""
        # Read before the operands are: what changes meanwhile makes the next call look again.
        now, found, looks = changes(), self._found, self._looks(tensors)
        if found is not None and found.changes == now and looks is not None and found.looks == looks:
            return found
        values = [each.get(tensors) for each in self._operands]
        described = tuple((tuple(value.shape), str(value.dtype).removeprefix("torch.")) for value in values)
        last = self._last
        if last is None or last[0] != described:
            self._last = last = described, next(self._numbers)
        pointers = array("Q", [value.data_ptr() for value in values])
        made = tuple(
            value
            for value, each in zip(values, self._operands, strict=True)
            if each.is_made or value.data_ptr() != tensors[each.tensors[0]].data_ptr()
        )
        fresh = Found(pointers, *last, made, looks, now)
        # What was copied for this call alone is not to be found again; a constant in place is not to be kept alive.
        if len(made) == sum(each.is_made for each in self._operands) and not checks_values():
            self._found = fresh
        return fresh

    def _looks(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...] | None:
        """None for tensors of inference mode, which have no version."""
        mine = [tensors[position] for position in self._positions]
        try:
            storages = [*map(_address, map(_storage, mine))]
            return (storages, *([*map(look, mine)] for look in LOOKS))
        except RuntimeError:
            return None

    def forget(self) -> None:
        """Keep nothing alive."""
        self._found = None
