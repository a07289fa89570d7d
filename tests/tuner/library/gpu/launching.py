"""What tests/tuner/library/gpu/test_launching.py has done in a process with the stand-in for a driver. Each returns
what is wrong, or what was seen."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from tests.contract.rule_samples import SAMPLES
from tests.tuner.library.gpu import driven
from tests.tuner.library.gpu.driven import arrays_of, build, dense, fake_cubins, loaded, on_gpu
from tests.tuner.library.gpu.launches import differences
from tests.tuner.schedule.gpu.sampled import sample_choices
from tuner.errors import GpuFailed
from tuner.library.dispatcher import Leaf, Node, choose
from tuner.library.gpu.build import build_launcher
from tuner.library.package import ENTRY, LibraryFiles
from tuner.measure.gpu.launcher import Launcher, operand
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.build import workload_from_json
from tuner.schedule.gpu.module import Module
from tuner.schedule.gpu.plan import Choices, emit
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.packing import aligned

TREE = Node("m", 16, Leaf(0), Node("m%64", 8, Leaf(1), Node("m", 4096, Leaf(2), Leaf(0))))
THREE = (
    Choices(product=Tiling(16, 64, 32, swap=True)), Choices(product=Tiling(64, 32, 32, split_k=3, descriptors=True)),
    Choices(product=Tiling(128, 64, 64, num_warps=8, parts=3)),
)  # fmt: skip
EVERY = list(enumerate(sample for samples in SAMPLES.values() for sample in samples.values()))
"""The samples by number, as test_launching has them."""
SPLIT = Choices(product=Tiling(64, 64, 32, split_k=2))


@contextmanager
def settings(**changed: str) -> Iterator[None]:
    """The stand-in as GPUs, FAIL and VERSION say."""
    names = {f"FAKE_CUDA_{name.upper()}": value for name, value in changed.items()}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def sample_differences(rule: str, title: str, number: int, count: int) -> list[str]:
    """Of a sample's library, at its smallest ragged shapes."""
    workload = workload_from_json(SAMPLES[rule][title])
    (module,), files = build(workload, [sample_choices(number)])
    found = list[str]()
    with tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        for dims in sorted(ragged_dims(workload), key=workload.points)[:count]:
            found += called(library, module, dims)
    return found


def called(library: Any, module: Module, dims: Mapping[str, int], stream: int = 0, device: int = 0) -> list[str]:
    """What differs between a call and what the module's ``run`` does."""
    arrays = arrays_of(module, dims)
    driven.driver.forget()
    library["kernel"](*(on_gpu(array, device) for array in arrays))
    return differences(module, dims, arrays, driven.driver.calls(), stream)


@cache
def _three() -> tuple[list[Module], LibraryFiles]:
    return build(dense(k=64), THREE, TREE)


def dispatched(sizes: Sequence[int]) -> list[str]:
    """A library of three kernels, each size by the kernel that the tree chooses."""
    modules, files = _three()
    found = list[str]()
    with tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        for size in sizes:
            found += called(library, modules[choose(TREE, {"m": size})], {"m": size})
    return found


def alone(number: int) -> list[str]:
    """What differs where a launcher that stands alone runs three kernels, or that of the sample of a number."""
    workload = dense(k=64) if number < len(THREE) else workload_from_json(dict(EVERY)[number])
    every = THREE if number < len(THREE) else [sample_choices(number)]
    modules = [emit(workload, each) for each in every]
    found = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launcher.so"
        path.write_bytes(build_launcher([(module, fake_cubins(module)) for module in modules]))
        launcher = Launcher(path, workload)
        for place, module in enumerate(modules):
            for dims in sorted(ragged_dims(workload), key=workload.points)[:3]:
                arrays = arrays_of(module, dims)
                given = [operand(each.dtype.name, each.shape, 0, each.ctypes.data) for each in arrays]
                driven.driver.forget()
                launcher.module(place)[ENTRY](*given)
                found += differences(module, dims, arrays, driven.driver.calls(), 0)
    return found


def alone_failing() -> str:
    """What such a launcher raises where the driver launches nothing."""
    workload, choices = dense(k=64), Choices()
    with tempfile.TemporaryDirectory() as folder, settings(fail="cuLaunchKernel=2"):
        module, path = emit(workload, choices), Path(folder) / "launcher.so"
        path.write_bytes(build_launcher([(module, fake_cubins(module))]))
        given = [operand(each.dtype.name, each.shape, 0, each.ctypes.data) for each in arrays_of(module, {"m": 5})]
        try:
            Launcher(path, workload).module(0)[ENTRY](*given)
        except GpuFailed as error:
            return str(error)
    return "nothing"


def on_streams() -> tuple[list[str], list[dict[str, Any]]]:
    """On a stream of the caller's, on the second GPU: what differs, and the calls that are no launches."""
    (module,), files = build(dense(), [SPLIT])
    with tempfile.TemporaryDirectory() as folder, settings(gpus="9.0,9.0"), loaded(files, folder) as library:
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 1), 4711):
            found = called(library, module, {"m": 5}, 4711, 1)
        calls = [call for call in driven.driver.calls() if call["call"] != "launch"]
        driven.driver.forget()
        found += called(library, module, {"m": 5}, 0, 1)
        return found, calls + driven.driver.calls("load", "retain")


