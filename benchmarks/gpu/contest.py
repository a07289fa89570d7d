"""Libraries of one workload on a GPU beside PyTorch's own ways: operands, calls, whether they are right, times."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

import shapewright as sw
from benchmarks.gpu.dlight import calls_of
from benchmarks.harness.suite import named
from tuner.program.language.workload import Workload

GUARD, POISON = 64, 77
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "tf32": 1e-3}
"""What ``worst_error`` may be. Exact sums of operands that are rounded to TF32 have 4e-4 at 128 columns, 7e-4 at ten
and up to 9.9e-4 at two; of operands that are cut off they have 9.6e-4 and more, 1.04e-3 at ten."""
OPS = ("dense", "dense+bias+gelu", "batch_matmul_nt", "batch_matmul_nn", "softmax", "layer_norm", "rms_norm")
"""Operators (benchmarks.harness.suite.named) that PyTorch has a way for."""
RIVALS = (
    "mm", "mm_tf32", "bmm", "bmm_tf32", "linear_gelu", "compiled", "softmax", "layer_norm", "rms_norm", "copy",
    "dlight",
)  # fmt: skip
ROUNDS = 7
SLOW = 3.0
"""A call so many times slower than the fastest is not timed again."""
Call = Callable[[], Any]
Operands = Mapping[str, torch.Tensor]


# -- PyTorch's own ways -----------------------------------------------------------------------------------------------
def rivals(op: str, args: Mapping[str, Any], own: Operands) -> dict[str, Call]:
    """Calls by name. The first is the reference, where operands are in float64."""
    x = own["x"]
    if op == "dense" or op.startswith("batch_matmul"):
        name, y = ("mm", own["w"].T) if op == "dense" else ("bmm", own["y"].mT if op.endswith("nt") else own["y"])
        multiply, out = getattr(torch, name), torch.empty_like(own["out"])
        plain, tf32 = (in_tf32(allowed, lambda: multiply(x, y, out=out)) for allowed in (False, True))
        return {name: plain} | ({f"{name}_tf32": tf32} if x.dtype == torch.float32 else {})
    if op == "dense+bias+gelu":
        return {"linear_gelu": in_tf32(False, lambda: F.gelu(F.linear(x, own["w"], own["bias"])))}
    axes, copied = x.shape[1:], torch.empty_like(x)
    calls: dict[str, Call] = {
        "softmax": lambda: torch.softmax(x, dim=1),
        "layer_norm": lambda: F.layer_norm(x, axes, own["gamma"], own["beta"], args["eps"]),
        "rms_norm": lambda: F.rms_norm(x, axes, own["gamma"], args["eps"]),
    }
    return {op: calls[op], "copy": lambda: copied.copy_(x)}


def in_tf32(allowed: bool, call: Call) -> Call:
    def run() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        return call()

    return run


# -- libraries --------------------------------------------------------------------------------------------------------
@dataclass
class Contest:
    """The libraries of one workload by name, at one set of operands at a time."""

    workload: Workload
    libraries: dict[str, sw.Library]
    dlight: Path | None = None
    """What ``benchmarks.gpu.dlight`` made."""

    def __post_init__(self) -> None:
        self.op, self.args = named(self.workload)
        self.dtype = "tf32" if self.workload.tf32 else self.workload.inputs[0].dtype
        self.title = f"{self.workload} {self.dtype}"

    def shape(self, size: int) -> dict[str, int]:
        """The first shape variable at a size, the others at their largest."""
        first, *others = next(iter(self.libraries.values())).dispatcher.task.shape_vars
        return {first.name: size, **{each.name: each.max for each in others}}

    def operands(self, shape: Mapping[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
        """Values from a normal distribution, in outputs, too."""
        dims, generator = self.workload.dims(shape), torch.Generator("cuda").manual_seed(seed)
        draw = partial(torch.randn, generator=generator, device="cuda")
        return {each.name: draw(each.shape(dims)).to(getattr(torch, each.dtype)) for each in self.workload.operands}

    def call(self, library: sw.Library, own: Operands) -> Call:
        constants = self.workload.constants
        given = [library.pack(name, each) if name in constants else each for name, each in own.items()]
        return lambda: library(*given)

    def contenders(self, own: Operands, shape: Mapping[str, int]) -> dict[str, Call]:
        """DLight's kernels are rivals where they are right: nobody else has compared them."""
        ours = {name: self.call(each, own) for name, each in self.libraries.items()}
        calls, exact = rivals(self.op, self.args, own), self.exact(own)
        for name, call in calls_of(self.dlight, self.workload, shape, own).items():
            call()
            error = worst_error(own[self.workload.outputs[0].name], exact)
            if error <= LIMITS[self.dtype]:
                calls[name] = call
            else:
                print(f"{name} of {self.title} at {dict(shape)}: a row is off by {error:.2e} of its norm", flush=True)
        return ours | calls

    def exact(self, own: Operands) -> torch.Tensor:
        """The first output in float64."""
        wide = {name: tensor.double() for name, tensor in own.items()}
        result: torch.Tensor = next(iter(rivals(self.op, self.args, wide).values()))()
        return result


