"""Operands on NVIDIA GPUs: what a library for one takes, and whether there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from shapewright.operands import Operands
from tuner.errors import GpuFailed, InvalidInput, ShapewrightError
from tuner.measure.tensors import gpu_tensor
from tuner.program.language.workload import Tensor
from tuner.program.target import gpu_host, native

ALIGNMENT = 16


def is_for_gpu(manifest: Mapping[str, Any]) -> bool:
    """Whether the library of a checked manifest runs on GPUs."""
    return bool(manifest["target"].get("kind") == "cuda")


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
            return gpu_tensor(tensor.dtype, tuple(array.shape), array.device.index)
        if not array.is_contiguous():
            problem = f"strides {tuple(array.strides)} leave gaps"
            raise InvalidInput(tensor.name, problem, "a row-major tensor without gaps")
        if array.data_ptr() % ALIGNMENT:
            remedy = "one that begins where its memory does, or a copy"
            raise InvalidInput(tensor.name, f"begins at no multiple of {ALIGNMENT} bytes", remedy)
        return value
