"""How workers scale: ``python -m benchmarks.workers --devices N --jobs J --trials T --json OUT``.

Real lease loops, searches and database; simulated devices whose trials take a fixed time, and a builder that compiles
nothing. For each number of devices up to N the rate of trials over a while, the CPU that the workers used, and their
memory; at the last one until T trials are stored. docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.service import cpu_name
from tuner.measure import Builder, Runner
from tuner.measure.processes import set_on_signals
from tuner.measure.simulated import Fleet, SimulatedBuilder
from tuner.program.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import Storage
from tuner.storage.sql import open_storage, upgrade
from worker.job_runner import JobRunner
from worker.lease_loop import LeaseLoop

KEY = "simulated"
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 200, 400, 800)
SETTLE_S = 15.0
"""Before the rate of a step is taken: searches begin with what theory says, all at once."""
LOOK_S = 0.25
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """What ``devices`` devices did. ``linear``: the rate by that of one device times their number."""

    devices: int
    jobs: int
    trials: int
    seconds: float
    trials_per_s: float
    linear: float
    cpu_cores: float
    memory_mib: float


# -- a worker, in a process of its own --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SimulatedTools:
    """What a worker builds and measures with."""

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


def work(url: str, name: str, devices: int, jobs: int, trial_s: float) -> None:
    """Run jobs until SIGTERM."""
    stop = threading.Event()
    set_on_signals(stop)
    storage, fleet = open_storage(url), Fleet(devices, trial_s=trial_s)
    runner = JobRunner(storage, SimulatedTools(fleet), stopping=stop.is_set)
    loop = LeaseLoop(storage, SimulatedList(fleet), runner.run, name, stop, most=jobs)  # type: ignore[arg-type]
    loop.run_forever()
    storage.close()


# -- the benchmark ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. ``workers``: processes, which share devices and jobs."""

    url: str
    devices: int
    jobs: int
    trials: int
    trial_s: float
    seconds: float
    workers: int


def run(plan: Plan) -> list[Step]:
    steps: list[Step] = []
    for devices in [*(step for step in STEPS if step < plan.devices), plan.devices]:
        is_last = devices == plan.devices
        steps.append(_step(plan, devices, plan.trials if is_last else 0, steps[0].trials_per_s if steps else None))
        print(json.dumps(asdict(steps[-1])), flush=True)
    return steps


def _step(plan: Plan, devices: int, trials: int, one_per_s: float | None) -> Step:
    """The rate at so many devices, over ``plan.seconds`` and until ``trials`` are stored."""
    storage = open_storage(plan.url)
    storage.register_device(f"{KEY}-0", KEY, native(), {})
    count = min(plan.jobs, devices)
    made = [_submit(storage, number) for number in range(count)]
    with _workers(plan, devices, count) as processes:
        _wait_for_trials(storage, made, 1)
        time.sleep(SETTLE_S)
        before, started, cpu_before = _trials(storage, made), time.monotonic(), _cpu_s(processes)
        while time.monotonic() - started < plan.seconds or _trials(storage, made) < trials:
            time.sleep(LOOK_S)
        done, seconds = _trials(storage, made) - before, time.monotonic() - started
        cpu = (_cpu_s(processes) - cpu_before) / seconds
        memory_mib = sum(process.memory_info().rss for process in processes) / 2**20
    for job_id in made:
        storage.request_cancel(job_id)
    storage.close()
    rate = done / seconds
    linear = rate / (one_per_s * devices) if one_per_s else 1.0
    return Step(devices, count, done, seconds, rate, linear, cpu, memory_mib)


@contextmanager
def _workers(plan: Plan, devices: int, jobs: int) -> Iterator[Sequence[psutil.Process]]:
    workers = min(plan.workers, devices, jobs)
    shares = [(devices + rest) // workers for rest in range(workers)]
    command = [sys.executable, "-m", "benchmarks.workers", "--database-url", plan.url, "--trial-s", str(plan.trial_s)]
    command += ["--jobs", str(-(-jobs // workers))]
    started = [
        subprocess.Popen([*command, "--devices", str(share), "--worker", f"worker-{number}"])
        for number, share in enumerate(shares)
    ]
    try:
        yield [psutil.Process(each.pid) for each in started]
    finally:
        for each in started:
            each.send_signal(signal.SIGTERM)
        for each in started:
            try:
                each.wait(STOP_S)
            except subprocess.TimeoutExpired:
                each.kill()


def _submit(storage: Storage, number: int) -> str:
    """A job that has no end of its own: jobs differ, so that none starts from what another found."""
    spec = {
        "name": f"simulated {number}",
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 768 + 16 * number, "k": 768}},
        "shape_vars": {"T": {"min": 1, "max": 128}},
        "instances": [{"T": t} for t in (5, 24, 43, 62, 81, 100, 119, 128)],
        "device": KEY,
        "budget": {"trials": 10**6},
    }
    return storage.create_job(parse_job(spec).on(native()))[0].id


def _trials(storage: Storage, job_ids: Sequence[str]) -> int:
    return sum(storage.get_job(job_id).trials for job_id in job_ids)


def _wait_for_trials(storage: Storage, job_ids: Sequence[str], wanted: int, deadline_s: float = 120.0) -> None:
    until = time.monotonic() + deadline_s
    while _trials(storage, job_ids) < wanted:
        if time.monotonic() > until:
            raise TimeoutError(f"no trial was stored within {deadline_s:g} s")
        time.sleep(LOOK_S)


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="workers", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20, help="jobs at once, at most one for each device")
    parser.add_argument("--trials", type=int, default=0, help="of the last step, at least")
    parser.add_argument("--trial-s", type=float, default=0.5, help="what one trial takes a device")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the rate of each step is measured")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--database-url", help="default: a SQLite file that is removed at the end")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        work(options.database_url, options.worker, options.devices, options.jobs, options.trial_s)
        return
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        url = options.database_url or f"sqlite:///{directory}/tuning.db"
        upgrade(url)
        named = (options.devices, options.jobs, options.trials, options.trial_s, options.seconds, options.workers)
        plan = Plan(url, *named)
        steps = run(plan)
    if options.json:
        document = {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "plan": {**asdict(plan), "url": url.split(":")[0]},
        }
        options.json.write_text(json.dumps({**document, "steps": [asdict(step) for step in steps]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
