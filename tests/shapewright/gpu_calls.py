"""What tests/shapewright/test_gpu.py does with libraries in a process with the stand-in for a driver."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from shapewright.download import write
from shapewright.library import Library
from shapewright.loading import load
from tests.shapewright.libraries import altered
from tests.tuner.library.gpu import driven
from tests.tuner.library.gpu.driven import build, dense, on_gpu
from tests.tuner.library.gpu.launches import differences
from tuner.errors import InvalidInput
from tuner.program.job.build import workload_from_json
from tuner.program.language.workload import Workload
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.packing import aligned

PACKED = Choices(product=Tiling(64, 64, 32, pack="kn"))
PLAIN = Choices()


def saved(folder: Path, workload: Workload, *choices: Choices) -> Path:
    write(build(workload, choices)[1].files, folder)
    return folder


class Weight:
    """An array of the Array API on a GPU of the stand-in, as far as packing needs it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array_namespace__(self) -> Any:
        return _Namespace

    def __dlpack__(self, **_: Any) -> Any:
        return driven.OnGpu(self.array, 0).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __setitem__(self, key: Any, value: Weight) -> None:
        self.array[key] = value.array

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    device = "cuda:0"


class _Namespace:
    reshape = staticmethod(lambda each, shape: Weight(each.array.reshape(shape)))
    permute_dims = staticmethod(lambda each, order: Weight(each.array.transpose(order)))

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any, device: str) -> Weight:
        assert device == Weight.device
        return Weight(aligned(np.empty(shape, dtype)))


def packed_call() -> list[str]:
    """A call with a packed weight: what differs from what the module launches, and where the weight lies."""
    workload = dense()
    (module,), files = build(workload, [PACKED])
    values = np.arange(64 * 48, dtype=np.float16).reshape(64, 48)
    with tempfile.TemporaryDirectory() as folder:
        write(files.files, Path(folder))
        library = load(folder)
        packed = library.pack(Weight(values))
        x, out = aligned(np.zeros((5, 48), np.float16)), aligned(np.zeros((5, 64), np.float16))
        driven.driver.forget()
        library(on_gpu(x), packed, on_gpu(out))
        found = differences(module, {"m": 5}, [x, packed.tensor.array, out], driven.driver.calls(), 0)
        if not (packed.tensor.array == values.T).all():
            found.append("the weight is packed otherwise")
        return [*found, repr(packed).partition(" for ")[0], repr(library.kernel_for(T=37))]


def without_elements(workload: dict[str, Any], dims: dict[str, int]) -> list[str]:
    """A call with tensors without elements, with the strides that PyTorch gives them."""
    made = workload_from_json(workload)
    (module,), files = build(made, [PLAIN])
    arrays = driven.arrays_of(module, dims)
    operands = [
        on_gpu(
            np.lib.stride_tricks.as_strided(each, each.shape, [each.itemsize] * each.ndim) if not each.size else each
        )
        for each in arrays
    ]
    with tempfile.TemporaryDirectory() as folder:
        write(files.files, Path(folder))
        library = load(folder)
        driven.driver.forget()
        for _ in range(3):
            library(*operands)
        names = [call["name"] for call in driven.driver.calls("launch")]
        return names[: len(names) // 3]


def message(case: str) -> str:
    """What a call with a wrong operand says, with the class of the error."""
    with tempfile.TemporaryDirectory() as folder:
        library = load(saved(Path(folder), dense(), PLAIN))
        operands = [on_gpu(aligned(np.zeros(shape, np.float16))) for shape in ((5, 48), (64, 48), (5, 64))]
        try:
            _call(case, library, operands)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            os.environ.pop("FAKE_CUDA_FAIL", None)
    return "no error"


def _call(case: str, library: Library, operands: list[Any]) -> None:
    x, w, out = operands
    weight = library.pack(w)
    match case:
        case "on the CPU":
            library(np.zeros((5, 48), np.float16), weight, out)
        case "weight on the CPU":
            library.pack(np.zeros((64, 48), np.float16))
        case "another dtype":
            library(on_gpu(np.zeros((5, 48), ml_dtypes.bfloat16)), weight, out)
        case "another shape":
            library(on_gpu(np.zeros((5, 47), np.float16)), weight, out)
        case "other rows":
            library(x, weight, on_gpu(aligned(np.zeros((6, 64), np.float16))))
        case "gaps":
            library(on_gpu(aligned(np.zeros((10, 48), np.float16))[::2]), weight, out)
        case "misaligned":
            library(on_gpu(aligned(np.zeros(5 * 48 + 1, np.float16))[1:].reshape(5, 48)), weight, out)
        case "two GPUs":
            library(on_gpu(aligned(np.zeros((5, 48), np.float16)), 1), weight, out)
        case "not packed":
            library(x, w, out)
        case "no memory":
            os.environ["FAKE_CUDA_FAIL"] = "cuLaunchKernel=2"
            library(x, weight, out)
        case _:
            library(x, weight, out)


def loading(gpus: str) -> str:
    """What ``load`` says of a library for sm_90 on a machine with these GPUs."""
    os.environ["FAKE_CUDA_GPUS"] = gpus
    try:
        with tempfile.TemporaryDirectory() as folder:
            load(saved(Path(folder), dense(), PLAIN))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        del os.environ["FAKE_CUDA_GPUS"]
    return ""


def loaded_of(archs: tuple[str, ...], gpus: str) -> str:
    """Which of the libraries in a directory, one for each instruction set, is loaded where these GPUs are; or why none
    is. Those of one instruction set are for several products."""
    os.environ["FAKE_CUDA_GPUS"] = gpus
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, arch in enumerate(archs):
                own, there = Path(folder) / "own", Path(folder) / arch / str(number)
                write(driven.library_for(dense(), arch).files, own)
                altered(own, there, target_fingerprint=f"product-{number}")
                shutil.rmtree(own)
            return load(folder).directory.parent.name
    except InvalidInput as error:
        return str(error)
    finally:
        del os.environ["FAKE_CUDA_GPUS"]
