"""Libraries for GPUs in a process whose driver is driver.c: what they ask of it, and what a module would launch itself.

``start`` is for a process of its own: what loads ``libcuda.so.1`` there gets the stand-in.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm_ffi

from tuner.library.dispatcher import Dispatcher, Leaf, Tree
from tuner.library.gpu.build import build_gpu_library
from tuner.library.package import LibraryFiles
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.dtypes import DTYPES
from tuner.program.language.workload import ShapeVar, Workload
from tuner.program.target import Target
from tuner.schedule.gpu.cubin import MAP_BYTES, SCRATCH_POINTERS, Cubin, TensorMap
from tuner.schedule.gpu.module import Launch, Module
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.packing import aligned, row_major
from tuner.schedule.space import MicroKernel

ELEMENTS = {"float16": 6, "float32": 7, "bfloat16": 9}
"""The driver's numbers for dtypes of matrices."""
SHARED_BYTES = 60_000
TARGET = "sm_90a"
Called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)


class Driver:
    """The stand-in of this process."""

    def __init__(self, path: str) -> None:
        self.code = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self.code.fake_log.restype = ctypes.c_char_p
        self._called: Any = None

    def calls(self, *kinds: str) -> list[dict[str, Any]]:
        """What was asked for since ``forget``, of these kinds alone if any are given."""
        every = [json.loads(line) for line in self.code.fake_log().decode().splitlines()]
        return [call for call in every if not kinds or call["call"] in kinds]

    def forget(self) -> None:
        self.code.fake_forget()

    def on_launch(self, run: Callable[[dict[str, Any]], None] | None) -> None:
        """Have each launch call ``run`` with what it is; what that raises fails the launch."""

        def called(text: bytes) -> int:
            assert run is not None
            try:
                run(json.loads(text))
            except Exception as error:
                print(f"{type(error).__name__}: {error}")
                return 1
            return 0

        self._called = Called(called) if run else Called()
        self.code.fake_on_launch(self._called)


driver: Driver


def start(path: str) -> None:
    global driver  # noqa: PLW0603 - of this process
    driver = Driver(path)


# -- libraries --------------------------------------------------------------------------------------------------------
def fake_cubins(module: Module, target: str = TARGET) -> list[Cubin]:
    """Machine code that the stand-in takes, with the parameters that a launch has."""
    return [_fake_cubin(launch, target) for launch in module.launches]


def _fake_cubin(launch: Launch, target: str) -> Cubin:
    function = launch.function
    maps = tuple(
        TensorMap(ELEMENTS[each.dtype], DTYPES[each.dtype].bytes, 3, each.block) for each in function.descriptors
    )
    sizes = [8] * len(function.pointers) + [MAP_BYTES, 4, 4, 8, 8] * len(maps) + [4] * len(function.symbols)
    sizes += [8] * SCRATCH_POINTERS
    text = f"FAKE {target}\n{function.name} {' '.join(map(str, sizes))}\n\0"
    return Cubin(
        function.name, text.encode(), "", SHARED_BYTES, 32, 0, launch.num_warps, target, tuple(sizes), maps
    )  # fmt: skip


def task_of(workload: Workload, arch: str = "sm_90") -> SearchTask:
    """A task of a workload whose shape variables are its symbols, or what they are made of."""
    variables = tuple(ShapeVar(name, range(1, 65)) for name in sorted(workload.variables))
    return SearchTask(workload, None, variables, target=None).on(Target.from_json({"kind": "cuda", "arch": arch}))


def build(
    workload: Workload, choices: Sequence[Choices], tree: Tree | None = None, targets: Sequence[str] = (TARGET,),
) -> tuple[list[Module], LibraryFiles]:  # fmt: skip
    """The modules of some micro-kernels, and a library of them that the stand-in runs."""
    modules, files = _built(workload, tuple(choices), tree, tuple(targets))
    return list(modules), files


@cache
def _built(
    workload: Workload, choices: tuple[Choices, ...], tree: Tree | None, targets: tuple[str, ...]
) -> tuple[list[Module], LibraryFiles]:
    """Most tests ask for one of a few libraries."""
    modules = [emit(workload, each) for each in choices]
    kernels = tuple(MicroKernel("gpu", 1, (("number", number),)) for number in range(len(choices)))
    dispatcher = Dispatcher(task_of(workload), kernels, 0, tree or Leaf(0))
    made = [(module, [code for target in targets for code in fake_cubins(module, target)]) for module in modules]
    return modules, build_gpu_library(dispatcher, made)


def library_for(workload: Workload, arch: str) -> LibraryFiles:
    """A library for one instruction set, as in sm_80."""
    module, kernel = emit(workload, Choices()), MicroKernel("gpu", 1, (("number", 0),))
    made = [(module, fake_cubins(module, arch))]
    return build_gpu_library(Dispatcher(task_of(workload, arch), (kernel,), 0, Leaf(0)), made)


def dense(dtype: str = "float16", **args: Any) -> Workload:
    return workload_from_json({"op": "dense", "args": {"m": "T", "n": 64, "k": 48} | args, "dtype": dtype})


@contextmanager
def loaded(files: LibraryFiles, folder: str) -> Iterator[Any]:
    """The library as TVM FFI loads it: anew, nothing of earlier calls is known to it."""
    path = Path(folder) / f"library-{len(list(Path(folder).iterdir()))}.so"
    path.write_bytes(files.files["library.so"])
    driver.forget()
    yield tvm_ffi.load_module(str(path))
    driver.on_launch(None)


# -- operands ---------------------------------------------------------------------------------------------------------
class OnGpu:
    """Speaks DLPack for an array as if its memory were a GPU's."""

    def __init__(self, array: Any, device: int) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **_: Any) -> Any:
        array = self._array.view(np.uint16) if self._array.dtype.name == "bfloat16" else self._array
        capsule = array.__dlpack__()
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        tensor = pointer_of(capsule, b"dltensor")
        ctypes.c_int32.from_address(tensor + 8).value, ctypes.c_int32.from_address(tensor + 12).value = 2, self._device
        if self._array.dtype.name == "bfloat16":
            ctypes.c_uint8.from_address(tensor + 20).value = 4
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device


def on_gpu(array: Any, device: int = 0) -> Any:
    """A tensor of TVM FFI on a GPU of the stand-in, over the memory of an array."""
    return tvm_ffi.from_dlpack(OnGpu(array, device))


def arrays_of(module: Module, dims: Mapping[str, int]) -> list[Any]:
    """Zeros for each operand as the library takes it, at addresses that are multiples of 64 bytes."""
    packed = {pack.tensor: pack.matrix for pack in module.packs}
    shapes = [packed.get(each.name) or each.shape(dims) for each in module.workload.operands]
    return [
        row_major(aligned(np.zeros(shape, ml_dtypes.bfloat16 if each.dtype == "bfloat16" else each.dtype)))
        for shape, each in zip(shapes, module.workload.operands, strict=True)
    ]
