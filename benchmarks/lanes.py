"""How a job uses several devices.

    python -m benchmarks.lanes [--devices 8] [--lanes 1,8] [--seeds 0,1,2] [--trials N] [--seconds S] [--trial-s 0.5]
        --json OUT

Five dense layers of BERT-base as one job, on simulated devices whose trials take ``--trial-s`` and a builder that
compiles nothing; 256 trials, unless a budget is given. For each number of searches that may run at once (``--lanes``):
the job's wall time, the share of the devices' time in which they measured, and what its libraries came to.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any
from unittest import mock

from benchmarks.harness.results import Row, finish, options_of, say
from benchmarks.workers import KEY, SimulatedTools
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.target import native
from tuner.search.summary import JobSummary
from tuner.storage import JobState, Lease
from tuner.storage.sql import Storage, open_storage, upgrade
from worker.jobs import searches
from worker.jobs.runner import JobRunner

LAYERS = ((768, 768, 48), (3072, 768, 12), (768, 3072, 12), (2, 768, 1), (30522, 768, 1))
"""Outputs, inputs, and how often each is in the model."""
LENGTHS = (5, 64, 128, 256, 512)


def run(seed: int, lanes: int, devices: int, trial_s: float, budget: Budget) -> Row:
    """One job. ``utilisation``: the share of the devices' time in which they measured; ``weighted_s``: the time of the
    libraries by the model of the devices, times how often their layers occur."""
    fleet = Fleet(devices, seed=seed, trial_s=trial_s)
    with tempfile.TemporaryDirectory(prefix="lanes-") as directory:
        url = f"sqlite:///{directory}/tuning.db"
        upgrade(url)
        storage = open_storage(url)
        lease = _leased(storage, seed, budget)
        began_s = time.monotonic()
        with mock.patch.object(searches, "MAX_LANES", lanes):
            state = JobRunner(storage, SimulatedTools(fleet)).run(lease)
        wall_s = time.monotonic() - began_s
        job = storage.get_job(lease.job.id)
        storage.close()
    if state is not JobState.COMPLETED:
        raise SystemExit(f"the job ended as {state}: {job.error}")
    outcome = JobSummary.from_json(job.summary).outcome([count for *_, count in LAYERS])
    return {
        "seed": seed, "lanes": lanes, "devices": devices, "trials": job.trials, "wall_s": wall_s,
        "utilisation": fleet.busy_s / (devices * wall_s), "weighted_s": outcome.objective_s or float("nan"),
    }  # fmt: skip


def _leased(storage: Storage, seed: int, budget: Budget) -> Lease:
    storage.register_device(f"{KEY}-0", KEY, native(), {})
    spec: dict[str, Any] = {
        "name": "BERT-base",
        "workloads": [
            {"op": "dense", "args": {"m": "T", "n": outputs, "k": inputs}, "count": count}
            for outputs, inputs, count in LAYERS
        ],
        "shape_vars": {"T": {"min": min(LENGTHS), "max": max(LENGTHS)}},
        "instances": [{"T": length} for length in LENGTHS],
        "device": KEY, "seed": seed, "budget": budget.to_json(),
    }  # fmt: skip
    storage.create_job(parse_job(spec).on(native()))
    lease = storage.lease_job("benchmark", 60.0)
    if lease is None:
        raise SystemExit("the job was not leased")
    return lease


def main() -> int:
    parser = options_of(__doc__, devices=8, lanes=(1, 8), seeds=(0, 1, 2), trials=int, seconds=float, trial_s=0.5)
    options = parser.parse_args()
    trials = 256 if options.trials is None and options.seconds is None else options.trials
    budget, rows = Budget(trials, options.seconds), list[Row]()
    for seed in options.seeds:
        for lanes in options.lanes:
            rows.append(run(seed, lanes, options.devices, options.trial_s, budget))
            say(json.dumps(rows[-1]))
    summary = {f"{lanes} at once": _medians([row for row in rows if row["lanes"] == lanes]) for lanes in options.lanes}
    return finish(options.json, {"rows": rows, "summary": summary, "protocol": {"budget": budget.to_json()}})


def _medians(rows: list[Row]) -> dict[str, float]:
    figures = ("wall_s", "utilisation", "weighted_s", "trials")
    return {figure: statistics.median(row[figure] for row in rows) for figure in figures}


if __name__ == "__main__":
    sys.exit(main())
