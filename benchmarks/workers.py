"""How workers scale: ``python -m benchmarks.workers --devices N --jobs J --trials T --json OUT``.

Real lease loops, searches and database; simulated devices whose trials take a fixed time, and a builder that compiles
nothing. For each number of devices up to N the rate of trials over a while, how idle the devices were, the CPU that the
workers used, and their memory; at the last one until T trials are stored, which are compared with what the devices did.
Jobs are of JOB_TRIALS trials each, and another is submitted for each that ends.

Then, with a real device, builders on Ray and RPC, the rate of a worker beside that of a bare loop
(benchmarks/worker_path.py). docs/performance.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.service import cpu_name
from benchmarks.worker_path import PathRates, compare_paths
from tuner.measure import Builder, Runner
from tuner.measure.processes import set_on_signals
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.storage import Storage
from tuner.storage.sql import open_storage, upgrade
from worker.jobs.lease_loop import LeaseLoop
from worker.jobs.runner import JobRunner

KEY = "simulated"
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 200, 400, 800)
SETTLE_S = 15.0
"""The wait before the rate of a step is taken: searches begin with what theory says, all at once."""
LOOK_S = 0.25
STOP_S = 30.0
JOB_TRIALS = 1000
MEMORY_EVERY_S = 5.0
FULL_LINEAR, FULL_CPU = 0.8, 0.85
"""The machine is full at the first step below such a part of the linear rate; its processors are, where workers use
such a part of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """What ``devices`` devices did. ``linear``: the rate by that of one device times their number; ``idle_share``: of
    the devices' time; ``memory_slope_mib_per_h``: of the straight line through the workers' memory."""

    devices: int
    jobs: int
    trials: int
    seconds: float
    trials_per_s: float
    linear: float
    idle_share: float
    cpu_cores: float
    memory_mib: float
    memory_slope_mib_per_h: float
    records: int
    lost: int
    doubled: int


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


class Account:
    """Writes down what the devices of a worker did, a line for each trial: the time and which it was."""

    def __init__(self, path: Path) -> None:
        self._file, self._lock = path.open("a"), threading.Lock()

    def ran(self, task: SearchTask, results: Sequence[MeasureResult]) -> None:
        with self._lock:
            for result in results:
                name = (task.workload.key, result.kernel.id, str(result.instance))
                self._file.write(json.dumps([result.ended_s, result.run_s, *name]) + "\n")

    def close(self) -> None:
        self._file.close()


def work(url: str, name: str, devices: int, jobs: int, trial_s: float, account: Path) -> None:
    """Run jobs until SIGTERM."""
    stop = threading.Event()
    set_on_signals(stop)
    told = Account(account)
    storage, fleet = open_storage(url), Fleet(devices, name=name, trial_s=trial_s, ran=told.ran)
    runner = JobRunner(storage, SimulatedTools(fleet), stopping=stop.is_set)
    loop = LeaseLoop(storage, SimulatedList(fleet), runner.run, name, stop, most=jobs)  # type: ignore[arg-type]
    loop.run_forever()
    storage.close()
    told.close()


