"""NVIDIA's driver from Python: memory, copies, events and what a GPU says of itself. Calls of libraries go through
their own launcher (tuner/library/gpu), in the context that this one makes.

All work is on the default stream of one context, which is the process's: what poisons it ends with the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from tuner.errors import GpuFailed
from tuner.measure.machine import MACHINE

LIBRARY = "libcuda.so.1"
DEFAULT_STREAM = None
MACHINES = frozenset({2, 46, 214, 220, 802})
"""The driver's numbers of what no candidate is to blame for: no memory, a GPU that is held or not ready, memory or
links that have failed."""

_POINTER = POINTER(c_void_p)
FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuEventCreate": (_POINTER, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuModuleLoadData": (_POINTER, c_char_p),
    "cuModuleGetFunction": (_POINTER, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, _POINTER, _POINTER),
}
"""What is asked of it, with the types of the parameters. All give a number, 0 for done."""


class Driver:
    """The driver of this machine. Raises GpuFailed where there is none, and for every call that it does not do."""

    def __init__(self) -> None:
        try:
            self._code = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise GpuFailed(f"no NVIDIA driver is here ({error}): install one") from None
        for name, parameters in FUNCTIONS.items():
            try:
                getattr(self._code, name).argtypes = parameters
            except AttributeError:
                raise GpuFailed(f"the NVIDIA driver is too old: it has no {name}; install one for CUDA 12") from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._code, name)(*arguments)
        if code:
            raise GpuFailed(f"{MACHINE if code in MACHINES else ''}{name}: {self._why(code)}")

    def is_well(self) -> bool:
        """Whether the context takes more work, once all that it has is done: an illegal address is told of by every
        later call."""
        return not self._code.cuCtxSynchronize()

    def finish(self) -> None:
        """Wait for all work."""
        self.call("cuCtxSynchronize")

    # -- what GPUs there are ------------------------------------------------------------------------------------------
    @property
    def version(self) -> str:
        """The CUDA version that the driver is for, as in 12.8."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def device(self, number: int) -> int:
        """The driver's handle of a GPU. Raises GpuFailed where there is none of that number."""
        count, handle = c_int(), c_int()
        self.call("cuDeviceGetCount", byref(count))
        if not 0 <= number < count.value:
            raise GpuFailed(f"there is no GPU {number}: the driver finds {count.value}, see nvidia-smi")
        self.call("cuDeviceGet", byref(handle), number)
        return handle.value

    def attribute(self, device: int, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, device)
        return value.value

    def text(self, function: str, device: int) -> str:
        """What ``cuDeviceGetName`` or ``cuDeviceGetPCIBusId`` says."""
        room = ctypes.create_string_buffer(128)
        self.call(function, room, len(room), device)
        return room.value.decode(errors="replace")

    def use(self, device: int) -> None:
        """Make the GPU's context that of this thread: the one that launchers use, too."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)

    # -- memory -------------------------------------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), max(1, size))
        return address.value

    def release(self, address: int) -> None:
        self.call("cuMemFree_v2", address)

    def write(self, address: int, source: int, size: int) -> None:
        """Copy from this process's memory, at the address ``source``."""
        self.call("cuMemcpyHtoD_v2", address, source, size)

    def read(self, target: int, address: int, size: int) -> None:
        self.call("cuMemcpyDtoH_v2", target, address, size)

    def copy(self, target: int, source: int, size: int) -> None:
        """On the GPU, in the stream's order."""
        self.call("cuMemcpyDtoDAsync_v2", target, source, size, DEFAULT_STREAM)

    def fill(self, address: int, size: int) -> None:
        """Zeros, in the stream's order."""
        self.call("cuMemsetD8Async", address, 0, size, DEFAULT_STREAM)

    # -- events and kernels -------------------------------------------------------------------------------------------
    def event(self) -> c_void_p:
        made = c_void_p()
        self.call("cuEventCreate", byref(made), 0)
        return made

    def record(self, event: c_void_p) -> None:
        self.call("cuEventRecord", event, DEFAULT_STREAM)

    def seconds(self, first: c_void_p, second: c_void_p) -> float:
        """Between two events, once the second has come."""
        milliseconds = c_float()
        self.call("cuEventSynchronize", second)
        self.call("cuEventElapsedTime", byref(milliseconds), first, second)
        return milliseconds.value / 1e3

    def function(self, code: bytes, name: str) -> c_void_p:
        """A function of PTX or machine code."""
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), code)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def launch(self, function: c_void_p, blocks: int, threads: int, *parameters: Any) -> None:
        """With parameters that are values of ctypes."""
        pointers = (c_void_p * len(parameters))(*(ctypes.addressof(each) for each in parameters))
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, DEFAULT_STREAM, pointers, None)

    def _why(self, code: int) -> str:
        texts = []
        for function in (self._code.cuGetErrorString, self._code.cuGetErrorName):
            found = c_char_p()
            function(code, byref(found))
            texts.append((found.value or b"unknown").decode())
        return f"{texts[0]} ({texts[1]})"