# -- right ------------------------------------------------------------------------------------------------------------
def problem_of(contest: Contest, library: sw.Library, shape: Mapping[str, int], seed: int) -> str:
    """What is wrong with a call between guard regions; nothing where it is right."""
    own, (output,) = contest.operands(shape, seed), contest.workload.outputs
    exact = contest.exact(own)
    before = own[output.name]
    region = torch.full((before.numel() + 2 * GUARD,), POISON, dtype=before.dtype, device="cuda")
    own[output.name] = region[GUARD:-GUARD].view(before.shape)
    contest.call(library, own)()
    torch.cuda.synchronize()
    if not bool((torch.cat([region[:GUARD], region[-GUARD:]]) == POISON).all()):
        return f"{output.name} is written outside"
    worst = worst_error(own[output.name], exact)
    return "" if worst <= LIMITS[contest.dtype] else f"{output.name}: a row is off by {worst:.2e} of its norm"


def worst_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Of any row, the error's norm over the row's, or over that of rows in the mean: short rows may nearly vanish."""
    norms = exact.norm(dim=-1)
    rows = (found.double() - exact).norm(dim=-1) / norms.clamp_min(norms.square().mean().sqrt()).clamp_min(1e-30)
    return float(rows.max()) if rows.numel() else 0.0


def checks(contest: Contest, count: int) -> dict[str, Any]:
    """``count`` shapes drawn at random for each library."""
    wrong, rng = list[str](), np.random.default_rng(0)
    for name, library in contest.libraries.items():
        for _ in range(count):
            ranges = library.dispatcher.task.shape_vars
            shape = {each.name: int(rng.integers(each.min, each.max + 1)) for each in ranges}
            if problem := problem_of(contest, library, shape, int(rng.integers(2**31))):
                wrong.append(f"{name} of {contest.title} at {shape}: {problem}")
    done = count * len(contest.libraries)
    print(f"{contest.title}: {done} checked, wrong: {wrong[:3]}", flush=True)
    return {"workload": contest.title, "done": done, "wrong": wrong}


# -- fast -------------------------------------------------------------------------------------------------------------
def measure(calls: Mapping[str, Call]) -> dict[str, Any]:
    """The median of each call in microseconds, with the quartile distance over it; all in turns, as CUDA graphs of
    calls that are replayed between events."""
    for call in calls.values():
        call()
    fastest = min(microseconds([call])[0] for call in calls.values())
    launches = 20 if fastest < 100 else 5 if fastest < 500 else 1
    graphs, failed = dict[str, torch.cuda.CUDAGraph](), dict[str, str]()
    for name, call in calls.items():
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                for _ in range(launches):
                    call()
            graphs[name] = graph
        except Exception as error:
            failed[name] = str(error)[:200]
    microseconds([graph.replay for graph in graphs.values()])
    found: dict[str, list[float]] = {name: [] for name in graphs}
    active = list(graphs)
    for _ in range(ROUNDS):
        random.shuffle(active)
        for name, us in zip(active, microseconds([graphs[name].replay for name in active]), strict=True):
            found[name].append(us / launches)
        best = min(values[0] for values in found.values())
        active = [name for name in active if found[name][0] <= SLOW * best]
    spread = dict.fromkeys(found, -1.0)
    for name in active:
        low, middle, high = statistics.quantiles(found[name], n=4)
        spread[name] = round((high - low) / middle, 4)
    medians = {name: round(statistics.median(values), 3) for name, values in found.items()}
    return {"us": medians, "spread": spread, "launches": launches, "rounds": ROUNDS, "failed": failed}


def microseconds(calls: Sequence[Call]) -> list[float]:
    """Of each call, its start included."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in calls]
    torch.cuda.synchronize()
    for (first, last), call in zip(events, calls, strict=True):
        first.record()
        call()
        last.record()
    torch.cuda.synchronize()
    return [float(first.elapsed_time(last)) * 1e3 for first, last in events]