# -- the benchmark ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. ``workers``: processes, which share devices and jobs; ``memory_s``: how long the last step runs at
    least."""

    url: str
    devices: int
    jobs: int
    trials: int
    trial_s: float
    seconds: float
    workers: int
    memory_s: float


def run(plan: Plan) -> list[Step]:
    steps: list[Step] = []
    for devices in [*(step for step in STEPS if step < plan.devices), plan.devices]:
        steps.append(_step(plan, devices, devices == plan.devices, steps[0].trials_per_s if steps else None))
        print(json.dumps(asdict(steps[-1])), flush=True)
    return steps


def _step(plan: Plan, devices: int, is_last: bool, one_per_s: float | None) -> Step:
    """The rate at so many devices, over ``plan.seconds``; at the last as long as ``plan`` asks for."""
    trials, least_s = (plan.trials, max(plan.seconds, plan.memory_s)) if is_last else (0, plan.seconds)
    with closing(open_storage(plan.url)) as storage, tempfile.TemporaryDirectory(prefix="account-") as directory:
        storage.register_device(f"{KEY}-0", KEY, native(), {})
        jobs = Jobs(storage, min(plan.jobs, devices))
        with _workers(plan, devices, jobs.count, Path(directory)) as processes:
            jobs.wait_for_trials(1)
            time.sleep(SETTLE_S)
            before, started, cpu_before = jobs.trials(), time.monotonic(), _cpu_s(processes)
            memory: list[tuple[float, float]] = []
            # Asked every time: it submits another job for each that has ended, which may be early.
            while jobs.trials() < trials or time.monotonic() - started < least_s:
                if not memory or time.monotonic() - memory[-1][0] >= MEMORY_EVERY_S:
                    memory.append((time.monotonic(), _memory_mib(processes)))
                time.sleep(LOOK_S)
            done, ended = jobs.trials() - before, time.monotonic()
            cpu = (_cpu_s(processes) - cpu_before) / (ended - started)
            jobs.cancel()
        ran = [json.loads(line) for path in Path(directory).iterdir() for line in path.read_text().splitlines()]
        recorded = jobs.recorded()
    rate, did = done / (ended - started), Counter(tuple(names) for _, _, *names in ran)
    busy_s = sum(max(0.0, min(end_s, ended) - max(end_s - run_s, started)) for end_s, run_s, *_ in ran)
    return Step(
        devices=devices, jobs=jobs.count, trials=done, seconds=ended - started, trials_per_s=rate,
        linear=rate / (one_per_s * devices) if one_per_s else 1.0,
        idle_share=1 - busy_s / (devices * (ended - started)), cpu_cores=cpu,
        memory_mib=memory[-1][1], memory_slope_mib_per_h=slope_per_h(memory),
        records=recorded.total(), lost=(did - recorded).total(), doubled=(recorded - did).total(),
    )  # fmt: skip


class Jobs:
    """Keeps so many jobs open: another one for each that has ended. They differ, so that none starts from what another
    found."""

    def __init__(self, storage: Storage, count: int) -> None:
        self.count, self._storage = count, storage
        self._ended_trials, self._made = 0, 0
        self._all: list[str] = []
        self._open = [self._submit() for _ in range(count)]

    def trials(self) -> int:
        """The number of trials that are stored; submits the jobs that are missing."""
        jobs = [self._storage.get_job(job_id) for job_id in self._open]
        now = self._ended_trials + sum(job.trials for job in jobs)
        self._ended_trials += sum(job.trials for job in jobs if job.state.ended)
        self._open = [self._submit() if job.state.ended else job.id for job in jobs]
        return now

    def wait_for_trials(self, wanted: int, deadline_s: float = 120.0) -> None:
        until = time.monotonic() + deadline_s
        while self.trials() < wanted:
            if time.monotonic() > until:
                raise TimeoutError(f"no trial was stored within {deadline_s:g} s")
            time.sleep(LOOK_S)

    def cancel(self) -> None:
        for job_id in self._open:
            self._storage.request_cancel(job_id)

    def recorded(self) -> Counter[tuple[str, ...]]:
        """Every record, by workload, kernel and instance."""
        tasks = [row for job_id in self._all for row in self._storage.search_tasks(job_id)]
        return Counter(
            (record.workload_key, record.result.kernel.id, str(record.result.instance))
            for row in tasks for record in self._storage.records_of_task(row.id)
        )  # fmt: skip

    def _submit(self) -> str:
        number, self._made = self._made, self._made + 1
        spec = {
            "name": f"simulated {number}",
            "workload": {"op": "dense", "args": {"m": "16*T", "n": 768 + 16 * number, "k": 768}},
            "shape_vars": {"T": {"min": 1, "max": 128}},
            "instances": [{"T": t} for t in (5, 24, 43, 62, 81, 100, 119, 128)],
            "device": KEY,
            "budget": {"trials": JOB_TRIALS},
        }
        self._all.append(self._storage.create_job(parse_job(spec).on(native()))[0].id)
        return self._all[-1]


@contextmanager
def _workers(plan: Plan, devices: int, jobs: int, directory: Path) -> Iterator[Sequence[psutil.Process]]:
    workers = min(plan.workers, devices, jobs)
    shares = [(devices + rest) // workers for rest in range(workers)]
    command = [sys.executable, "-m", "benchmarks.workers", "--database-url", plan.url, "--trial-s", str(plan.trial_s)]
    command += ["--jobs", str(-(-jobs // workers))]
    started = [
        subprocess.Popen([*command, *_own_options(number, share, directory)]) for number, share in enumerate(shares)
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


def _own_options(number: int, devices: int, directory: Path) -> list[str]:
    """The command-line options of one worker."""
    options = ["--devices", str(devices), "--worker", f"worker-{number}"]
    return [*options, "--account", str(directory / f"{number}")]


def slope_per_h(samples: Sequence[tuple[float, float]]) -> float:
    """The slope per hour of the straight line through (seconds, figure); 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    return 3600 * statistics.linear_regression(*zip(*samples, strict=True)).slope


def summary_of(steps: Sequence[Step], paths: Sequence[PathRates], cores: int) -> dict[str, object]:
    """What the last step says, where the machine was full, and how the whole path of a worker compares."""
    last = steps[-1]
    full = next((step for step in steps if step.linear < FULL_LINEAR), None)
    return {
        "records": last.records,
        "lost": last.lost,
        "doubled": last.doubled,
        "trials_per_s": last.trials_per_s,
        "bare_loop_ratio": statistics.median(each.ratio for each in paths) if paths else None,
        "idle_share": last.idle_share,
        "memory_slope_mib_per_h": last.memory_slope_mib_per_h,
        "full_at_devices": full.devices if full else None,
        "full_because": _why_full(full, cores) if full else None,
    }


def _why_full(step: Step, cores: int) -> str:
    used = f"the workers use {step.cpu_cores:.1f} of {cores} cores, and the devices are idle {step.idle_share:.0%}"
    if step.cpu_cores >= FULL_CPU * cores:
        return f"the processors are full: {used}"
    return f"the searches of {step.jobs} jobs do not keep {step.devices} devices busy: {used}"


def _memory_mib(processes: Sequence[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20


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
    parser.add_argument("--memory-minutes", type=float, default=0.0, help="how long the last step runs at least")
    parser.add_argument("--path-turns", type=int, default=3, help="turns of the worker and the bare loop; 0: none")
    parser.add_argument("--path-trials", type=int, default=200, help="trials in each")
    parser.add_argument("--database-url", help="default: a SQLite file that is removed at the end")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--account", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        work(options.database_url, options.worker, options.devices, options.jobs, options.trial_s, options.account)
        return
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        url = options.database_url or f"sqlite:///{directory}/tuning.db"
        upgrade(url)
        given = (options.devices, options.jobs, options.trials, options.trial_s, options.seconds, options.workers)
        plan = Plan(url, *given, 60 * options.memory_minutes)
        steps = run(plan)
        paths = compare_paths(Path(directory), options.path_turns, options.path_trials) if options.path_turns else []
    cores = len(os.sched_getaffinity(0))
    document = {
        "cpu": cpu_name(),
        "cores": cores,
        "plan": {**asdict(plan), "url": url.split(":")[0]},
        "steps": [asdict(step) for step in steps],
        "paths": [asdict(each) for each in paths],
        "summary": summary_of(steps, paths, cores),
    }
    print(json.dumps(document["summary"]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
