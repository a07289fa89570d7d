"""NumPy arrays and memory of GPUs, as kernels take them. Imports no compiler; tvm_ffi only when one is handed over."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.program.language.dtypes import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

CUDA = 2
"""DLPack's number of the kind of device."""
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's, by kind of dtype; bfloat16 has a kind of its own."""
_BFLOAT = 4
"""DLPack's code for bfloat16 among its kinds of types."""
_DTYPE_OFFSET = 20
"""The offset of the type's code in a DLTensor: after a pointer, a device of two int32 and the number of dims."""

_description = ctypes.PYFUNCTYPE(ctypes.POINTER(ctypes.c_uint8), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
"""The bytes of a DLManagedTensor, which begins with its DLTensor."""


def tensor_of(array: NDArray[Any]) -> Any:
    """A ``tvm_ffi.Tensor`` over the memory of ``array``, bfloat16 included, which NumPy refuses to hand over: as
    uint16, and then under its own name."""
    import tvm_ffi  # noqa: PLC0415  (loads a native library)

    if not is_bfloat16(array):
        return tvm_ffi.from_dlpack(array)
    capsule = array.view("uint16").__dlpack__()
    _description(capsule, b"dltensor")[_DTYPE_OFFSET] = _BFLOAT
    return tvm_ffi.from_dlpack(capsule)


def is_bfloat16(array: NDArray[Any]) -> bool:
    """By the name of the scalar's type: the dtype's own is put together anew at each look."""
    return array.dtype.type.__name__ == "bfloat16"


# -- memory of GPUs ---------------------------------------------------------------------------------------------------
def gpu_tensor(dtype: str, shape: Sequence[int], device: int, address: int = 0) -> Any:
    """A row-major ``tvm_ffi.Tensor`` over memory of a GPU, which is whoever's allocated it."""
    import tvm_ffi  # noqa: PLC0415  (loads a native library)

    made = _OnGpu(dtype, shape, device, address)
    _alive[ctypes.addressof(made.managed)] = made
    return tvm_ffi.from_dlpack(made)


class _Managed(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class _OnGpu:
    """Speaks DLPack for memory of a GPU, with the strides of its shape: frameworks give tensors without elements
    others, and kernels check them."""

    def __init__(self, dtype: str, shape: Sequence[int], device: int, address: int) -> None:
        known, rank = DTYPES[dtype], len(shape)
        steps = [math.prod(shape[axis + 1 :]) for axis in range(rank)]
        self._sizes, self._strides = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*steps)
        self.managed = _Managed(
            data=address, device=CUDA, device_id=device, rank=rank, bits=known.bits, lanes=1,
            code=_BFLOAT if dtype == "bfloat16" else _CODES[known.kind], shape=ctypes.addressof(self._sizes),
            strides=ctypes.addressof(self._strides), deleter=ctypes.cast(_released, ctypes.c_void_p),
        )  # fmt: skip

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.managed.device_id


_alive: dict[int, _OnGpu] = {}
"""Those whose description a tensor has, by address."""
_released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: _alive.pop(address, None) and None)
