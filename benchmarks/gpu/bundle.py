"""A bundle: a folder with emitted modules, what they are measured on, and a runner that needs no more than PyTorch."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.blocks import Block
from benchmarks.gpu.cases import sample_choices
from tuner.measure.verification.inputs import random_inputs
from tuner.measure.verification.ragged import ragged_dims
from tuner.program.language.workload import Tensor, Workload
from tuner.program.reference import expected
from tuner.schedule.gpu.plan import Choices, emit

HERE = Path(__file__).parent
MAX_POINTS = 60_000
"""Evaluations of stage bodies in a sample."""
SHAPES = 2
SECONDS: Mapping[str, float] = {
    "random": 0, "others": 10, "cold": 40, "rounded": 30, "compiled": 90, "dense16": 45, "dense32": 45,
    "dense_tf32": 20, "batched": 30, "epilogue": 40, "attention": 30, "rows": 25, "conv": 30, "experts": 10,
    "quantized": 20, "large": 15, "bfloat16": 8,
}  # fmt: skip
"""The most that the blocks of a part may take."""


class Bundle:
    """What is written to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sources").mkdir(parents=True, exist_ok=True)
        (folder / "samples").mkdir(exist_ok=True)
        self.blocks: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self._sources: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Modules."""
        return len(self._sources)

    def source(self, workload: Workload, choices: Choices) -> str:
        """The file of an emitted module."""
        text = emit(workload, choices).text
        name = f"sources/k_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
        if name not in self._sources:
            (self.folder / name).write_text(text)
            self._sources[name] = text
        return name

    def add_block(self, block: Block) -> None:
        dims = block.workload.dims(block.shape)
        kernels = [
            {
                "id": name,
                "source": self.source(block.workload, choices),
                **({"limit": block.limit} if block.limit else {}),
            }
            for name, choices in block.kernels.items()
        ]
        shape = ",".join(f"{name}={value}" for name, value in block.shape.items())
        dtype = block.workload.inputs[0].dtype
        title = f"{block.part} {block.workload} {dtype} {shape}{' tf32' if block.limit == 'tf32' else ''}"
        self.blocks.append({
            "part": block.part, "title": title, "op": block.op, "args": dict(block.args), "kernels": kernels,
            "inputs": [self._operand(tensor, dims, block) for tensor in block.workload.inputs],
            "outputs": [self._operand(tensor, dims, block) for tensor in block.workload.outputs],
            "symbols": [dims[name] for name in block.workload.symbols], "rivals": list(block.rivals),
            "sets": block.sets, "flops": block.workload.flops(dims), "bytes": block.workload.bytes_moved(dims),
        })  # fmt: skip

    @staticmethod
    def _operand(tensor: Tensor, dims: Mapping[str, int], block: Block) -> dict[str, Any]:
        drawn = block.draws.get(tensor.name, {})
        return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape(dims)), **drawn}

    def add_sample(self, title: str, workload: Workload, number: int) -> None:
        """A workload at its smallest ragged shapes, with what the reference says."""
        source = self.source(workload, sample_choices(number))
        every = sorted(ragged_dims(workload), key=workload.points)
        shapes = [dims for dims in every if workload.points(dims) <= MAX_POINTS][-SHAPES:]
        for dims in shapes:
            inputs = random_inputs(workload, dims)
            arrays = {f"in{place}": _stored(array) for place, array in enumerate(inputs)}
            for place, output in enumerate(expected(workload, inputs, dims)):
                arrays |= {f"value{place}": output.value, f"limit{place}": output.limit.astype(np.float32)}
            name = f"samples/s_{len(self.samples)}.npz"
            np.savez_compressed(self.folder / name, **arrays)
            self.samples.append({
                "title": f"{title} {dims}", "source": source, "data": name,
                "in_names": [tensor.name for tensor in workload.inputs],
                "in_dtypes": [tensor.dtype for tensor in workload.inputs],
                "out_dtypes": [tensor.dtype for tensor in workload.outputs],
                "symbols": [dims[symbol] for symbol in workload.symbols],
            })  # fmt: skip

    def write(self) -> None:
        """The list of all, and the runner."""
        about = {"blocks": self.blocks, "samples": self.samples, "seconds": dict(SECONDS)}
        (self.folder / "bundle.json").write_text(json.dumps(about))
        for path in (HERE / "host").glob("*.py"):
            if path.name != "__init__.py":
                shutil.copy(path, self.folder / path.name)


def _stored(array: Any) -> Any:
    """An array as NumPy alone reads it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def write_bundle(folder: Path, blocks: Iterable[Block], samples: Iterable[tuple[str, Workload]]) -> Bundle:
    """A bundle of blocks and samples in a folder, which is emptied first."""
    if folder.exists():
        shutil.rmtree(folder)
    bundle = Bundle(folder)
    for block in blocks:
        bundle.add_block(block)
    for number, (title, workload) in enumerate(samples):
        bundle.add_sample(title, workload, number)
    bundle.write()
    return bundle
