"""The arguments of a chain's calls as native.c takes them, and where values that only calls read lie in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from tuner.program.language.dtypes import DTYPES as KNOWN

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
    _fields_ = (("tensor", _Tensor), ("offset", ctypes.c_int64), ("base", ctypes.c_int64))


class NativeCall(ctypes.Structure):
    _fields_ = (("entry", ctypes.c_void_p), ("operands", ctypes.c_void_p), ("count", ctypes.c_int64))


CPU = 1
PACE_BYTES = 64
"""As many as native.c needs at most."""


class Bound:
    """A chain's calls for some sizes, as native.c takes them. Nobody writes to it, but for native.c to ``pace``."""

    def __init__(self) -> None:
        self.calls: Any = None
        self.steps: list[int] = []
        """Those that have anything to compute, in order."""
        self.bytes = 0
        self.pace = ctypes.create_string_buffer(PACE_BYTES)
        """What the calls take with a team of threads and without one, as native.c has it."""
        self.outputs: list[tuple[list[int], torch.dtype]] = []
        self._kept: list[Any] = []

    def add(self, step: int, entry: int, operands: Sequence[tuple[Sequence[int], str, int, int]]) -> None:
        """``operands``: shape, dtype, base and offset of each."""
        described = (_Operand * len(operands))()
        for each, (shape, dtype, base, offset) in zip(described, operands, strict=True):
            sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
            self._kept.append(sizes)
            own, known = each.tensor, KNOWN[dtype]
            own.code = BFLOAT if dtype == "bfloat16" else CODES[known.kind]
            own.device, own.rank, own.bits = CPU, len(shape), known.bits
            own.lanes, own.shape = 1, ctypes.addressof(sizes)
            each.base, each.offset = base, offset
        self._kept.append(described)
        self._kept.append(NativeCall(entry, ctypes.addressof(described), len(operands)))
        self.steps.append(step)

    def close(self) -> None:
        calls = [each for each in self._kept if isinstance(each, NativeCall)]
        self.calls = (NativeCall * len(calls))(*calls)


def planned(needs: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Places for values of ``(bytes, first, last)`` steps that need them, and how many bytes that takes: a value gets
    the first room that nobody has at the same time."""
    placed: list[tuple[int, int, int, int]] = []
    places = []
    for least, first, last in needs:
        size, at = -(-least // ALIGNMENT) * ALIGNMENT, 0
        for begin, end, since, until in sorted(placed):
            if first <= until and since <= last and begin < at + size:
                at = max(at, end)
        placed.append((at, at + size, first, last))
        places.append(at)
    return places, max((end for _, end, _, _ in placed), default=0)
