"""The constants of a chain, looked at once for all of its calls.

What was made of each is found by ``shapewright.torch.packs``. What was found holds for the next call, too, as long as
no tensor lies elsewhere or in another way, none that something was made of has another version or storage, and nothing
was packed anew or dropped meanwhile. To look at one tensor after the other would take several times as long.
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

_Guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
"""What TorchDynamo compares tensors with, all at once; where a version of PyTorch has none each is looked at."""
_place, _version = torch.Tensor.data_ptr, operator.attrgetter("_version")
_storage, _address = torch.Tensor.untyped_storage, operator.attrgetter("_cdata")
LAYOUTS: tuple[Callable[[torch.Tensor], Any], ...] = (
    torch.Tensor.stride,
    operator.attrgetter("shape"),
    operator.attrgetter("dtype"),
)

Described = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each operand."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A constant of a call: what gives it, and the positions of the tensors that it is made of. ``is_made``: it lies
    in memory of its own."""

    get: Get
    tensors: tuple[int, ...]
    is_made: bool


class Layouts:
    """Strides, shapes and dtypes of some tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        guards = _Guards and _Guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        # They take no tensor twice.
        self._guards = guards if guards is not None and guards.check(*tensors) else None
        self._lists = None if self._guards else self._listed(tensors)

    def hold_for(self, tensors: Sequence[torch.Tensor]) -> bool:
        if self._guards is not None:
            return bool(self._guards.check(*tensors))
        return self._lists == self._listed(tensors)

    @staticmethod
    def _listed(tensors: Sequence[torch.Tensor]) -> list[list[Any]]:
        return [[*map(look, tensors)] for look in LAYOUTS]


@dataclass(frozen=True, slots=True)
class Found:
    """The operands of one moment: where they lie, and ``number``, which is another one for other shapes or dtypes.
    ``kept`` has what must not go before the call is done."""

    pointers: array[int]
    described: Described
    number: int
    kept: tuple[Any, ...]
    layouts: Layouts
    looks: tuple[list[Any], ...]
    changes: int


class Weights:
    """Safe to use from several threads."""

    def __init__(
        self, operands: Sequence[Operand], kept: Callable[[], Sequence[torch.Tensor]] | None = None, *,
        are_frozen: bool = False,
    ) -> None:  # fmt: skip
        """``kept``: gives the tensors that the program keeps, which come behind those that a call is given.
        ``are_frozen``: the operands are looked at once, and after ``sw.torch.forget``."""
        self._operands, self._kept, self._are_frozen = tuple(operands), kept, are_frozen
        self._all = _getter({position for each in operands for position in each.tensors})
        self._packed = _getter({position for each in operands if each.is_made for position in each.tensors})
        self._numbers = itertools.count()
        self._last: tuple[Described, int] | None = None
        self._found: Found | None = None
        tell_changes(self)

    def __len__(self) -> int:
        return len(self._operands)

    def of(self, tensors: Sequence[torch.Tensor]) -> Found:
        """The operands. ``tensors``: those that a call is given."""
        # Read before the operands are: what changes meanwhile makes the next call look again.
        now, found = changes(), self._found
        if found is not None and self._are_frozen:
            return found
        if self._kept is not None:
            tensors = [*tensors, *self._kept()]
        looks = self._looks(tensors)
        is_known = found is not None and found.changes == now and found.looks == looks
        if found is not None and is_known and found.layouts.hold_for(self._all(tensors)):
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
        # Whoever does not look again keeps alive what lies where it was found, whatever the model does to its tensors.
        kept = tuple(map(_alias, values)) if self._are_frozen else made
        fresh = Found(pointers, *last, kept, Layouts(self._all(tensors)), looks or (), now)
        # What was copied for this call alone is not to be found again; a constant in place is not to be kept alive.
        is_whole = looks is not None and len(made) == sum(each.is_made for each in self._operands)
        if (is_whole or self._are_frozen) and not checks_values():
            self._found = fresh
        return fresh

    def _looks(self, tensors: Sequence[torch.Tensor]) -> tuple[list[Any], ...] | None:
        """None for tensors of inference mode, which have no version."""
        packed = self._packed(tensors)
        try:
            return (
                [*map(_version, packed)],
                [*map(_address, map(_storage, packed))],
                [*map(_place, self._all(tensors))],
            )
        except RuntimeError:
            return None

    def forget(self) -> None:
        """Keep nothing alive."""
        self._found = None


def _alias(value: Any) -> Any:
    """What holds the memory of a value when its tensor is given other memory."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _getter(positions: set[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Gives what stands at some positions."""
    if len(positions) > 1:
        return operator.itemgetter(*sorted(positions))
    return lambda given: [given[position] for position in positions]
