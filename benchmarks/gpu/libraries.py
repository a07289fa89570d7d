"""``python -m benchmarks.gpu.libraries NAME=DIR... --json OUT`` times whole libraries for a GPU beside PyTorch.

It runs on a host with the GPU, with PyTorch for CUDA. DIR is what ``shapewright tune`` or ``pull`` wrote: one library
or a folder of several. Libraries of one workload are contenders, as are PyTorch's own ways. All take turns: CUDA graphs
of calls, replayed in an order drawn anew (benchmarks.gpu.host.graphs). Before that each library is called at shapes
drawn at random, between guard regions, and compared with float64.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shapewright as sw
from benchmarks.gpu.host.card import facts
from benchmarks.gpu.host.graphs import Timer, measure
from benchmarks.gpu.host.operands import drawn
from benchmarks.gpu.host.rivals import RIVALS, reference
from benchmarks.gpu.importing import times
from benchmarks.harness.results import write
from benchmarks.harness.suite import named
from benchmarks.harness.turns import geomean
from tuner.program.language.workload import Workload

GUARD, POISON = 64, 77
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}
"""The norm of a row's error over that of the row."""
CALLS = 2000
Step = Callable[["Contest", Mapping[str, int], Timer], dict[str, Any]]
TEST = (1, 2, 5, 11, 24, 37, 43, 53, 62, 64, 81, 97, 100, 119, 127, 128)
"""DietCode's test shapes, with those that were held out."""


@dataclass(frozen=True)
class Ways:
    """``op``: what rivals and the reference compute, ``rivals`` those of every dtype, ``rough`` those in TF32."""

    op: str
    rivals: tuple[str, ...]
    rough: tuple[str, ...] = ()


WAYS: Mapping[str, Ways] = {
    "dense": Ways("dense", ("mm",), ("mm_tf32",)),
    "dense+bias+gelu": Ways("linear_gelu", ("linear_gelu",)),
    "batch_matmul_nt": Ways("bmm_nt", ("bmm",), ("bmm_tf32",)),
    "batch_matmul_nn": Ways("bmm_nn", ("bmm",), ("bmm_tf32",)),
    "softmax": Ways("softmax", ("softmax", "copy")),
    "layer_norm": Ways("layer_norm", ("layer_norm", "copy")),
    "rms_norm": Ways("rms_norm", ("rms_norm", "copy")),
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

    @property
    def ways(self) -> Ways:
        return WAYS[self.op]

    def block(self, shape: Mapping[str, int]) -> dict[str, Any]:
        return {"title": f"{self.title} {dict(shape)}", "op": self.ways.op, "args": self.args,
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
        rivals = self.ways.rivals + (self.ways.rough if self.dtype == "float32" else ())
        block = self.block(shape)
        theirs = {name: RIVALS[name](block, own) for name in rivals}
        return {name: self.call(each, own) for name, each in self.libraries.items()} | theirs


def contests(folders: Mapping[str, Path]) -> Iterator[Contest]:
    """Those of workloads that a rival is known for, in the order of the first folder."""
    found: dict[str, Contest] = {}
    for name, folder in folders.items():
        for manifest in sorted(folder.rglob("manifest.json")):
            library = sw.load(manifest.parent)
            contest = found.setdefault(library.workload.key, Contest(library.workload, {}))
            contest.libraries[name] = library
    for contest in found.values():
        if contest.op in WAYS:
            yield contest
        else:
            print(f"{contest.title}: no rival is known", flush=True)


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


def checks(contest: Contest, count: int, rng: np.random.Generator) -> dict[str, Any]:
    """``count`` shapes drawn at random for each library."""
    wrong, done = [], 0
    for name, library in contest.libraries.items():
        ranges = {each.name: each for each in library.dispatcher.task.shape_vars}
        for _ in range(count):
            shape = {name: int(rng.integers(each.min, each.max + 1)) for name, each in ranges.items()}
            problem = problem_of(contest, library, shape, int(rng.integers(2**31)))
            done += 1
            if problem:
                wrong.append(f"{name} of {contest.title} at {shape}: {problem}")
    return {"done": done, "wrong": wrong}


# -- fast -------------------------------------------------------------------------------------------------------------
def row(contest: Contest, shape: Mapping[str, int], timer: Timer) -> dict[str, Any]:
    own = contest.operands(shape)
    calls = {name: lambda _number, call=call: call() for name, call in contest.contenders(own, shape).items()}
    dims = contest.workload.dims(shape)
    found = measure(timer, calls, 1)
    return {"workload": str(contest.workload), "dtype": contest.dtype, "shape": dict(shape),
            "tuned_on": [name for name, each in contest.libraries.items()
                         if any(known.shape == dict(shape) for known in each.dispatcher.task.instances)],
            "flops": contest.workload.flops(dims), "bytes": contest.workload.bytes_moved(dims), **found}  # fmt: skip


def call_us(contest: Contest, shape: Mapping[str, int]) -> dict[str, float]:
    """Microseconds that a call takes its thread, of many in a row that are put in the stream; the GPU's own where that
    is longer."""
    own = contest.operands(shape)
    found = {}
    for name, call in contest.contenders(own, shape).items():
        call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        found[name] = round((time.perf_counter() - began) / CALLS * 1e6, 2)
    return found


def compiled_row(contest: Contest, shape: Mapping[str, int], timer: Timer) -> dict[str, Any]:
    """Beside torch.compile(mode="max-autotune"), which tunes this shape alone, and how long that takes."""
    own = contest.operands(shape)
    began = time.perf_counter()
    compiled = RIVALS["compiled"](contest.block(shape), own)
    compiled()
    torch.cuda.synchronize()
    spent = time.perf_counter() - began
    every = {**contest.contenders(own, shape), "compiled": compiled}
    calls = {name: lambda _number, call=call: call() for name, call in every.items()}
    return {"workload": str(contest.workload), "dtype": contest.dtype, "shape": dict(shape),
            "compile_s": round(spent, 1), **measure(timer, calls, 1)}  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]], ours: str) -> dict[str, dict[str, list[float]]]:
    """By workload and rival: geometric mean and least of the rival's time over that of ``ours``."""
    found: dict[str, dict[str, list[float]]] = {}
    for title in dict.fromkeys(f"{each['workload']} {each['dtype']}" for each in rows):
        own = [times(each) for each in rows if f"{each['workload']} {each['dtype']}" == title and ours in each["us"]]
        for rival in dict.fromkeys(name for each in own for name in each if name != ours):
            ratios = [each[rival] / each[ours] for each in own if rival in each]
            found.setdefault(title, {})[rival] = [round(geomean(ratios), 3), round(min(ratios), 3)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="+", metavar="NAME=DIR", help="the first is what others are compared with")
    parser.add_argument("--shapes", default=",".join(map(str, TEST)), help="sizes of the first shape variable")
    parser.add_argument("--checks", type=int, default=0, help="shapes drawn at random for each library")
    parser.add_argument("--compiled", default="", help="sizes beside torch.compile(mode='max-autotune')")
    parser.add_argument("--seconds", type=float, default=3600.0, help="what is not done by then is left out")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    folders = {name: Path(folder) for name, _, folder in (each.partition("=") for each in options.libraries)}
    document: dict[str, Any] = {"protocol": facts(), "searches": searches(folders)}
    for part in ("checks", "rows", "calls", "compiled", "left_out"):
        document[part] = []
    for part in measured(list(contests(folders)), options, until, document):
        print(f"{part} done", flush=True)
        document["summary"] = summary(document["rows"], next(iter(folders)))
        write(options.json, document)
    print(json.dumps(document["summary"], indent=1))


