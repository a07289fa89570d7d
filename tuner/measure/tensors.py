"""NumPy arrays handed to kernels. Imports no compiler; tvm_ffi only when an array is handed over."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BFLOAT = 4
"""DLPack's code for bfloat16 among its kinds of types."""
_DTYPE_OFFSET = 20
"""The offset of the type's code in a DLTensor: after a pointer, a device of two int32 and the number of dims."""


def tensor_of(array: NDArray[Any]) -> Any:
    """A ``tvm_ffi.Tensor`` over the memory of ``array``, bfloat16 included."""
    import tvm_ffi  # noqa: PLC0415  (loads a native library)

    return tvm_ffi.from_dlpack(_Bfloat16(array) if array.dtype.name == "bfloat16" else array)


class _Bfloat16:
    """Speaks DLPack for an array of bfloat16, which NumPy refuses to: as uint16, and then under its own name."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._bits = array.view("uint16")

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._bits.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        ctypes.c_uint8.from_address(pointer_of(capsule, b"dltensor") + _DTYPE_OFFSET).value = _BFLOAT
        return capsule

    def __dlpack_device__(self) -> Any:
        return self._bits.__dlpack_device__()
