"""How many trials workers store, whether any is lost or doubled, and what a worker adds to a bare loop.

Real lease loops, searches and database, in ``--workers`` processes; simulated devices whose trials take ``--trial-s``,
and a builder that compiles nothing. ``--jobs`` share ``--trials`` evenly; one may end before, where its search expects
nothing more. The rate is from the first trial that is stored to the end of the last job. Records are compared with what
the devices did.

The bare loop does as many trials on as many devices in one process: no policy, no cost model, no database.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.harness.results import Row, finish, options_of
from tuner.measure import Builder, Runner, RunRequest
from tuner.measure.processes import set_on_signals
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import JobSpec, parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.schedule import space_of
from tuner.storage.sql import Storage, open_storage, upgrade
from worker.jobs.lease_loop import LeaseLoop
from worker.jobs.runner import JobRunner

KEY = "simulated"
LOOK_S, STOP_S, START_S = 0.1, 30.0, 120.0
SLOWEST = 20
"""How many times as long as its devices need a run may take, before it is taken for hung."""


def spec_of(number: int, trials: int) -> JobSpec:
    """A job for a dense layer. They differ by their size, so that none starts from what another found."""
    data = {
        "name": f"simulated {number}", "device": KEY, "budget": {"trials": trials},
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 768 + 16 * number, "k": 768}},
        "shape_vars": {"T": {"min": 1, "max": 128}},
        "instances": [{"T": t} for t in (5, 24, 43, 62, 81, 100, 119, 128)],
    }  # fmt: skip
    return parse_job(data).on(native())


# -- a worker, in a process of its own --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SimulatedTools:
    fleet: Fleet

    def builder(self) -> Builder:
        return SimulatedBuilder()

    def runner(self, key: str) -> Runner:
        return self.fleet.runner()

    def parallel_builds(self, key: str, threads: int) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class SimulatedList:
    """Takes the place of a tracker's list: always the same devices."""

    fleet: Fleet

    def refresh(self, force: bool = False) -> Mapping[str, int]:
        return {KEY: self.fleet.size}


def work(url: str, devices: int, jobs: int, trial_s: float, account: Path) -> None:
    """Run jobs until SIGTERM. Writes a line for each trial to ``account``: which it was."""
    stop, lock = threading.Event(), threading.Lock()
    set_on_signals(stop)
    with account.open("a") as file, closing(open_storage(url)) as storage:

        def ran(task: SearchTask, results: Sequence[MeasureResult]) -> None:
            with lock:
                for result in results:
                    file.write(json.dumps([task.workload.key, result.kernel.id, str(result.instance)]) + "\n")

        fleet = Fleet(devices, name=account.name, trial_s=trial_s, ran=ran)
        runner = JobRunner(storage, SimulatedTools(fleet), stopping=stop.is_set)
        loop = LeaseLoop(storage, SimulatedList(fleet), runner.run, account.name, stop, most=jobs)  # type: ignore[arg-type]
        loop.run_forever()


# -- the benchmark ----------------------------------------------------------------------------------------------------
def run(options: argparse.Namespace, url: str) -> Row:
    """The rate of all devices together, and the records beside what the devices did."""
    count, context = min(options.workers, options.devices, options.jobs), get_context("spawn")
    share, most = -(-options.trials // options.jobs), -(-options.jobs // count)
    with closing(open_storage(url)) as storage, tempfile.TemporaryDirectory(prefix="account-") as directory:
        storage.register_device(f"{KEY}-0", KEY, native(), {})
        jobs = [storage.create_job(spec_of(number, share))[0].id for number in range(options.jobs)]
        accounts = [Path(directory) / f"worker-{number}" for number in range(count)]
        devices = [(options.devices + number) // count for number in range(count)]
        given = [(url, own, most, options.trial_s, path) for own, path in zip(devices, accounts, strict=True)]
        started = [context.Process(target=work, args=each) for each in given]
        for each in started:
            each.start()
        try:
            seconds = _seconds(storage, jobs, START_S + SLOWEST * options.trials * options.trial_s / options.devices)
        finally:
            for each in started:
                each.terminate()
            for each in started:
                each.join(STOP_S)
                each.kill()
        did = Counter(tuple(json.loads(line)) for path in accounts for line in path.read_text().splitlines())
        recorded = Counter(
            (record.workload_key, record.result.kernel.id, str(record.result.instance))
            for job_id in jobs for row in storage.search_tasks(job_id) for record in storage.records_of_task(row.id)
        )  # fmt: skip
    return {
        "devices": options.devices, "jobs": options.jobs, "seconds": seconds, "records": recorded.total(),
        "trials_per_s": recorded.total() / seconds, "lost": (did - recorded).total(),
        "doubled": (recorded - did).total(),
    }  # fmt: skip


def _seconds(storage: Storage, jobs: Sequence[str], limit_s: float) -> float:
    """From the first trial to the end of the last job. Raises RuntimeError if one fails, or they do not end."""
    until, started = time.monotonic() + limit_s, None
    while time.monotonic() < until:
        found = [storage.get_job(job_id) for job_id in jobs]
        if failed := [job for job in found if job.error]:
            raise RuntimeError(f"job {failed[0].id} failed: {failed[0].error}")
        if started is None and any(job.trials for job in found):
            started = time.monotonic()
        if started is not None and all(job.state.ended for job in found):
            return time.monotonic() - started
        time.sleep(LOOK_S)
    raise RuntimeError(f"the jobs have not ended after {limit_s:g} s")


def bare_per_s(devices: int, trial_s: float, trials: int) -> float:
    """Trials per second of a loop that builds random kernels and measures each once, on all devices."""
    (task,), builder = spec_of(0, trials).tasks, SimulatedBuilder()
    space, rng, done = space_of(task), np.random.default_rng(0), 0
    with closing(Fleet(devices, trial_s=trial_s).runner()) as runner:
        started = time.monotonic()
        while done < trials:
            builds = builder.build(task, [space.sample(rng) for _ in range(devices)])
            done += len(runner.run(task, [RunRequest(build, task.instances[:1]) for build in builds]))
        return done / (time.monotonic() - started)


def main(argv: list[str] | None = None) -> int:
    options = options_of(
        __doc__, devices=200, jobs=20, trials=10_000, trial_s=0.5, workers=len(os.sched_getaffinity(0)),
        database_url=str,
    ).parse_args(argv)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        url = options.database_url or f"sqlite:///{directory}/tuning.db"
        upgrade(url)
        row = run(options, url)
    row["bare_per_s"] = bare_per_s(options.devices, options.trial_s, options.trials)
    summary = {figure: row[figure] for figure in ("records", "lost", "doubled", "trials_per_s")}
    summary["bare_loop_ratio"] = row["trials_per_s"] / row["bare_per_s"]
    protocol = {name: getattr(options, name) for name in ("devices", "jobs", "trials", "trial_s", "workers")}
    protocol["database"] = url.split(":")[0]
    return finish(options.json, {"rows": [row], "summary": summary, "protocol": protocol})


if __name__ == "__main__":
    sys.exit(main())
