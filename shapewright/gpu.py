"""Operands on NVIDIA GPUs: what a library for one takes, and whether there is one."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from shapewright.operands import Operands
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import Tensor
from tuner.program.target import gpu_host, native

CUDA = 2
"""DLPack's number of the kind of device."""
CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's, by kind of dtype; bfloat16 has BFLOAT."""
BFLOAT = 4
ALIGNMENT = 16


def check_host() -> None:
    """Raise ShapewrightError if the dispatcher of a GPU's library does not run here."""
    wanted, own = gpu_host().architecture, native().architecture
    if wanted != own:
        raise ShapewrightError(f"libraries for GPUs have a dispatcher for {wanted}, this CPU is {own}: use such a host")


def check_gpu(module: Any) -> None:
    """Raise GpuFailed if there is no GPU that a loaded library runs on."""
    _register_errors()
    module["check"]()


@cache
def _register_errors() -> None:
    """What launchers raise is an exception of ours."""
    import tvm_ffi  # noqa: PLC0415 - a second of import time that only users of a library should pay

    tvm_ffi.register_error("GpuFailed", GpuFailed)


class GpuOperands(Operands):
    """The operands of a call, all on one GPU."""

    def view(self, value: Any, name: str) -> Any:
        import tvm_ffi  # noqa: PLC0415 - as above

        remedy = "a tensor on an NVIDIA GPU, detached from any gradient"
        try:
            view = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
        except (AttributeError, TypeError, BufferError, RuntimeError, ValueError) as error:
            problem = f"{type(value).__name__} cannot be read through DLPack ({error})"
            raise InvalidInput(name, problem, remedy) from None
        if view.device.type != "cuda":
            raise InvalidInput(name, f"is on {view.device}", remedy)
        return view

    def checked(self, operands: Sequence[Any]) -> list[Any]:
        result = super().checked(operands)
        views = [self.view(value, each.name) for each, value in zip(self.workload.operands, result, strict=True)]
        first = self.workload.operands[0].name
        for tensor, view in zip(self.workload.operands, views, strict=True):
            if view.device.index != views[0].device.index:
                problem = f"is on {view.device}, {first} on {views[0].device}"
                raise InvalidInput(tensor.name, problem, "tensors of one GPU")
        return result

    def laid_out(self, tensor: Tensor, value: Any, array: Any) -> Any:
        if 0 in tuple(array.shape):
            return _empty(tensor.dtype, tuple(array.shape), array.device.index)
        if not array.is_contiguous():
            problem = f"strides {tuple(array.strides)} leave gaps"
            raise InvalidInput(tensor.name, problem, "a row-major tensor without gaps")
        if array.data_ptr() % ALIGNMENT:
            remedy = "one that begins where its memory does, or a copy"
            raise InvalidInput(tensor.name, f"begins at no multiple of {ALIGNMENT} bytes", remedy)
        return value


# -- tensors without elements -----------------------------------------------------------------------------------------
class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class _Empty:
    """Speaks DLPack for a tensor without elements, with the strides of its shape: frameworks give it others, and
    kernels check them."""

    def __init__(self, dtype: str, shape: tuple[int, ...], device: int) -> None:
        known, rank = DTYPES[dtype], len(shape)
        steps = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
        self._sizes, self._strides = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*steps)
        self.managed = _Managed(
            device=CUDA, device_id=device, rank=rank, code=BFLOAT if dtype == "bfloat16" else CODES[known.kind],
            bits=known.bits, lanes=1, shape=ctypes.addressof(self._sizes), strides=ctypes.addressof(self._strides),
            deleter=ctypes.cast(_released, ctypes.c_void_p),
        )  # fmt: skip

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.managed.device_id


def _empty(dtype: str, shape: tuple[int, ...], device: int) -> Any:
    import tvm_ffi  # noqa: PLC0415 - as above

    made = _Empty(dtype, shape, device)
    _alive[ctypes.addressof(made.managed)] = made
    return tvm_ffi.from_dlpack(made)


_alive: dict[int, _Empty] = {}
"""Those whose memory a tensor has, by address."""
_released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: _alive.pop(address, None) and None)
