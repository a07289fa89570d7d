"""Whether a search keeps its seconds.

    python -m benchmarks.budgets [--jobs dense,four] [--seconds 15,30] [--core N] [--busy] --json OUT

Each job of suites/budgets.yaml is tuned by ``shapewright tune`` as a user would run it, on one core: alone, and with
``--busy`` once more beside a process that keeps the same core busy. 0 seconds stand for ``trials: 0``. For each run:
``wall_s`` of the command and ``over_s`` beyond the budget; ``first_s`` until its first line; ``silent_s``, the longest
time between two events; ``phases_s`` by the events that it recorded; ``trials`` of each search.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.results import Row, finish, options_of, say
from tuner.storage import JobEvent
from tuner.storage.sql import open_storage

JOBS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "suites" / "budgets.yaml").read_text())
LONGEST_S = 1800.0


def run(name: str, seconds: int, is_busy: bool, core: int) -> Row:
    """One command. Raises SystemExit if it fails, or does not end."""
    budget = {"seconds": seconds} if seconds else {"trials": 0}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder, _neighbour(core if is_busy else None):
        job, output = Path(folder) / "job.json", Path(folder) / "out"
        job.write_text(json.dumps({"name": name, **JOBS[name], "budget": budget}))
        command = [sys.executable, "-m", "shapewright", "tune", str(job), "-o", str(output), "--json"]
        began_s = time.monotonic()
        # Not buffered: what ``readline`` read beyond the line, ``communicate`` would not see.
        with subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0
        ) as process:
            assert process.stderr is not None
            process.stderr.readline()
            first_s = time.monotonic() - began_s
            try:
                _, said = process.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise SystemExit(f"{name} with {seconds} s has not ended after {LONGEST_S:g} s") from None
            wall_s = time.monotonic() - began_s
        if process.returncode:
            raise SystemExit(f"{name} with {seconds} s failed: {said.decode(errors='replace')[-2000:]}")
        with closing(open_storage(f"sqlite:///{output / 'tuning.db'}")) as storage:
            events = list(storage.list_events(storage.list_jobs().items[0].id, 0, limit=100_000))
    told = {"job": name, "seconds": seconds, "is_busy": is_busy, "wall_s": wall_s, "over_s": wall_s - seconds}
    return {**told, "first_s": first_s, **_told_by(events), "load_before": load}


@contextmanager
def _neighbour(core: int | None) -> Iterator[None]:
    """A process that keeps a core busy meanwhile."""
    if core is None:
        yield
        return
    process = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _told_by(events: Sequence[JobEvent]) -> dict[str, Any]:
    """Seconds by phase, each from the event that begins it to the next one; the longest pause; trials by search."""
    times = [datetime.fromisoformat(event.created_at).timestamp() for event in events]
    phases, trials, phase = dict[str, float](), dict[int, int](), "start"
    for event, (began, ended) in zip(events, [*pairwise(times), (0.0, 0.0)], strict=True):
        if event.kind == "progress":
            phase, trials[event.data.get("position", 0)] = event.data["phase"], event.data["trials"]
        phases[phase] = phases.get(phase, 0.0) + ended - began
    silent_s = max((ended - began for began, ended in pairwise(times)), default=0.0)
    return {"silent_s": silent_s, "phases_s": phases, "trials": [count for _, count in sorted(trials.items())]}


def main() -> int:
    core = max(os.sched_getaffinity(0))
    parser = options_of(__doc__, jobs=list(JOBS), seconds=(15, 30, 60, 90), core=core, busy=False)
    options = parser.parse_args()
    if unknown := sorted(set(options.jobs) - set(JOBS)):
        parser.error(f"--jobs: {unknown[0]!r} is none of {', '.join(JOBS)}")
    rows = []
    for seconds in options.seconds:
        for name in options.jobs:
            for is_busy in (False, True)[: 1 + options.busy]:
                rows.append(run(name, seconds, is_busy, options.core))
                say(json.dumps(rows[-1]))
    worst = {f"worst_{name}": max(row[name] for row in rows) for name in ("over_s", "first_s", "silent_s")}
    return finish(options.json, {"rows": rows, "summary": worst, "protocol": {"core": options.core}})


if __name__ == "__main__":
    sys.exit(main())
