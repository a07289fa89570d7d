"""What a library takes: checks of operands that a kernel has refused, and messages that name the one that is wrong.

A call does not come here unless the compiled checks have failed, so none of this costs a good call anything.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from tuner.errors import InvalidInput
from tuner.program.language.dims import DimExpr
from tuner.program.language.workload import Tensor, Workload

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operands:
    """The operands of a call of ``workload`` in order; ``packed`` are the constants that come packed."""

    workload: Workload
    packed: frozenset[str]

    def checked(self, operands: Sequence[Any]) -> list[Any]:
        """The operands in a form that a kernel takes. Raises InvalidInput naming the one that does not fit."""
        tensors = self.workload.operands
        if len(operands) != len(tensors):
            names = ", ".join(tensor.name for tensor in tensors)
            raise InvalidInput("operands", f"{len(operands)} given", f"give {names}") from None
        return [self._checked(tensor, operand) for tensor, operand in zip(tensors, operands, strict=True)]

    def _checked(self, tensor: Tensor, value: Any) -> Any:
        if tensor.name in self.packed:
            return value
        array = self.view(value, tensor.name)
        if dtype_name(array) != tensor.dtype or (is_numpy(array) and not array.dtype.isnative):
            raise InvalidInput(tensor.name, f"dtype {dtype_name(array)}", tensor.dtype)
        shape = tuple(array.shape)
        fits = len(shape) == len(tensor.dims) and all(
            dim.constant in (None, size) for dim, size in zip(tensor.dims, shape, strict=True)
        )
        if not fits:
            raise InvalidInput(tensor.name, f"shape {shape}", f"shape {shape_text(tensor)}")
        return self.laid_out(tensor, value, array)

    def view(self, value: Any, name: str) -> Any:
        """What has the dtype and the shape of an operand or a constant. Raises InvalidInput."""
        return as_array(value, name)

    def laid_out(self, tensor: Tensor, value: Any, array: Any) -> Any:
        """What a kernel takes for ``value``, of which ``array`` is the view. Raises InvalidInput."""
        return self._row_major(tensor, value, array) if is_numpy(array) else value

    def _row_major(self, tensor: Tensor, value: Any, array: Array) -> Any:
        """The tensor's elements, row-major and writeable, unless that would need a copy of the user's own array."""
        from tuner.schedule.packing import row_major  # noqa: PLC0415 - NumPy, whose array this is

        if array.size == 0:
            return row_major(array)
        if not array.flags.c_contiguous:
            raise InvalidInput(tensor.name, f"strides {array.strides} leave gaps", "a row-major array without gaps")
        if is_numpy(value) and not array.flags.writeable:
            if tensor in self.workload.outputs:
                raise InvalidInput(tensor.name, "is read-only", "an array that can be written to")
            return array.copy()
        return value

    def disagreement(self, operands: Sequence[Any]) -> str | None:
        """Which dims of operands that fit one by one do not fit together; None if all do."""
        sizes: list[tuple[str, DimExpr, int]] = []
        for tensor, operand in zip(self.workload.operands, operands, strict=True):
            if tensor.name not in self.packed:
                shape = self.view(operand, tensor.name).shape
                names = (f"{tensor.name}.shape[{position}]" for position in range(len(shape)))
                sizes += [(name, dim, int(size)) for name, dim, size in zip(names, tensor.dims, shape, strict=True)]
        first: dict[str, tuple[str, int]] = {}
        for name, dim, size in sizes:
            if str(dim) in self.workload.symbols:
                earlier, wanted = first.setdefault(str(dim), (name, size))
                if size != wanted:
                    return f"{name} is {size}, {earlier} is {wanted}"
        symbols = {symbol: size for symbol, (_, size) in first.items()}
        for name, dim, size in sizes:
            if dim.variables <= symbols.keys() and max(dim.evaluate(symbols), 0) != size:
                return f"{name} is {size}, not {dim} = {max(dim.evaluate(symbols), 0)}"
        return None

    def signature(self) -> str:
        """``x [m, 768], w [2304, 768], out [m, 2304]``."""
        return ", ".join(f"{tensor.name} {shape_text(tensor)}" for tensor in self.workload.operands)


def shape_text(tensor: Tensor) -> str:
    """``[192, m, 64]``: sizes, and symbols where they differ from call to call."""
    return f"[{', '.join(map(str, tensor.dims))}]"


def is_numpy(value: Any) -> TypeGuard[Array]:
    """Whether it is an array of NumPy, which whoever has such arrays has loaded."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def as_array(value: Any, name: str) -> Any:
    """A view of ``value``: of NumPy, or of tvm_ffi for bfloat16, which NumPy does not take over, and without NumPy.

    Raises InvalidInput for what has no memory of the CPU to view.
    """
    if is_numpy(value):
        return value
    try:
        return _from_dlpack(value)
    except (AttributeError, TypeError, BufferError, RuntimeError, ValueError) as error:
        view = _bfloat16_view(value)
        if view is not None:
            return view
        problem = f"{type(value).__name__} cannot be read through DLPack on the CPU ({error})"
        raise InvalidInput(name, problem, "a NumPy array or a CPU tensor, detached from any gradient") from None


def _from_dlpack(value: Any) -> Any:
    try:
        import numpy as np  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        import tvm_ffi  # noqa: PLC0415 - as below

        if getattr(value, "requires_grad", False):
            raise BufferError("it requires a gradient") from None
        return tvm_ffi.from_dlpack(value)
    return np.from_dlpack(value)


def _bfloat16_view(value: Any) -> Any:
    """A tensor of tvm_ffi over the memory of a bfloat16 tensor; None for anything else."""
    import tvm_ffi  # noqa: PLC0415 - a second of import time that only users of a library should pay

    try:
        view = tvm_ffi.from_dlpack(value)
    except (AttributeError, TypeError, BufferError, RuntimeError, ValueError):
        return None
    return view if str(view.dtype) == "bfloat16" and not getattr(value, "requires_grad", False) else None


def dtype_name(array: Any) -> str:
    """The notation's name of an array's element type."""
    return str(array.dtype)
