"""BERT from end to end: exported, tuned through a service, compiled with what was tuned, compared at every length.

    python -m examples.bert_end_to_end [--layers 12 --width 768 --heads 12 --length 128 --seconds 1800] [--url URL]

The encoder is built here from a configuration, with random weights; the default is small. Without --url the example
starts a service of its own and stops it at the end. The table has the time of a call at lengths that were mostly never
tuned on, beside eager PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import shapewright as sw
from benchmarks.nets.zoo import Bert
from examples.local_service import local_service, say

WORDS, BATCH = 1000, 2
TOLERANCE = 1e-3
LONGER_S = 600.0
"""What a job may take beyond its budget until its libraries are built."""
CALLS = 5


def make_bert(options: argparse.Namespace) -> torch.nn.Module:
    torch.manual_seed(0)
    model = Bert(options.layers, options.width, options.heads, 4 * options.width, WORDS, options.length)
    return model.eval().requires_grad_(False)


def export(model: torch.nn.Module, length: int, file: Path) -> None:
    """The model as `tune-model` reads it; its length is dynamic."""
    dims = {1: torch.export.Dim("length", min=1, max=length)}
    torch.export.save(torch.export.export(model, (words(5),), dynamic_shapes=(dims,)), file)


def words(length: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, length))


def tune_model(file: Path, options: argparse.Namespace, environment: dict[str, str]) -> None:
    """One job for all workloads of the model, and its end. Raises SystemExit if it fails."""
    budget = ["--seconds", str(options.seconds)]
    budget += [] if options.trials is None else ["--trials", str(options.trials)]
    line = ["tune-model", str(file), "--shape-var", f"length=1..{options.length}", *budget, "--wait", "--json"]
    command = [sys.executable, "-m", "shapewright", *line]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=False, timeout=options.seconds + LONGER_S
    )
    if done.returncode:
        raise SystemExit(f"tune-model ended with exit code {done.returncode}: {done.stdout.decode()[-2000:]}")
    say(f"tuned: {json.loads(done.stdout)['job_id']}")


def seconds_of(model: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> float:
    """The least of some calls."""
    took = []
    for _ in range(CALLS):
        started = time.perf_counter()
        model(ids)
        took.append(time.perf_counter() - started)
    return min(took)


def compare(model: torch.nn.Module, fast: Any, lengths: list[int]) -> float:
    """Print a line for each length; returns the largest difference."""
    worst = 0.0
    say("length  eager ms  tuned ms  difference")
    with torch.no_grad():
        # The longest first: what is compiled for it holds for all but length 1.
        for length in reversed(lengths):
            ids = words(length)
            error = max((a - b).abs().max().item() for a, b in zip(fast(ids), model(ids), strict=True))
            eager, tuned = 1e3 * seconds_of(model, ids), 1e3 * seconds_of(fast, ids)
            say(f"{length:6d}  {eager:8.3f}  {tuned:8.3f}  {error:.1e}")
            worst = max(worst, error)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", help="a service that runs already; its key as SHAPEWRIGHT_API_KEY")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--length", type=int, default=32, help="the longest that it is tuned for")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the job, all workloads together")
    parser.add_argument("--trials", type=int, help="of the job, besides its seconds")
    parser.add_argument("--rest", default="inductor", choices=("inductor", "eager"), help="what runs the rest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_bert(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shapewright-bert-")))
        environment = stack.enter_context(local_service(folder / "data", options.url))
        export(model, options.length, folder / "bert.pt2")
        tune_model(folder / "bert.pt2", options, environment)
        os.environ.update(environment)
        choices = {"source": environment["SHAPEWRIGHT_URL"], "rest": options.rest}
        fast = torch.compile(model, backend="shapewright", dynamic=True, options=choices)
        lengths = sorted({1, 2, options.length // 3, options.length // 2, options.length - 1, options.length} - {0})
        worst = compare(model, fast, lengths)
        report = sw.torch.report()
        say(str(report))
    say(f"{len(report.replaced)} parts of the model replaced, largest difference {worst:.1e}")
    return 0 if report.replaced and worst < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
