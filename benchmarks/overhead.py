"""What a call costs beyond its work, in a library of ``--kernels``; ``--calls`` in a row are one sample of dispatch.

Two figures, both at shapes so small that the work is nearly nothing. From Python: a call of a library with NumPy arrays
and with torch tensors, and a torch.mm of the same operands beside them; of torch.ops.shapewright.call, with tensors of
two axes and of three, which it has to join, and of what Inductor's code calls in its place. Dispatch: a library of
several kernels against each of its kernels as a library of one, called from C in alternating samples; the difference is
what the choice costs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm

import shapewright as sw
from benchmarks.harness.calls import library_of_one
from benchmarks.harness.remote import limit_threads
from benchmarks.harness.results import Row, finish, options_of
from benchmarks.harness.turns import Sampler, alternate, sampler, take_turns
from shapewright.download import write
from shapewright.sources.libraries import load_library
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, bounded
from tuner.library.fitting import fit
from tuner.library.package import ENTRY
from tuner.program.target import Target, native
from tuner.schedule import default_kernel, layout_group, space_of

VALUES, SIZE = 64, 16
"""The range is m = 1..VALUES, with SIZE columns and as many products in each sum."""
TURNS = 15


def main() -> int:
    options = options_of(__doc__, kernels=8, calls=20_000).parse_args()
    limit_threads(1)
    with tempfile.TemporaryDirectory(prefix="shapewright-overhead-") as folder:
        dispatcher = make_dispatcher(native(), options.kernels)
        rows = dispatch_rows(dispatcher, Path(folder), options.calls)
        calls = python_calls_ns(Path(folder) / "all")
    summary = {
        "dispatch_ns": statistics.median(row["dispatch_ns"] for row in rows),
        "dispatch_worst_ns": max(row["dispatch_ns"] for row in rows),
        "kernels": len(dispatcher.kernels), "call_ns": calls,
    }  # fmt: skip
    protocol = {
        "target": native().fingerprint, "threads": 1,
        "dispatch": f"{TURNS} alternating samples of {options.calls} calls",
        "call": "alternating samples of as many calls as 1 ms takes", "value": "median",
    }  # fmt: skip
    return finish(options.json, {"rows": rows, "summary": summary, "protocol": protocol})


def make_dispatcher(target: Target, kernels: int) -> Dispatcher:
    """A dispatcher of so many kernels of one packed layout, each the best for its share of the range."""
    rows = sw.ShapeVar("T", range(1, VALUES + 1))
    task = sw.SearchTask("dense", {"m": rows, "n": SIZE, "k": SIZE}, (rows,), target=target, max_kernels=kernels)
    space, rng = space_of(task), np.random.default_rng(0)
    chosen = [default_kernel(task)]
    while len(chosen) < kernels:
        other = space.mutate(chosen[int(rng.integers(len(chosen)))], rng)
        if other not in chosen and layout_group(task, other) == layout_group(task, chosen[0]):
            chosen.append(other)
    sizes = np.arange(1, VALUES + 1)
    owner = (sizes - 1) * kernels // VALUES
    latency = np.where(owner[:, None] == np.arange(kernels)[None, :], 1.0, 2.0)
    tree = bounded(fit(("m",), sizes[:, None], latency), {"m": (1, VALUES)}, 0)
    return Dispatcher(task, tuple(chosen), 0, tree)


def dispatch_rows(dispatcher: Dispatcher, folder: Path, calls: int) -> list[Row]:
    """Rows for one shape of each kernel: the library that dispatches against the kernel as a library of one."""
    write(build_library(dispatcher, None).files, folder / "all")
    count, rows = len(dispatcher.kernels), []
    for index, kernel in enumerate(dispatcher.kernels):
        size = 1 + (2 * index + 1) * VALUES // (2 * count)
        alone = dispatcher.kernel_for({"T": size})
        folders = {"library": folder / "all", "single": library_of_one(dispatcher.task, alone, folder / kernel.id)}
        contenders = {name: _from_c(each, size, calls) for name, each in folders.items()}
        samples = take_turns(contenders, rounds=TURNS, sample_s=0.0, budget_s=float("inf"))
        library_s, single_s = (statistics.median(samples[name]) for name in contenders)
        difference = {"library_s": library_s, "single_s": single_s, "dispatch_ns": 1e9 * (library_s - single_s)}
        rows.append({"shape": {"T": size}, "kernel": alone.id, **difference})
    return rows


def _from_c(directory: Path, rows: int, calls: int) -> Sampler:
    """The mean seconds of so many calls at a number of rows, made from C whatever number is asked for."""
    packed = np.from_dlpack(sw.load(directory).pack(np.ones((SIZE, SIZE), np.float32)).tensor)
    x, weight, out = map(tvm.runtime.tensor, (np.ones((rows, SIZE), np.float32), packed, np.ones((rows, SIZE), "f4")))
    module = tvm.runtime.load_module(str(directory / "library.so"))
    evaluator = module.time_evaluator(ENTRY, tvm.cpu(), number=calls, repeat=1)
    return lambda number: float(evaluator(x, weight, out).mean)


def python_calls_ns(directory: Path) -> dict[str, float]:
    """Nanoseconds of a call at one row, by kind of operands."""
    library = sw.load(directory)
    x, weight, out = np.ones((1, SIZE), np.float32), np.ones((SIZE, SIZE), np.float32), np.empty((1, SIZE), np.float32)
    packed = library.pack(weight)
    import torch  # noqa: PLC0415 - once the threads are limited

    torch.set_num_threads(1)
    a, b, c = torch.ones(1, SIZE), torch.ones(SIZE, SIZE), torch.empty(1, SIZE)
    calls = {
        "numpy": lambda: library(x, packed, out),
        "torch": lambda: library(a, packed, c),
        "torch.mm": lambda: torch.mm(a, b, out=c),
        **operator_calls(directory),
    }
    seconds = alternate({name: sampler(call) for name, call in calls.items()}, rounds=TURNS)
    return {name: 1e9 * each for name, each in seconds.items()}


def operator_calls(directory: Path) -> dict[str, Any]:
    """Calls of a library at one row as PyTorch makes them: through the operator, and as Inductor's code does."""
    import torch  # noqa: PLC0415

    from shapewright.torch.op import call, direct  # noqa: PLC0415
    from shapewright.torch.plan import Plan, Taken  # noqa: PLC0415

    digest, weight = load_library(directory).digest, torch.ones(SIZE, SIZE)

    def text(view: tuple[tuple[int, ...], ...]) -> str:
        return Plan(digest, (Taken((0,), view), Taken((1,), ((0,), (1,)), packed=True)), view, "float32").text()

    two, three = text(((0,), (1,))), text(((0, 1), (2,)))
    flat, deep, out = torch.ones(1, SIZE), torch.ones(1, 1, SIZE), torch.empty(1, SIZE)
    return {
        "operator": lambda: call([flat, weight], [1, SIZE], two),
        "operator, three axes": lambda: call([deep, weight], [1, 1, SIZE], three),
        "inductor": lambda: direct(flat, weight, two, out=out),
    }


if __name__ == "__main__":
    sys.exit(main())