def allocated_by_framework() -> list[str]:
    """With an allocator of a framework: all kinds of calls in order."""
    (module,), files = build(dense(), [SPLIT])
    with framework(), tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        found = called(library, module, {"m": 5})
        return found + [call["call"] for call in driven.driver.calls()]


@contextmanager
def framework() -> Iterator[None]:
    """The allocator of the stand-in in the place of a framework's."""
    ffi = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    allocator = ctypes.cast(driven.driver.code.fake_allocator, ctypes.c_void_p)
    ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(allocator, 0, None)
    try:
        yield
    finally:
        ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(ctypes.c_void_p(), 0, None)


def of_many_threads() -> tuple[int, int]:
    """Eight threads call a new library at once: how often its code was loaded, and how often launched."""
    (module,), files = build(dense(), [Choices()])
    arrays = arrays_of(module, {"m": 5})
    with tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library, ThreadPoolExecutor(8) as pool:
        operands = [on_gpu(array) for array in arrays]
        for done in [pool.submit(library["kernel"], *operands) for _ in range(32)]:
            done.result(60)
        return len(driven.driver.calls("load")), len(driven.driver.calls("launch"))


def refusal(case: str) -> str:
    """The message of a call that cannot work."""
    change, targets, size, device = _CASES[case]
    (module,), files = build(dense(), [SPLIT], targets=targets)
    with settings(**change), tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        arrays = arrays_of(module, {"m": size})
        operands = [on_gpu(array, device) for array in arrays]
        try:
            if case == "the framework is out of memory":
                with framework():
                    library["kernel"](*operands)
            else:
                library["kernel"](*operands)
        except Exception as error:
            left = len(driven.driver.calls("allocate")) - len(driven.driver.calls("free"))
            return f"{error}{f', {left} left' if left else ''}"
    return "no error"


_CASES: dict[str, tuple[dict[str, str], tuple[str, ...], int, int]] = {
    "no GPU": ({"gpus": ""}, ("sm_90a",), 5, 0),
    "no permission": ({"fail": "cuInit=100"}, ("sm_90a",), 5, 0),
    "another GPU": ({"gpus": "8.6"}, ("sm_90a", "sm_100a"), 5, 0),
    "a later GPU of letters": ({"gpus": "10.3"}, ("sm_100a",), 5, 0),
    "no such GPU": ({"gpus": "9.0"}, ("sm_90a",), 5, 3),
    "out of memory": ({"fail": "cuMemAllocAsync=2"}, ("sm_90a",), 5, 0),
    "the framework is out of memory": ({"fail": "fake_allocator=1"}, ("sm_90a",), 5, 0),
    "no launch": ({"fail": "cuLaunchKernel=701"}, ("sm_90a",), 5, 0),
    "no load": ({"fail": "cuModuleLoadData=209"}, ("sm_90a",), 5, 0),
    "too much shared memory": ({"fail": "cuFuncSetAttribute=1"}, ("sm_90a",), 5, 0),
}


def chosen_target(gpu: str, targets: Sequence[str]) -> int:
    """For which target code was loaded."""
    (module,), files = build(dense(), [Choices()], targets=targets)
    with settings(gpus=gpu), tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        library["kernel"](*map(on_gpu, arrays_of(module, {"m": 5})))
        (load,) = driven.driver.calls("load")
        return int(load["target"])


def checked(gpus: str, *number: int) -> str:
    """What ``check`` says of a library for sm_90."""
    _, files = build(dense(), [Choices()])
    with settings(gpus=gpus), tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        try:
            library["check"](*number)
        except Exception as error:
            return str(error)
    return ""


LARGE = {"many elements": 2**26, "wide": 2**26, "many rows": 2**31}


def misfits(case: str) -> str:
    """The message of a call with an operand that does not fit."""
    (module,), files = build(dense(), [Choices(is_wide=case == "wide")])
    x, w, out = arrays_of(module, {"m": 5})
    other = dict(zip(("x", "w", "out"), map(on_gpu, (x, w, out)), strict=True))
    if case == "misaligned":
        other["x"] = on_gpu(aligned(np.zeros(5 * 48 + 1, np.float16))[1:].reshape(5, 48))
    elif case == "another GPU":
        other["w"] = on_gpu(w, 1)
    elif case == "shape":
        other["out"] = on_gpu(np.zeros((6, 64), np.float16))
    elif case in LARGE:
        other |= {"x": _large(x, LARGE[case]), "out": _large(out, LARGE[case])}
    with settings(gpus="9.0,9.0"), tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        try:
            library["kernel"](*other.values())
        except Exception as error:
            return str(error)
        return f"launched {[call['grid'] for call in driven.driver.calls('launch')]}"


def _large(array: Any, rows: int) -> Any:
    """A tensor of so many rows, of which there is no memory: nothing looks at it."""
    shape = (rows, array.shape[1])
    described = np.lib.stride_tricks.as_strided(array, shape, array.strides)
    return on_gpu(described)
