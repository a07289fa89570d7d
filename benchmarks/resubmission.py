"""What a second job saves that asks for the same as an earlier one.

    python -m benchmarks.resubmission JOB.yaml [--trials 128] [--seeds 0,1,2] --json OUT

For each seed `shapewright tune` runs the job twice in a new directory, the second time with another seed: it starts
from the records of the first, and ends with timing its library and the first one's in turns. ``trials_to_match``: the
trials after which the best kernel of each instance, weighted, is as fast as at the end of the first job, within
TOLERANCE; all latencies at the speed of the first job's device. ``share`` is that of the second job over all trials of
the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from benchmarks.options import integers
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.search.observations import Measured, at_reference_speed, reference_anchor_s
from tuner.storage.sql import SqlStorage, open_storage

TOLERANCE = 0.01
"""Relative: two readings of one kernel differ by as much."""
OTHER_SEEDS = 1000
"""The difference between the seed of a first job and that of the second one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("--trials", type=int, default=128, help="of each job")
    parser.add_argument("--seeds", type=integers, default=(0, 1, 2), help="comma-separated")
    parser.add_argument("--json", required=True, type=Path, metavar="OUT")
    options = parser.parse_args()
    document = yaml.safe_load(options.job.read_text()) | {"budget": {"trials": options.trials}}
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="shapewright-resubmission-") as folder:
            rows.append({"seed": seed, **twice(document, seed, Path(folder))})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    summary = {
        "share": statistics.median(row["share"] for row in rows),
        "ratio_in_turns": statistics.median(row["ratio_in_turns"] or 1.0 for row in rows),
    }
    protocol = {"job": document, "target": native().to_json(), "tolerance": TOLERANCE}
    options.json.write_text(json.dumps({"rows": rows, "summary": summary, "protocol": protocol}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 0


def twice(document: dict[str, Any], seed: int, folder: Path) -> dict[str, Any]:
    """Both jobs in one directory, and what the second saved."""
    for each in (seed, seed + OTHER_SEEDS):
        job = folder / f"{each}.yaml"
        job.write_text(yaml.safe_dump(document | {"seed": each}))
        command = [sys.executable, "-m", "shapewright", "tune", str(job), "-o", str(folder / "out")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with closing(open_storage(f"sqlite:///{folder / 'out' / 'tuning.db'}")) as storage:
        second, first = (job.id for job in storage.list_jobs().items)
        return saved(parse_job(document).on(native()).tasks[0], storage, first, second)


def saved(task: SearchTask, storage: SqlStorage, first: str, second: str) -> dict[str, Any]:
    ours, theirs = ([trial.result for trial in storage.list_trials(job, limit=10_000)] for job in (second, first))
    anchor_s = reference_anchor_s(theirs)
    end_s = curve(task, theirs, anchor_s)[-1]
    to_match = [trials_to_match(curve(task, results, anchor_s), end_s) for results in (theirs, ours)]
    ((_, library),) = storage.libraries_of_job(second)
    comparison = library.comparison or {}
    return {
        "trials": [len(theirs), len(ours)],
        "first_end_s": end_s,
        "second_end_s": curve(task, ours, anchor_s)[-1],
        "trials_to_match": to_match,
        "share": (to_match[1] or len(ours)) / len(theirs),
        "ratio_in_turns": comparison.get("ratio"),
        "noise_in_turns": comparison.get("noise"),
        "verdict": comparison.get("verdict"),
    }


def curve(task: SearchTask, results: Sequence[MeasureResult], anchor_s: float | None) -> list[float]:
    """The weighted time of the best kernels so far after each trial; infinite until every instance has one."""
    measured, times = Measured(), []
    for result in at_reference_speed(results, anchor_s):
        measured.add([result])
        best = [(instance.weight, measured.best_s(instance)) for instance in task.instances]
        times.append(sum(weight * (best_s or float("inf")) for weight, best_s in best))
    return times


def trials_to_match(times: Sequence[float], end_s: float) -> int | None:
    """The number of trials after which the curve is at ``end_s``, within TOLERANCE; None if never."""
    return next((count for count, time in enumerate(times, 1) if time <= end_s * (1 + TOLERANCE)), None)


if __name__ == "__main__":
    sys.exit(main())
