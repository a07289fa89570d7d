"""Libraries of one workload on a GPU beside PyTorch's own ways: operands, calls, and whether they are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import shapewright as sw
from benchmarks.gpu.rivals import RIVALS, reference
from benchmarks.harness.suite import named
from tuner.program.language.workload import Workload

GUARD, POISON = 64, 77
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}
"""The norm of a row's error over that of the row."""


@dataclass(frozen=True)
class Rivals:
    """``op``: what rivals and the reference compute; ``names``: rivals in every dtype; ``tf32``: rivals of float32 that
    multiply in TF32."""

    op: str
    names: tuple[str, ...]
    tf32: tuple[str, ...] = ()


RIVALS_OF: Mapping[str, Rivals] = {
    "dense": Rivals("dense", ("mm",), ("mm_tf32",)),
    "dense+bias+gelu": Rivals("linear_gelu", ("linear_gelu",)),
    "batch_matmul_nt": Rivals("bmm_nt", ("bmm",), ("bmm_tf32",)),
    "batch_matmul_nn": Rivals("bmm_nn", ("bmm",), ("bmm_tf32",)),
    "softmax": Rivals("softmax", ("softmax", "copy")),
    "layer_norm": Rivals("layer_norm", ("layer_norm", "copy")),
    "rms_norm": Rivals("rms_norm", ("rms_norm", "copy")),
}
"""By the name of an operator (benchmarks.harness.suite.named)."""


@dataclass
class Contest:
    """The libraries of one workload by name, at one set of operands at a time."""

    workload: Workload
    libraries: dict[str, sw.Library]

    def __post_init__(self) -> None:
        self.op, self.args = named(self.workload)
        self.dtype = self.workload.inputs[0].dtype
        self.title = f"{self.workload} {self.dtype}"

    def shape(self, size: int) -> dict[str, int]:
        """The first shape variable at a size, the others at their largest."""
        first, *others = next(iter(self.libraries.values())).dispatcher.task.shape_vars
        return {first.name: size, **{each.name: each.max for each in others}}

    def about(self, shape: Mapping[str, int]) -> dict[str, Any]:
        return {"workload": str(self.workload), "dtype": self.dtype, "shape": dict(shape)}

    def tuned_on(self, shape: Mapping[str, int]) -> list[str]:
        """Names of the libraries that were tuned on the shape."""
        return [name for name, library in self.libraries.items()
                if any(known.shape == dict(shape) for known in library.dispatcher.task.instances)]  # fmt: skip

    def block(self, shape: Mapping[str, int]) -> dict[str, Any]:
        return {"title": f"{self.title} {dict(shape)}", "op": RIVALS_OF[self.op].op, "args": self.args,
                "outputs": [{"name": each.name} for each in self.workload.outputs]}  # fmt: skip

    def operands(self, shape: Mapping[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
        dims = self.workload.dims(shape)
        known = [
            drawn({"name": each.name, "dtype": each.dtype, "shape": each.shape(dims)}, seed + place, "cuda")
            for place, each in enumerate(self.workload.operands)
        ]
        return {each.name: tensor for each, tensor in zip(self.workload.operands, known, strict=True)}

    def call(self, library: sw.Library, own: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        constants = set(self.workload.constants)
        given = [library.pack(name, each) if name in constants else each for name, each in own.items()]
        return lambda: library(*given)

    def contenders(self, own: Mapping[str, torch.Tensor], shape: Mapping[str, int]) -> dict[str, Callable[[], Any]]:
        known, block = RIVALS_OF[self.op], self.block(shape)
        names = known.names + (known.tf32 if self.dtype == "float32" else ())
        theirs = {name: RIVALS[name](block, own) for name in names}
        return {name: self.call(each, own) for name, each in self.libraries.items()} | theirs


def drawn(operand: Mapping[str, Any], seed: int, device: str) -> torch.Tensor:
    """A tensor of random values from a normal distribution."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype, shape = getattr(torch, operand["dtype"]), tuple(operand["shape"])
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    return values.to(dtype)


# -- right ------------------------------------------------------------------------------------------------------------
def problem_of(contest: Contest, library: sw.Library, shape: Mapping[str, int], seed: int) -> str:
    """What is wrong with a call between guard regions; nothing where it is right."""
    own = contest.operands(shape, seed)
    wanted = reference(contest.block(shape), own)
    regions = {}
    for output in contest.workload.outputs:
        count = own[output.name].numel()
        region = torch.full((count + 2 * GUARD,), POISON, dtype=own[output.name].dtype, device="cuda")
        regions[output.name] = region
        own[output.name] = region[GUARD : GUARD + count].view(own[output.name].shape)
    contest.call(library, own)()
    torch.cuda.synchronize()
    for name, region in regions.items():
        guard = torch.cat([region[:GUARD], region[-GUARD:]])
        if not bool((guard == POISON).all()):
            return f"{name} is written outside"
        found, exact = own[name].double(), wanted[name].double()
        rows = (found - exact).norm(dim=-1) / exact.norm(dim=-1).clamp_min(1e-30)
        worst = float(rows.max()) if rows.numel() else 0.0
        if not worst <= LIMITS[contest.dtype]:
            return f"{name}: a row is off by {worst:.2e} of its norm"
    return ""


def checks(contest: Contest, count: int) -> dict[str, Any]:
    """``count`` shapes drawn at random for each library."""
    wrong, done, rng = [], 0, np.random.default_rng(0)
    for name, library in contest.libraries.items():
        ranges = {each.name: each for each in library.dispatcher.task.shape_vars}
        for _ in range(count):
            shape = {name: int(rng.integers(each.min, each.max + 1)) for name, each in ranges.items()}
            problem = problem_of(contest, library, shape, int(rng.integers(2**31)))
            done += 1
            if problem:
                wrong.append(f"{name} of {contest.title} at {shape}: {problem}")
    print(f"{contest.title}: {done} checked, wrong: {wrong[:3]}", flush=True)
    return {"workload": contest.title, "done": done, "wrong": wrong}
