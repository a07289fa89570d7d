"""Using a library: load what `pull` wrote, pack the weight once, call it with any shape."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import package as files_of
from tuner.library.dispatcher import Dispatcher
from tuner.program.target import Target, native
from tuner.program.workload import JsonObject, Workload
from tuner.rules.layout import PanelLayout, aligned, row_major
from tuner.rules.space import MicroKernel

ENTRY = "kernel"
MOST_THREADS = "TVM_NUM_THREADS"
BIG_CORES = 1
"""TVM's mode of a pool whose threads go to the fastest cores, which on most machines are all."""
REFUSALS = (TypeError, ValueError, RuntimeError, BufferError)
"""What a kernel raises for operands that it does not take as they are."""


_pool = threading.local()
"""How many threads TVM's pool of the calling thread has been told to use."""


class PackedWeight:
    """A weight as the kernels of one library read it. Other libraries refuse it."""

    __slots__ = ("digest", "tensor")

    def __init__(self, digest: str, tensor: Any) -> None:
        self.digest = digest
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"<PackedWeight {tuple(self.tensor.shape)} for library {self.digest[:12]}>"


class Library:
    """A compiled operator: one entry point, right for every shape, reentrant.

    Call it with the operands in the order that the operator's entry in the catalogue gives, a packed weight in place
    of a constant operand, the output last: ``library(x, library.pack(w), out)``. Operands are float32, row-major
    without gaps, at any alignment, of anything that speaks DLPack; the output must not overlap an input.
    """

    def __init__(self, directory: Path, manifest: JsonObject, dispatcher: Dispatcher, module: Any) -> None:
        """Use ``load``."""
        self.directory = directory
        self.manifest = manifest
        self.dispatcher = dispatcher
        self.digest: str = manifest["digest"]
        self.workload: Workload = dispatcher.task.workload
        layout = manifest["packed_layout"]
        self._layout = PanelLayout.from_json(layout) if layout else None
        self._weight = next((i for i, operand in enumerate(self.workload.operands) if operand.constant), None)
        self._threads: int = manifest["threads"]
        self._module = module
        self._function = module[ENTRY]

    @property
    def kernels(self) -> tuple[MicroKernel, ...]:
        return self.dispatcher.kernels

    def kernel_for(self, **shape: int) -> MicroKernel:
        """The micro-kernel that runs for these values of the shape variables: ``kernel_for(T=37)``."""
        names = set(self.dispatcher.task.ranges)
        if set(shape) != names or any(isinstance(v, bool) or not isinstance(v, int) or v < 0 for v in shape.values()):
            raise InvalidInput(
                "shape", f"got {shape}", f"give a size of 0 or more for: {', '.join(sorted(names)) or 'nothing'}"
            )
        return self.dispatcher.kernel_for(shape)

    def pack(self, weight: Any) -> PackedWeight:
        """Pack the constant operand, float32 of shape [n, k] in any strides, once for all calls of this library."""
        if self._layout is None or self._weight is None:
            raise InvalidInput("w", f"{self.workload.op} has no constant operand", "pass both operands as they are")
        array = _as_numpy(weight)
        operand = self.workload.operands[self._weight]
        wanted = self._shape_of(self._weight)
        if array.shape != wanted or array.dtype != np.float32:
            raise InvalidInput(operand.name, f"{array.dtype} of shape {array.shape}", f"float32 of shape {wanted}")
        return PackedWeight(self.digest, _ffi().from_dlpack(aligned(self._layout.pack(array))))

    def __call__(self, *operands: Any) -> None:
        """Compute; the last operand is written. Raises InvalidInput for operands that do not fit.

        A library tuned for several threads runs on TVM's pool, which every calling thread has for itself; its size is
        set at the thread's first call.
        """
        if self._threads > 1 and getattr(_pool, "threads", 0) != self._threads:
            _size_pool(self._threads)
        if self._weight is not None:
            operands = self._with_packed(operands)
        try:
            self._function(*operands)
        except REFUSALS as error:
            self._second_look(operands, error)

    def _with_packed(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        at = self._weight or 0
        packed = operands[at] if len(operands) > at else None
        if type(packed) is not PackedWeight:
            name = self.workload.operands[at].name
            raise InvalidInput(name, f"{type(packed).__name__} is not a packed weight", f"library.pack({name}), once")
        if packed.digest != self.digest:
            raise InvalidInput(
                self.workload.operands[at].name,
                f"was packed for library {packed.digest[:12]}, this one is {self.digest[:12]}",
                "pack it with this library",
            )
        return (*operands[:at], packed.tensor, *operands[at + 1 :])

    def _second_look(self, operands: Sequence[Any], error: Exception) -> None:
        """Off the fast path: do what is right all the same, or say what is wrong with which operand."""
        names = [operand.name for operand in self.workload.operands]
        if len(operands) != len(names):
            raise InvalidInput("operands", f"{len(operands)} given", f"give {', '.join(names)}") from None
        arrays = [self._checked(index, operand) for index, operand in enumerate(operands)]
        if any(new is not old for new, old in zip(arrays, operands, strict=True)):
            try:
                return self._function(*arrays)  # type: ignore[no-any-return]
            except REFUSALS as again:
                error = again
        # What is left is how operands fit together, or what the kernel's own message says.
        problem = self._disagreement(arrays) or str(error).strip().splitlines()[-1].strip()
        raise InvalidInput("operands", problem, self._signature()) from error

    def _disagreement(self, operands: Sequence[Any]) -> str | None:
        """Which two of the operands, each of which fits by itself, give one dim different sizes."""
        dims, seen = self.workload.dynamic_axes, dict[str, tuple[str, int]]()
        for index, operand in enumerate(self.workload.operands):
            # A packed weight has no dims that change.
            shape = () if index == self._weight else _as_numpy(operands[index], operand.name).shape
            for position, (axis, size) in enumerate(zip(operand.axes, shape, strict=False)):
                place = f"{operand.name}.shape[{position}]"
                first, wanted = seen.setdefault(dims.get(axis, place), (place, size))
                if size != wanted:
                    return f"{place} is {size}, {first} is {wanted}"
        return None

    def _checked(self, index: int, value: Any) -> Any:
        """``value`` if it fits operand ``index``, in a form that the kernel takes. Raises InvalidInput."""
        operand, is_output = self.workload.operands[index], index == len(self.workload.operands) - 1
        if index == self._weight:
            return value
        array = _as_numpy(value, operand.name)
        wanted = self._shape_of(index)
        fits = len(array.shape) == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, array.shape, strict=True))
        if array.dtype != np.float32 or not array.dtype.isnative:
            raise InvalidInput(operand.name, f"dtype {array.dtype}", "float32")
        if not fits:
            raise InvalidInput(operand.name, f"shape {array.shape}", f"shape {self._shape_text(index)}")
        if array.size == 0:
            return row_major(array)
        if not array.flags.c_contiguous:
            raise InvalidInput(operand.name, f"strides {array.strides} leave gaps", "a row-major array without gaps")
        if isinstance(value, np.ndarray) and not array.flags.writeable:
            if is_output:
                raise InvalidInput(operand.name, "is read-only", "an array that can be written to")
            return array.copy()
        return value

    def _shape_of(self, index: int) -> tuple[int, ...]:
        """The shape of an operand; -1 for what differs from call to call."""
        extents = self.workload.extents_of_dims(dict.fromkeys(self.workload.dynamic_dims, -1))
        return tuple(extents[axis] for axis in self.workload.operands[index].axes)

    def _shape_text(self, index: int) -> str:
        """``[192, m, 64]``: sizes, and the name of the dim where it differs from call to call."""
        dims, axes = self.workload.dynamic_axes, self.workload.operands[index].axes
        sizes = zip(axes, self._shape_of(index), strict=True)
        return f"[{', '.join(dims.get(axis, str(size)) for axis, size in sizes)}]"

    def _signature(self) -> str:
        return ", ".join(f"{operand.name} {self._shape_text(i)}" for i, operand in enumerate(self.workload.operands))

    def __repr__(self) -> str:
        plural = "s" * (len(self.kernels) != 1)
        return f"<Library {self.workload}: {len(self.kernels)} kernel{plural}, {self.digest[:12]}>"


