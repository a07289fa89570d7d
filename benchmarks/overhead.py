"""What a call costs beyond its work: `python -m benchmarks.overhead [--kernels N] --json OUT`.

Two figures, both at shapes so small that the work is nearly nothing. From Python: a call of a library with NumPy arrays
and with torch tensors, and a torch.mm of the same operands beside them; of torch.ops.shapewright.call, with tensors of
two axes and of three, which it has to join, and of what Inductor's code calls in its place. Dispatch: a library of
several kernels against each of its kernels as a library of one, called from C in alternating samples; the difference is
what the choice costs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import limit_threads

VALUES, SIZE = 64, 16
"""The range is m = 1..VALUES, with SIZE columns and as many products in each sum."""
KERNELS = 8
CALLS = 20_000
TURNS = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=KERNELS, help="in the library that dispatches")
    parser.add_argument("--calls", type=int, default=CALLS, help="in a row, of one sample")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    limit_threads(1)
    from tuner.program.target import native  # noqa: PLC0415 - after the threads are limited

    target = native()
    with tempfile.TemporaryDirectory(prefix="shapewright-overhead-") as folder:
        dispatcher = make_dispatcher(target, options.kernels)
        rows = dispatch_rows(dispatcher, Path(folder), options.calls)
        calls = python_calls_ns(Path(folder) / "all")
    summary = {
        "dispatch_ns": statistics.median(row["dispatch_ns"] for row in rows),
        "dispatch_worst_ns": max(row["dispatch_ns"] for row in rows),
        "kernels": len(dispatcher.kernels),
        "call_ns": calls,
    }
    protocol = {
        "target": target.fingerprint, "threads": 1, "dispatch": f"{TURNS} alternating samples of {options.calls} calls",
        "call": "alternating samples of as many calls as 4 ms take", "value": "median",
    }  # fmt: skip
    options.json.write_text(json.dumps({"rows": rows, "summary": summary, "protocol": protocol}, indent=1) + "\n")
    ours = ", ".join(f"{name} {value:.0f} ns" for name, value in calls.items())
    print(f"dispatch among {summary['kernels']} kernels {summary['dispatch_ns']:.1f} ns; a call from Python: {ours}")
    return 0


def make_dispatcher(target: Any, kernels: int) -> Any:
    """A dispatcher of so many kernels of one packed layout, each the best for its share of the range."""
    import numpy as np  # noqa: PLC0415

    import shapewright as sw  # noqa: PLC0415
    from tuner.library.dispatcher import Dispatcher, bounded, fit  # noqa: PLC0415
    from tuner.schedule import default_kernel, layout_group, space_of  # noqa: PLC0415

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


def dispatch_rows(dispatcher: Any, folder: Path, calls: int) -> list[dict[str, Any]]:
    """Rows for one shape of each kernel: the library that dispatches against the kernel as a library of one."""
    from tuner.library.dispatcher import Dispatcher, Leaf  # noqa: PLC0415

    count = len(dispatcher.kernels)
    every = _timer(_saved(dispatcher, folder / "all"), calls)
    rows = []
    for index, kernel in enumerate(dispatcher.kernels):
        shape = {"T": 1 + (2 * index + 1) * VALUES // (2 * count)}
        alone = Dispatcher(dispatcher.task, (dispatcher.kernel_for(shape),), 0, Leaf(0))
        one = _timer(_saved(alone, folder / kernel.id), calls)
        pairs = [(every(shape["T"]), one(shape["T"])) for _ in range(TURNS)]
        library_s, single_s = (statistics.median(samples) for samples in zip(*pairs, strict=True))
        rows.append(
            {
                "shape": shape,
                "kernel": alone.kernels[0].id,
                "library_s": library_s,
                "single_s": single_s,
                "dispatch_ns": 1e9 * (library_s - single_s),
            }
        )
    return rows


def _saved(dispatcher: Any, directory: Path) -> Path:
    from shapewright.download import write  # noqa: PLC0415
    from tuner.library.build import build_library  # noqa: PLC0415

    write(build_library(dispatcher, None).files, directory)
    return directory


def _timer(directory: Path, calls: int) -> Any:
    """A function from a number of rows to the mean seconds of a call, made from C."""
    import numpy as np  # noqa: PLC0415
    import tvm  # noqa: PLC0415

    import shapewright as sw  # noqa: PLC0415
    from tuner.library.package import ENTRY  # noqa: PLC0415

    packed = np.from_dlpack(sw.load(directory).pack(np.ones((SIZE, SIZE), np.float32)).tensor)
    weight = tvm.runtime.tensor(packed)
    evaluator = tvm.runtime.load_module(str(directory / "library.so")).time_evaluator(
        ENTRY, tvm.cpu(), number=calls, repeat=1
    )

    def sample(rows: int) -> float:
        operands = [tvm.runtime.tensor(np.ones((rows, SIZE), np.float32)) for _ in range(2)]
        return float(evaluator(operands[0], weight, operands[1]).mean)

    return sample


def python_calls_ns(directory: Path) -> dict[str, float]:
    """Nanoseconds of a call at one row, by kind of operands; torch's where it is installed."""
    import numpy as np  # noqa: PLC0415

    import shapewright as sw  # noqa: PLC0415
    from benchmarks.alternating import alternate, sampler  # noqa: PLC0415

    library = sw.load(directory)
    x, weight, out = np.ones((1, SIZE), np.float32), np.ones((SIZE, SIZE), np.float32), np.empty((1, SIZE), np.float32)
    packed = library.pack(weight)
    contenders = {"numpy": sampler(lambda: library(x, packed, out))}
    if importlib.util.find_spec("torch") is not None:
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
        a, b, c = torch.ones(1, SIZE), torch.ones(SIZE, SIZE), torch.empty(1, SIZE)
        contenders["torch"] = sampler(lambda: library(a, packed, c))
        contenders["torch.mm"] = sampler(lambda: torch.mm(a, b, out=c))
        contenders |= {name: sampler(call) for name, call in operator_calls(directory).items()}
    return {name: 1e9 * seconds for name, seconds in alternate(contenders, rounds=TURNS).items()}


def operator_calls(directory: Path) -> dict[str, Callable[[], Any]]:
    """Calls of a library at one row as PyTorch makes them: through the operator, and as Inductor's code does."""
    import torch  # noqa: PLC0415

    from shapewright.sources.libraries import load_library  # noqa: PLC0415
    from shapewright.torch.op import call, direct  # noqa: PLC0415
    from shapewright.torch.plan import Plan, Taken  # noqa: PLC0415

    digest = load_library(directory).digest

    def text(view: tuple[tuple[int, ...], ...]) -> str:
        return Plan(digest, (Taken((0,), view), Taken((1,), ((0,), (1,)), packed=True)), view, "float32").text()

    two, three, weight = text(((0,), (1,))), text(((0, 1), (2,))), torch.ones(SIZE, SIZE)
    flat, deep, out = torch.ones(1, SIZE), torch.ones(1, 1, SIZE), torch.empty(1, SIZE)
    return {
        "operator": lambda: call([flat, weight], [1, SIZE], two),
        "operator, three axes": lambda: call([deep, weight], [1, 1, SIZE], three),
        "inductor": lambda: direct(flat, weight, two, out=out),
    }


if __name__ == "__main__":
    sys.exit(main())
