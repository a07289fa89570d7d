"""Whole calls computed without a GPU: each launch that the stand-in for a driver gets runs in Triton's interpreter, on
the very memory that it was launched with.
"""

from __future__ import annotations

import ctypes
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.contract.rule_samples import SAMPLES
from tests.tuner.library.gpu import driven
from tests.tuner.library.gpu.driven import build, loaded, on_gpu
from tests.tuner.schedule.gpu.sampled import sample_choices
from tuner.library.dispatcher import Leaf, Node, Tree, choose
from tuner.library.package import packed_layouts
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.job.build import workload_from_json
from tuner.program.language.arrays import NUMPY
from tuner.program.language.workload import Workload
from tuner.program.reference import expected
from tuner.schedule.gpu.module import Launch, Module
from tuner.schedule.gpu.plan import Choices
from tuner.schedule.gpu.tiling import Tiling
from tuner.schedule.packing import aligned, row_major

GUARD_BYTES, POISON = 4096, 0x5A
MAX_POINTS = 20_000
"""Evaluations of stage bodies: the interpreter takes some milliseconds for each tile."""


def start(path: str) -> None:
    """Begin a process in which Triton interprets."""
    os.environ["TRITON_INTERPRET"] = "1"
    driven.start(path)


class Memory:
    """What is allocated, by address."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def bytes_from(self, address: int) -> int:
        """How many bytes follow an address in what is allocated there."""
        spans = [(each.ctypes.data, each.nbytes) for each in self.arrays]
        spans += [(call["address"], call["bytes"]) for call in driven.driver.calls("allocate")]
        return next((begin + size - address for begin, size in reversed(spans) if begin <= address < begin + size), 0)

    def tensor(self, address: int, dtype: str) -> Any:
        """Memory from an address on as a tensor of PyTorch."""
        import torch  # noqa: PLC0415 - as Triton, of an extra

        kind = getattr(torch, dtype)
        count = self.bytes_from(address) // kind.itemsize
        if not count:
            return torch.empty(0, dtype=kind)
        return torch.frombuffer(
            (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address), dtype=torch.uint8
        ).view(kind)


class Interpreted:
    """The functions of a module, run when they are launched."""

    def __init__(self, module: Module, memory: Memory) -> None:
        from tuner.schedule.gpu.cubins import loaded as as_python  # noqa: PLC0415 - Triton, of an extra

        self._launches = {launch.function.name: launch for launch in module.launches}
        self._dtypes, self._functions, self._memory = module.dtypes, as_python(module.text), memory

    def run(self, call: Mapping[str, Any]) -> None:
        launch = self._launches[call["name"]]
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        getattr(self._functions, call["name"])[tuple(call["grid"])](*self._arguments(launch, call), **options)

    def _arguments(self, launch: Launch, call: Mapping[str, Any]) -> list[Any]:
        from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: PLC0415 - of an extra

        at = iter([bytes.fromhex(text) for text in call["parameters"]])
        result = [self._memory.tensor(number_of(next(at)), self._dtypes[name]) for name in launch.function.pointers]
        for matrix in launch.function.descriptors:
            base = self._memory.tensor(number_of(next(at)[:8]), matrix.dtype)
            rows, columns, *strides = (number_of(next(at)) for _ in range(4))
            result.append(
                TensorDescriptor(
                    base[: rows * columns].view(rows, columns), [rows, columns], strides, list(matrix.block)
                )
            )
        return result + [number_of(next(at)) for _ in launch.function.symbols]


def number_of(value: bytes) -> int:
    return int.from_bytes(value, "little", signed=True)


def sample_problems(rule: str, title: str, number: int) -> list[str]:
    """Of a library of a sample, at its two largest shapes that are small enough."""
    workload = workload_from_json(SAMPLES[rule][title])
    shapes = sorted(ragged_dims(workload), key=workload.points)
    small = [dims for dims in shapes if workload.points(dims) <= MAX_POINTS][-2:] or shapes[:1]
    return problems(workload, [sample_choices(number)], Leaf(0), small)


def dispatched_problems() -> list[str]:
    """Of a library of three kernels with scratch memory and descriptors, at shapes of each of them."""
    workload = workload_from_json({"op": "dense", "args": {"m": "T", "n": 33, "k": 64}, "epilogue": ["bias", "relu"]})
    choices = [
        Choices(product=Tiling(16, 64, 32, pack="nk")),
        Choices(product=Tiling(64, 32, 32, split_k=2, descriptors=True, pack="nk")),
        Choices(product=Tiling(32, 64, 16, swap=True, pack="nk")),
    ]
    tree = Node("m", 16, Leaf(0), Node("m%64", 8, Leaf(1), Node("m", 100, Leaf(2), Leaf(0))))
    return problems(workload, choices, tree, [{"m": size} for size in (0, 1, 16, 17, 64, 70, 129)])


def problems(workload: Workload, choices: Sequence[Choices], tree: Tree, shapes: Sequence[dict[str, int]]) -> list[str]:
    """What is wrong with what calls compute at these values of the symbols."""
    from tests.tuner.schedule.gpu.interpreting import patch_bfloat16  # noqa: PLC0415 - as above

    patch_bfloat16()
    modules, files = build(workload, choices, tree)
    found = list[str]()
    with tempfile.TemporaryDirectory() as folder, loaded(files, folder) as library:
        for dims in shapes:
            module, memory = modules[choose(tree, dims)], Memory()
            inputs = random_inputs(workload, dims)
            layouts = packed_layouts({"packed_layouts": files.manifest["packed_layouts"]}, workload)
            named = zip(workload.inputs, inputs, strict=True)
            packed = [layouts[each.name].pack(array) if each.name in layouts else array for each, array in named]
            outputs = [_Guarded(each.shape(dims), NUMPY[each.dtype]) for each in workload.outputs]
            memory.arrays = [*(row_major(aligned(array)) for array in packed), *(each.array for each in outputs)]
            driven.driver.forget()
            driven.driver.on_launch(Interpreted(module, memory).run)
            library["kernel"](*map(on_gpu, memory.arrays))
            for output, wanted in zip(outputs, expected(workload, inputs, dims), strict=True):
                found += [f"{dims}: {problem}" for problem in output.problems(wanted)]
    return found


class _Guarded:
    """An output between guard regions."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._region = aligned(np.full(2 * GUARD_BYTES + size, POISON, np.uint8))
        self.array = row_major(self._region[GUARD_BYTES : GUARD_BYTES + size].view(dtype).reshape(shape))

    def problems(self, wanted: Any) -> Iterator[str]:
        wrong = wanted.wrong(self.array)
        if wrong.any():
            yield f"{int(wrong.sum())} of {wrong.size} elements are wrong"
        ends = np.concatenate([self._region[:GUARD_BYTES], self._region[len(self._region) - GUARD_BYTES :]])
        if (ends != POISON).any():
            yield "an output is written outside"