def measured(
    every: Sequence[Contest], options: argparse.Namespace, until: float, document: dict[str, Any]
) -> Iterator[str]:
    """Fills the document in, as far as there is time, and says which part is done. What fails is left out, with the
    reason."""
    timer, rng = Timer(), np.random.default_rng(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for contest in every if options.checks else ():
        found = checks(contest, options.checks, rng)
        document["checks"].append({"workload": contest.title, **found})
        print(f"{contest.title}: {found['done']} checked, wrong: {found['wrong'][:3]}", flush=True)
    sizes, tuned = ([int(each) for each in text.split(",") if each] for text in (options.shapes, options.compiled))
    of_layers = sorted((each for each in every if each.op == "dense"), key=lambda each: each.dtype)
    parts: dict[str, tuple[Step, list[tuple[Contest, int]]]] = {
        "rows": (row, [(contest, size) for size in sizes for contest in every]),
        "calls": (_calls, [(contest, sizes[0]) for contest in every]),
        "compiled": (compiled_row, [(contest, size) for size in tuned for contest in of_layers]),
    }
    for part, (step, steps) in parts.items():
        for contest, size in steps:
            (variable, *_) = next(iter(contest.libraries.values())).dispatcher.task.shape_vars
            problem = "no time" if time.monotonic() > until else ""
            try:
                if not problem:
                    document[part].append(step(contest, {variable.name: size}, timer))
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"[:300]
            if problem:
                document["left_out"].append([part, contest.title, size, problem])
                print(f"{part} of {contest.title} at {size}: {problem}", flush=True)
            torch.cuda.empty_cache()
        yield part


def _calls(contest: Contest, shape: Mapping[str, int], _timer: Timer) -> dict[str, Any]:
    return {
        "workload": str(contest.workload),
        "dtype": contest.dtype,
        "shape": dict(shape),
        "us": call_us(contest, shape),
    }


def searches(folders: Mapping[str, Path]) -> dict[str, Any]:
    """What ``shapewright tune --json`` said of each, where it is kept as outcome.json in the folder."""
    paths = {name: folder / "outcome.json" for name, folder in folders.items()}
    return {name: json.loads(path.read_text())["summary"] for name, path in paths.items() if path.exists()}


if __name__ == "__main__":
    main()
