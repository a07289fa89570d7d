"""The arguments of a chain's calls as native.c takes them.

Words that come one by one make every call's sizes new. So what is called is written down once, and of each combination
of sizes one array of numbers, by a function of Python that is generated for the chain: constants are copied, what
depends on sizes is computed.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shapewright.models.lifted import View, viewed
from shapewright.torch.steps import Made, Sizes
from tuner.program.language.dtypes import DTYPES as KNOWN

if TYPE_CHECKING:
    from shapewright.torch.placing import Places

ALIGNMENT = 64
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's, by kind of dtype; bfloat16 has BFLOAT."""
BFLOAT = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Operand(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("at", ctypes.c_int64), ("base", ctypes.c_int64))


class NativeCall(ctypes.Structure):
    _fields_ = (("entry", ctypes.c_void_p), ("operands", ctypes.c_void_p), ("count", ctypes.c_int64))


CPU = 1
PACE_BYTES = 64
"""As many as native.c needs at most."""


Number = int | str
"""A number, or the expression of one: ``g`` are the sizes that a chain is given, ``v`` the shapes of what varies."""
Described = tuple[Sequence[Number], str, int, Number]
"""An operand: shape, dtype, the number of its base, and how many bytes it lies behind that."""
Shapes = Sequence[Sequence[int]]


# -- sizes as expressions ---------------------------------------------------------------------------------------------
def times(numbers: Iterable[Number]) -> Number:
    """The product."""
    known, others = 1, list[str]()
    for each in numbers:
        if isinstance(each, int):
            known *= each
        else:
            others.append(each)
    if not known or not others:
        return known
    return "*".join([*others, *([str(known)] if known != 1 else [])])


def numbers_of(sizes: Sizes, elements: Number = 0) -> list[Number]:
    """``steps.sizes_of`` of any sizes."""
    known = [None if size is None else size if size >= 0 else f"g[{-1 - size}]" for size in sizes]
    others = times(size for size in known if size is not None)
    rest = (
        _rest(elements, others)
        if isinstance(elements, int) and isinstance(others, int)
        else f"rest({elements}, {others})"
    )
    return [rest if size is None else size for size in known]


def place_of(made: Made, elements: Number) -> tuple[list[Number], Number]:
    """``Made.placed`` of any sizes."""
    sizes = numbers_of(made.sizes, elements)
    size = times(sizes)
    if made.piece is None:
        return sizes, 0
    if isinstance(elements, int) and isinstance(size, int):
        return sizes, _first(made.piece, elements, size)
    return sizes, f"first({int(made.piece)}, {elements}, {size})"


def joined(view: Sequence[Sequence[int]], sizes: Sequence[Number]) -> list[Number]:
    return [times(sizes[axis] for axis in group) for group in view]


def _rest(elements: int, others: int) -> int:
    return elements // others if others else 0


def _first(piece: int, elements: int, size: int) -> int:
    return piece % (elements // size) * size if size else 0


def up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


HELPERS: Mapping[str, Any] = {"rest": _rest, "first": _first, "up": up, "max": max, "__builtins__": {}}


# -- what varies ------------------------------------------------------------------------------------------------------
Got = tuple[torch.Tensor, bool]
"""An operand that is new at every call, in a row, and whether it is viewed as the library takes it; else its axes are
to be joined."""


def varying(
    copies: dict[str, int], name: str, position: int, view: View
) -> Callable[[Sequence[torch.Tensor]], Got]:  # fmt: skip
    """What gets the operand of that name from a call's tensors; ``copies`` counts how often it had to be copied."""
    axes = [axis for group in view for axis in group]
    in_order = axes == list(range(len(axes)))

    def get(tensors: Sequence[torch.Tensor]) -> Got:
        given = tensors[position]
        if in_order and given.is_contiguous() and given.dim() == len(axes):
            return given, False
        tensor = viewed(given, view).contiguous()
        if tensor.data_ptr() != given.data_ptr():
            copies[name] = copies.get(name, 0) + 1
        return tensor, True

    return get


# -- calls ------------------------------------------------------------------------------------------------------------
class Placed(NamedTuple):
    """An operand among the numbers: ``at`` which of them its sizes begin, how many they are, the bytes of an element,
    and the number of its base. How far behind its base it lies comes after the sizes, then the bytes of a row."""

    at: int
    rank: int
    item: int
    base: int

    @property
    def offset_at(self) -> int:
        """Which number tells how far behind its base it lies."""
        return self.at + self.rank

    def bytes(self, numbers: Sequence[int]) -> int:
        return math.prod(numbers[self.at : self.at + self.rank]) * self.item


@dataclass(frozen=True, slots=True)
class Bound:
    """A chain's calls for some sizes, as native.c takes them: where they are described, the numbers that go with them,
    and the memory that a call takes. ``pace``: what calls take with a team of threads and without, which native.c
    writes to; ``kept``: what the descriptions point to."""

    calls: Any
    numbers: array[int]
    bytes: int
    pace: Any
    kept: list[Any]
    parts: Any = None


@dataclass
class Form:
    """A chain's calls whatever the sizes. ``memory``: the number of the base that is the chain's own."""

    memory: int
    placed: list[list[Placed]] = field(default_factory=list)
    """Of each call its operands, the output last."""
    _numbers: list[Number] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)
    _paces: dict[tuple[int, ...], Any] = field(default_factory=dict)
    _calls: Any = None
    _told: Callable[[Sequence[int], Shapes], tuple[array[int], int]] | None = None

    def add(self, entry: int, operands: Sequence[Described]) -> None:
        described = (_Operand * len(operands))()
        for each, (shape, dtype, base, offset) in zip(described, operands, strict=True):
            own, known = each.tensor, KNOWN[dtype]
            own.code = BFLOAT if dtype == "bfloat16" else CODES[known.kind]
            own.device, own.rank, own.bits, own.lanes = CPU, len(shape), known.bits, 1
            each.base, each.at = base, len(self._numbers)
            # Behind the sizes: how far it lies behind its base, and how far a row behind another (batches.py).
            self._numbers += [*shape, offset, 0]
        self.placed.append([Placed(each.at, each.tensor.rank, each.tensor.bits // 8, each.base) for each in described])
        self._kept.append(described)
        self._kept.append(NativeCall(entry, ctypes.addressof(described), len(operands)))

    def close(self, places: Places) -> None:
        """``places``: what expressions read of where values lie."""
        calls = [each for each in self._kept if isinstance(each, NativeCall)]
        self._calls = (NativeCall * len(calls))(*calls)
        base = array("q", [each if isinstance(each, int) else 0 for each in self._numbers])
        lines = [f"a[{at}] = {each}" for at, each in enumerate(self._numbers) if not isinstance(each, int)]
        body = "\n    ".join([*places.statements, "a = base[:]", *lines, f"return a, {places.total}"])
        made: dict[str, Any] = {**HELPERS, "base": base}
        exec(f"def numbers(g, v):\n    {body}", made)
        self._told = made["numbers"]

    def bound(self, sizes: Sequence[int], shapes: Shapes) -> Bound:
        assert self._told is not None
        numbers, size = self._told(sizes, shapes)
        # Sizes that are about as large take about as long.
        about = tuple(size.bit_length() for size in (*sizes, *(each for shape in shapes for each in shape)))
        pace = self._paces.setdefault(about, ctypes.create_string_buffer(PACE_BYTES))
        return Bound(self._calls, numbers, size, pace, self._kept)