def load(directory: str | Path) -> Library:
    """Load the library in ``directory``, as `shapewright pull` wrote it.

    Raises ShapewrightError if a file is missing or altered, or if this CPU lacks an instruction set that it uses.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ShapewrightError(f"{directory} is not a directory: pull a library there first")
    found = {name: (directory / name).read_bytes() for name in files_of.FILES if (directory / name).is_file()}
    manifest = files_of.check_files(found)
    _check_cpu(manifest)
    dispatcher = Dispatcher.from_json(json.loads(found[files_of.DISPATCH]))
    return Library(directory, manifest, dispatcher, _load_module(found[files_of.LIBRARY]))


def _check_cpu(manifest: JsonObject) -> None:
    built_for = Target.from_json(manifest["target"])
    missing = sorted(set(built_for.hardware.features) - set(native().hardware.features))
    if missing:
        raise ShapewrightError(
            f"this library is built for {built_for.mcpu}, this CPU lacks {', '.join(missing)}: pull one for this target"
        )


def _load_module(binary: bytes) -> Any:
    """The module in ``binary``, from a file of its own: the loader takes a path that it has seen for the library that
    it loaded from there, even if the file has been replaced since."""
    _load_runtime()
    with tempfile.NamedTemporaryFile(prefix="shapewright-", suffix=".so") as file:
        file.write(binary)
        file.flush()
        return _ffi().load_module(file.name)


@cache
def _load_runtime() -> None:
    """Parallel loops and workspaces need TVM's runtime library, a few MB; no more of TVM."""
    spec = importlib.util.find_spec("tvm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        runtime = Path(folder) / "lib" / "libtvm_runtime.so"
        if runtime.is_file():
            _ffi()  # libtvm_ffi.so, which the runtime needs
            ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)


def _size_pool(threads: int) -> None:
    """Have parallel loops that this thread starts run on so many threads; TVM's own choice is half of the machine's.

    TVM reads the most that it may use from the environment when it makes a thread's pool, which ``configure`` does.
    """
    configure = _ffi().get_global_func("runtime.config_threadpool")
    before = os.environ.get(MOST_THREADS)
    os.environ[MOST_THREADS] = str(max(threads, int(before or 0)))
    try:
        configure(BIG_CORES, threads)
    finally:
        if before is None:
            del os.environ[MOST_THREADS]
        else:
            os.environ[MOST_THREADS] = before
    _pool.threads = threads


def _ffi() -> Any:
    import tvm_ffi  # noqa: PLC0415 - a second of import time that only users of a library should pay

    return tvm_ffi


def _as_numpy(value: Any, name: str = "w") -> np.ndarray[Any, Any]:
    """A view of ``value`` in NumPy. Raises InvalidInput for what has no memory of the CPU to view."""
    if isinstance(value, np.ndarray):
        return value
    try:
        array: np.ndarray[Any, Any] = np.from_dlpack(value)
    except (AttributeError, TypeError, BufferError, RuntimeError, ValueError) as error:
        problem = f"{type(value).__name__} cannot be read through DLPack on the CPU ({error})"
        raise InvalidInput(name, problem, "a NumPy array or a CPU tensor, detached from any gradient") from None
    return array
