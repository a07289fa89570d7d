"""Using a library: load what `pull` or `snapshot` wrote, pack the weight once, call it with any shape."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shapewright import runtime
from shapewright.callers import callers, pool
from shapewright.extras import MissingExtra
from shapewright.gpu import GpuOperands, check_gpu, check_host, is_for_gpu
from shapewright.operands import Operands, dtype_name, is_numpy, shape_text
from shapewright.packed import PackedWeight, packed_sizes
from shapewright.pages import placed
from tuner.errors import InvalidInput, ShapewrightError
from tuner.library import package as files_of
from tuner.library.dispatcher import Dispatcher
from tuner.library.manifest import AGAIN
from tuner.measure.tensors import is_bfloat16, tensor_of
from tuner.program.language.workload import JsonObject, Workload
from tuner.program.target import native
from tuner.program.target.cpu import refused
from tuner.schedule.space import MicroKernel

ENTRY = "kernel"
CODE = f"__tvm_ffi_{ENTRY}"
LAUNCH = "__TVMBackendParallelLaunch"
"""The variable of a library with several threads that points to what runs the parts of its loops."""
REFUSALS = (TypeError, ValueError, RuntimeError, BufferError)
"""What a kernel raises for operands that it does not take as they are."""


class Library:
    """A compiled program: one entry point, right for every shape, reentrant.

    Call it with the inputs in the order in which the program first names them, packed constants in their places, then
    the outputs: ``library(x, library.pack(w), out)``. Operands have the workload's dtypes, are row-major without gaps,
    at any alignment, of anything that speaks DLPack; no output may overlap an input.

    Those of a library for a GPU are on one GPU, at multiples of 16 bytes. Its calls are put on the stream that is
    current there for the framework that tensors are of, and do not wait for their end.
    """

    def __init__(
        self, directory: Path, manifest: JsonObject, dispatcher: Dispatcher, module: Any, code: ctypes.CDLL
    ) -> None:
        """Use ``load``."""
        self.directory = directory
        self.manifest = manifest
        self.dispatcher = dispatcher
        self.digest: str = manifest["digest"]
        self.workload: Workload = dispatcher.task.workload
        self._layouts = files_of.packed_layouts(manifest, self.workload)
        self.is_for_gpu: bool = dispatcher.task.known_target.gpu is not None
        """Whether operands are tensors on an NVIDIA GPU."""
        checks = GpuOperands if self.is_for_gpu else Operands
        self._operands = checks(self.workload, frozenset(self.workload.constants))
        self._constants = tuple(
            (position, tensor.name) for position, tensor in enumerate(self.workload.inputs) if tensor.constant
        )
        self._short = tuple(
            position for position, tensor in enumerate(self.workload.operands)
            if tensor.dtype == "bfloat16" and not (tensor.constant or self.is_for_gpu)
        )  # fmt: skip
        """The operands whose arrays NumPy does not hand over by itself."""
        self._sizes = tuple(
            size
            for position, name in self._constants
            if name in self._layouts
            for size in packed_sizes(self.workload, position)
        )
        self.threads: int = manifest["threads"]
        self._pool: int = self.threads
        """The threads of the pool that a call needs; 1: none."""
        self._module, self._code = module, code
        self._function = module[ENTRY]

    @property
    def tuned_on_cores(self) -> int | None:
        """How many cores the machine had that it was tuned for; None if its manifest does not say."""
        cores = (self.manifest.get("target") or {}).get("hardware", {}).get("cores")
        return cores if isinstance(cores, int) else None

    @property
    def has_sized_constants(self) -> bool:
        """Whether the size of a packed weight has to be compared with those of other operands, at every call."""
        return bool(self._sizes)

    @property
    def needs_pool(self) -> bool:
        """Whether calls run on a pool of TVM's that belongs to the calling thread; ``run`` starts it."""
        return self._pool > 1

    @property
    def entry(self) -> int:
        """The address of the library's function, in the calling convention of TVM FFI: for callers in C."""
        address = ctypes.cast(self._code[CODE], ctypes.c_void_p).value
        assert address is not None
        return address

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

    def pack(self, name: Any, array: Any = None) -> PackedWeight:
        """Pack a constant once for all calls of this library: ``pack(w)``, or ``pack("w", array)`` by its name.

        ``array``: of the tensor's dtype and shape, in any strides. Raises InvalidInput.
        """
        name, array = (self._only_constant(), name) if array is None else (name, array)
        constants = self.workload.constants
        if not isinstance(name, str) or name not in constants:
            known = ", ".join(constants) or "none: pass every operand as it is"
            raise InvalidInput("name", f"{name!r} is not a constant of {self.workload}", f"constants: {known}")
        tensor, values = self.workload.tensors[name], self._operands.view(array, name)
        expected = f"{tensor.dtype} of shape {shape_text(tensor)}"
        dims = [dim.constant for dim in tensor.dims]
        pairs = zip(dims, values.shape, strict=False)
        fits = len(values.shape) == len(dims) and all(dim in (None, size) for dim, size in pairs)
        if not fits or dtype_name(values) != tensor.dtype:
            raise InvalidInput(name, f"{dtype_name(values)} of shape {tuple(values.shape)}", expected)
        if self.is_for_gpu:
            layout = self._layouts.get(name)
            return PackedWeight(self.digest, name, tuple(values.shape), layout.pack(array) if layout else array)
        if not is_numpy(values):
            return PackedWeight(self.digest, name, tuple(values.shape), self._packed_view(values, name))
        layout = self._layouts.get(name)
        packed = tensor_of(placed(layout.pack(values) if layout else values))
        return PackedWeight(self.digest, name, values.shape, packed)

    def _packed_view(self, values: Any, name: str) -> Any:
        """A tensor that NumPy cannot view (bfloat16, or there is no NumPy): as it is, if kernels read it as it is."""
        if name in self._layouts:
            if dtype_name(values) != "bfloat16":
                raise MissingExtra("arrays", f"{name} is packed by NumPy")
            raise InvalidInput(name, f"a {dtype_name(values)} tensor cannot be packed", "an array of ml_dtypes")
        return values

    def _only_constant(self) -> str:
        constants = self.workload.constants
        if len(constants) != 1:
            problem = f"{self.workload} has {len(constants) or 'no'} constants"
            remedy = f"name one: pack(NAME, array), of {', '.join(constants)}" if constants else "pass all as they are"
            raise InvalidInput("name", problem, remedy)
        return constants[0]

    def __call__(self, *operands: Any) -> None:
        """Compute; the outputs are written. Raises InvalidInput for operands that do not fit, GpuFailed where a GPU
        does not do what it should.

        A library tuned for several threads runs on TVM's pool, which a calling thread has for itself; its size is set
        at the thread's first call. Past a number of calling threads others call for them (``shapewright.callers``).
        """
        self.run(self._with_packed(operands) if self._constants else operands)

    def run(self, operands: Sequence[Any]) -> None:
        """Compute with the tensors of packed weights in their places, for callers that keep apart whose they are."""
        if self._pool > 1 and pool.threads != self._pool and not callers.is_ready(self._pool):
            return callers.hand_over(lambda: self.run(operands), self._pool)
        try:
            self._function(*(self._handed(operands) if self._short else operands))
        except REFUSALS as error:
            self._retry_checked(operands, error)

    def _handed(self, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands as a kernel takes them."""
        handed = list(operands)
        for position in self._short:
            value = operands[position] if position < len(operands) else None
            if is_numpy(value) and is_bfloat16(value):
                handed[position] = tensor_of(value)
        return handed

    def launch_by(self, address: int) -> None:
        """Replace TVM's pool for all threads: parallel loops call the function at ``address``, which has the signature
        of ``TVMBackendParallelLaunch``."""
        with suppress(ValueError):  # no kernel of it has a parallel loop
            ctypes.c_void_p.in_dll(self._code, LAUNCH).value = address
        self._pool = 1

    def _with_packed(self, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        unpacked = list(operands)
        for position, name in self._constants:
            packed = operands[position] if len(operands) > position else None
            if type(packed) is not PackedWeight:
                given = type(packed).__name__
                raise InvalidInput(name, f"{given} is not a packed weight", f"{self._how_to_pack(name)}, once")
            if packed.digest != self.digest:
                problem = f"was packed for library {packed.digest[:12]}, this one is {self.digest[:12]}"
                raise InvalidInput(name, problem, "pack it with this library")
            if packed.name != name:
                raise InvalidInput(name, f"is the packed {packed.name}", self._how_to_pack(name))
            unpacked[position] = packed.tensor
        for size in self._sizes:
            size.check(operands)
        return tuple(unpacked)

    def _how_to_pack(self, name: str) -> str:
        return f"library.pack({name})" if len(self._constants) == 1 else f'library.pack("{name}", {name})'

    def _retry_checked(self, operands: Sequence[Any], error: Exception) -> None:
        """Off the fast path: call with operands in the form that kernels take, or say which one is wrong."""
        checked = self._operands.checked(operands)
        if any(new is not old for new, old in zip(checked, operands, strict=True)):
            try:
                return self._function(*self._handed(checked))  # type: ignore[no-any-return]
            except REFUSALS as again:
                error = again
        # What is left is how operands fit together, or what the kernel's own message says.
        problem = self._operands.disagreement(checked) or str(error).strip().splitlines()[-1].strip()
        raise InvalidInput("operands", problem, self._operands.signature()) from error

    def __repr__(self) -> str:
        plural = "s" * (len(self.kernels) != 1)
        return f"<Library {self.workload}: {len(self.kernels)} kernel{plural}, {self.digest[:12]}>"


def library_in(directory: Path) -> Library:
    """The library in a directory, as `shapewright pull` wrote it, loaded. Raises ShapewrightError."""
    if not directory.is_dir():
        raise ShapewrightError(f"{directory} is not a directory: pull a library there first")
    return library_of(files_of.read_files(directory), directory)


def library_of(files: Mapping[str, bytes], source: Path) -> Library:
    """The library of these files, loaded; ``source`` is where they were read. Raises ShapewrightError."""
    manifest = files_of.check_files(files, source)
    check_machine(manifest)
    dispatcher = files_of.dispatcher_of(files, manifest, source)
    module, code = _load_module(files[files_of.LIBRARY], source / files_of.LIBRARY)
    if is_for_gpu(manifest):
        check_gpu(module)
    return Library(source, manifest, dispatcher, module, code)


def check_machine(manifest: JsonObject) -> None:
    """Raise ShapewrightError if this CPU can neither run a library nor call it on a GPU; of GPUs nothing is asked."""
    if is_for_gpu(manifest):
        check_host()
    else:
        check_cpu(manifest)


def check_cpu(manifest: JsonObject) -> None:
    """Raise ShapewrightError if this CPU lacks an instruction set that a library uses."""
    # As text: a later release may know features that this one does not.
    built_for = manifest["target"]
    missing = sorted(set(built_for["hardware"]["features"]) - set(native().hardware.features))
    if missing:
        problem = f"this library is built for {built_for['mcpu']}, this CPU lacks {', '.join(missing)}"
        reason = refused(missing)
        raise ShapewrightError(f"{problem}{f' ({reason})' if reason else ''}: pull one for this target")


def _load_module(binary: bytes, source: Path) -> tuple[Any, ctypes.CDLL]:
    """The module in ``binary``, and its code, from a file of its own: the loader takes a path that it has seen for the
    library that it loaded from there, even if the file has been replaced since. ``source`` is where it was read."""
    runtime.provide()
    with tempfile.NamedTemporaryFile(prefix="shapewright-", suffix=".so") as file:
        file.write(binary)
        file.flush()
        try:
            module = _ffi().load_module(file.name)
            module[ENTRY]  # asked for once: what has no such function is no library
            code = ctypes.CDLL(file.name)
        except (AttributeError, OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise ShapewrightError(f"{source} cannot be loaded ({reason[0]}): {AGAIN}") from error
        return module, code


def _ffi() -> Any:
    import tvm_ffi  # noqa: PLC0415 - a second of import time that only users of a library should pay

    return tvm_ffi
