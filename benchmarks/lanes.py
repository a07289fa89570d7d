"""How a job uses several devices: ``python -m benchmarks.lanes --devices N --lanes 1,8 --seeds 0,1,2 --json OUT``.

Five dense layers of BERT-base as one job, on simulated devices whose trials take a fixed time and a builder that
compiles nothing. For each number of searches that may run at once: the job's wall time, the share of the devices' time
in which they measured, and what its libraries came to. docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

from benchmarks.options import count, integers
from benchmarks.service import cpu_name
from benchmarks.workers import KEY, SimulatedTools
from tuner.measure.runners.simulated import Fleet
from tuner.program.job.jobspec import Budget, parse_job
from tuner.program.target import native
from tuner.search.summary import JobSummary
from tuner.storage import JobState, Lease, Storage
from tuner.storage.sql import open_storage, upgrade
from worker.jobs import searches
from worker.jobs.runner import JobRunner

LAYERS = (("projection", 768, 768, 48), ("up", 3072, 768, 12), ("down", 768, 3072, 12), ("answers", 2, 768, 1),
          ("vocabulary", 30522, 768, 1))  # fmt: skip
"""Name, outputs, inputs, and how often each is in the model."""
LENGTHS = (5, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Run:
    """One job. ``utilisation``: the share of the devices' time in which they measured; ``weighted_s``: the time of the
    libraries by the model of the devices, times how often their layers occur."""

    seed: int
    lanes: int
    devices: int
    trials: int
    wall_s: float
    utilisation: float
    weighted_s: float


def run(seed: int, lanes: int, devices: int, trial_s: float, budget: Budget) -> Run:
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
    utilisation = fleet.busy_s / (devices * wall_s)
    return Run(seed, lanes, devices, job.trials, wall_s, utilisation, outcome.objective_s or float("nan"))


def _leased(storage: Storage, seed: int, budget: Budget) -> Lease:
    storage.register_device(f"{KEY}-0", KEY, native(), {})
    spec = {
        "name": "BERT-base",
        "workloads": [
            {"op": "dense", "args": {"m": "T", "n": outputs, "k": inputs}, "count": count}
            for _, outputs, inputs, count in LAYERS
        ],
        "shape_vars": {"T": {"min": min(LENGTHS), "max": max(LENGTHS)}},
        "instances": [{"T": length} for length in LENGTHS],
        "device": KEY,
        "seed": seed,
        "budget": budget.to_json(),
    }
    storage.create_job(parse_job(spec).on(native()))
    lease = storage.lease_job("benchmark", 60.0)
    if lease is None:
        raise SystemExit("the job was not leased")
    return lease


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="lanes", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--devices", type=count, default=8)
    parser.add_argument("--lanes", type=integers, default=(1, 8), help="searches at once, at most; one run for each")
    parser.add_argument("--seeds", type=integers, default=(0, 1, 2))
    parser.add_argument("--trials", type=int, help="the job's budget; default: 256, unless seconds are given")
    parser.add_argument("--seconds", type=float, help="the job's budget")
    parser.add_argument("--trial-s", type=float, default=0.5, help="what one trial takes a device")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(argv)
    trials = 256 if options.trials is None and options.seconds is None else options.trials
    budget, runs = Budget(trials, options.seconds), []
    for seed in options.seeds:
        for lanes in options.lanes:
            runs.append(run(seed, lanes, options.devices, options.trial_s, budget))
            print(json.dumps(asdict(runs[-1])), flush=True)
    if options.json:
        document = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)), "budget": budget.to_json()}
        options.json.write_text(json.dumps({**document, "runs": [asdict(each) for each in runs]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
