"""Launchers that stand alone (tuner.library.gpu.build.build_launcher), called by ctypes: neither TVM nor TVM FFI."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tuner.errors import GpuFailed
from tuner.library.package import ALONE, ENTRY
from tuner.program.language.binding import symbols_at
from tuner.program.language.workload import Workload


class Operand(NamedTuple):
    """Memory of a GPU as an operand of a call."""

    dtype: str
    shape: tuple[int, ...]
    device: int
    address: int


def operand(dtype: str, shape: Sequence[int], device: int, address: int) -> Operand:
    return Operand(dtype, tuple(shape), device, address)


class _Any(ctypes.Structure):
    """An argument as TVM FFI has it."""

    _fields_ = (("type", ctypes.c_int32), ("more", ctypes.c_int32), ("value", ctypes.c_int64))


class Launcher:
    """A shared object at a path. Raises GpuFailed where it cannot be loaded."""

    def __init__(self, path: Path, workload: Workload) -> None:
        self._workload = workload
        try:
            self._call = ctypes.CDLL(str(path.resolve()))[ALONE]
        except OSError as error:
            raise GpuFailed(f"{path.name} cannot be loaded here: {error}") from None
        self._call.restype = ctypes.c_char_p
        self._arguments: dict[tuple[int, tuple[Operand, ...]], ctypes.Array[_Any]] = {}
        """Kept: the same calls are timed again and again."""

    def module(self, number: int) -> Mapping[str, Callable[..., None]]:
        """The kernel of a number, as a loaded candidate (tuner.measure.device.bench)."""
        return {ENTRY: lambda *operands: self._launch(number, operands)}

    def _launch(self, number: int, operands: tuple[Operand, ...]) -> None:
        known = self._arguments.get((number, operands))
        if known is None:
            known = self._arguments[number, operands] = self._made(number, operands)
        problem = self._call(known, len(known))
        if problem is not None:
            raise GpuFailed(problem.decode(errors="replace"))

    def _made(self, number: int, operands: tuple[Operand, ...]) -> ctypes.Array[_Any]:
        symbols = symbols_at(self._workload, [each.shape for each in operands])
        numbers = [*(each.address for each in operands), *symbols, number, operands[0].device]
        return (_Any * len(numbers))(*(_Any(0, 0, each) for each in numbers))
