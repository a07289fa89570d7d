"""Whether a search keeps its seconds: ``python -m benchmarks.budgets --seconds 15,30 --jobs dense,four --json OUT``.

Each job is tuned by ``shapewright tune`` as a user would run it, on one core: alone, and with ``--busy`` once more
beside a process that keeps the same core busy. For each run: the wall time of the command, its first sign of life, what
its phases took by the events that it recorded, and the trials of each search.
docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.options import integers
from benchmarks.service import cpu_name
from tuner.storage import JobEvent
from tuner.storage.sql import open_storage

DENSE = {"op": "dense", "args": {"m": "16*T", "n": 768, "k": 768}}
JOBS: dict[str, dict[str, Any]] = {
    "static": {"workload": {"op": "dense", "args": {"m": 512, "n": 768, "k": 768}}},
    "dense": {"workload": DENSE, "shape_vars": {"T": {"min": 1, "max": 64}}},
    "columns": {
        "workload": {"op": "matmul", "args": {"m": 256, "n": "16*T", "k": 512}},
        "shape_vars": {"T": {"min": 1, "max": 64}},
    },
    "conv2d": {
        "workload": {"op": "conv2d", "args": {"b": "B", "c": 64, "h": 56, "w": 56, "o": 64, "r": 3, "s": 3, "pad": 1}},
        "shape_vars": {"B": {"min": 1, "max": 16}},
    },
    "attention": {
        "workload": {"op": "attention", "args": {"b": 1, "h": 12, "i": "S", "j": "S", "d": 64}},
        "shape_vars": {"S": {"min": 1, "max": 384}},
    },
    "four": {
        "workloads": [
            {"op": "dense", "args": {"m": "16*T", "n": 2304, "k": 768}, "count": 12},
            {"op": "dense", "args": {"m": "16*T", "n": 768, "k": 3072}, "count": 12},
            {"op": "softmax", "args": {"m": "192*T", "n": 128}, "count": 12},
            {"op": "layer_norm", "args": {"m": "16*T", "n": 768}, "count": 24},
        ],
        "shape_vars": {"T": {"min": 1, "max": 32}},
    },
}
LONGEST_S = 1800.0
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Run:
    """One command. ``seconds``: its budget; 0: it was ``trials: 0``. ``over_s``: wall time beyond the budget.

    ``first_s``: until its first line; ``silent_s``: the longest time between two events. ``phases_s``: by phase;
    ``trials`` by search task, in order.
    """

    job: str
    seconds: int
    is_busy: bool
    wall_s: float
    over_s: float
    first_s: float
    silent_s: float
    phases_s: dict[str, float]
    trials: list[int]


def run(name: str, seconds: int, is_busy: bool, core: int) -> Run:
    """Raises SystemExit if the command fails, or does not end."""
    budget = {"seconds": seconds} if seconds else {"trials": 0}
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder, _neighbour(core if is_busy else None):
        job, output = Path(folder) / "job.json", Path(folder) / "out"
        job.write_text(json.dumps({"name": name, **JOBS[name], "budget": budget}))
        command = [sys.executable, "-m", "shapewright", "tune", str(job), "-o", str(output), "--json"]
        began_s = time.monotonic()
        # Not buffered: what ``readline`` read beyond the line, ``communicate`` would not see.
        with _on(core, command) as process:
            assert process.stderr is not None
            process.stderr.readline()
            first_s = time.monotonic() - began_s
            try:
                _, said = process.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise SystemExit(f"{name} with {seconds} s has not ended after {LONGEST_S:g} s") from None
            code = process.returncode
            wall_s = time.monotonic() - began_s
        if code:
            raise SystemExit(f"{name} with {seconds} s failed: {said.decode(errors='replace')[-2000:]}")
        events = _events(output)
    phases, silent_s = _phases(events)
    trials: dict[int, int] = {}
    for event in events:
        if event.kind == "progress":
            trials[event.data.get("position", 0)] = event.data["trials"]
    counts = [count for _, count in sorted(trials.items())]
    return Run(name, seconds, is_busy, wall_s, wall_s - seconds, first_s, silent_s, phases, counts)


def _on(core: int, command: Sequence[str]) -> subprocess.Popen[bytes]:
    pinned = ["taskset", "-c", str(core), *command]
    return subprocess.Popen(pinned, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0)


@contextmanager
def _neighbour(core: int | None) -> Iterator[None]:
    """A process that keeps a core busy meanwhile."""
    if core is None:
        yield
        return
    process = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _events(output: Path) -> list[JobEvent]:
    storage = open_storage(f"sqlite:///{output / 'tuning.db'}")
    try:
        (job,) = storage.list_jobs().items
        return list(storage.list_events(job.id, 0, limit=100_000))
    finally:
        storage.close()


def _phases(events: Sequence[JobEvent]) -> tuple[dict[str, float], float]:
    """Seconds by phase, each from the event that begins it to the next event; and the longest pause."""
    times = [datetime.fromisoformat(event.created_at).timestamp() for event in events]
    phases: dict[str, float] = {}
    phase = "start"
    for event, (began, ended) in zip(events, pairwise(times), strict=False):
        phase = event.data["phase"] if event.kind == "progress" else phase
        phases[phase] = phases.get(phase, 0.0) + ended - began
    return phases, max((ended - began for began, ended in pairwise(times)), default=0.0)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(JOBS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(JOBS)}")
    return names


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="budgets", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--jobs", type=_names, default=tuple(JOBS), help=f"of {', '.join(JOBS)}; default: all")
    parser.add_argument("--seconds", type=integers, default=(15, 30, 60, 90), help="budgets; 0 means trials: 0")
    parser.add_argument("--busy", action="store_true", help="each once more with a busy neighbour on the same core")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="which everything runs on")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    rows = []
    for seconds in options.seconds:
        for name in options.jobs:
            for is_busy in (False, True)[: 1 + options.busy]:
                load = os.getloadavg()[0]
                rows.append({**asdict(run(name, seconds, is_busy, options.core)), "load_before": load})
                print(json.dumps(rows[-1]), flush=True)
    if options.json:
        worst = {f"worst_{name}": max(row[name] for row in rows) for name in ("over_s", "first_s", "silent_s")}
        protocol = {"cpu": cpu_name(), "core": options.core, "cores": os.cpu_count()}
        document = {"rows": rows, "summary": worst, "protocol": protocol}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
