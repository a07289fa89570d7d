"""How workers scale.

    python -m benchmarks.workers [--devices 200] [--jobs 20] [--trials N] [--trial-s 0.5] [--seconds 20] [--workers N]
        [--memory-minutes M] [--path-turns 3] [--path-trials 200] [--database-url URL] --json OUT

Real lease loops, searches and database; simulated devices whose trials take ``--trial-s``, and a builder that compiles
nothing. For each number of devices up to ``--devices`` the rate of trials over ``--seconds``, how idle the devices
were, the CPU that the ``--workers`` processes used, and their memory; at the last one until ``--trials`` are stored,
which are compared with what the devices did, and for ``--memory-minutes`` at least. Jobs (``--jobs`` at once, one for
each device at most) are of JOB_TRIALS trials each, and another is submitted for each that ends.

Then, with a real device, builders on Ray and RPC, ``--path-turns`` times the rate of a worker over ``--path-trials``
beside that of a bare loop (benchmarks/worker_path.py).
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
from typing import Any

import psutil

from benchmarks.harness.results import finish, options_of, say
from benchmarks.worker_path import PathRates, compare_paths
from tuner.measure import Builder, Runner
from tuner.measure.processes import set_on_signals
from tuner.measure.runners.simulated import Fleet, SimulatedBuilder
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.records import MeasureResult
from tuner.storage.sql import Storage, open_storage, upgrade
from worker.jobs.lease_loop import LeaseLoop
from worker.jobs.runner import JobRunner

KEY = "simulated"
STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 200, 400, 800)
SETTLE_S = 15.0
"""The wait before the rate of a step is taken: searches begin with what theory says, all at once."""
LOOK_S, STOP_S, START_S = 0.25, 30.0, 120.0
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


def dense_spec(number: int, trials: int) -> dict[str, Any]:
    """A job for a dense layer. They differ by their number, so that none starts from what another found."""
    return {
        "name": f"simulated {number}",
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 768 + 16 * number, "k": 768}},
        "shape_vars": {"T": {"min": 1, "max": 128}},
        "instances": [{"T": t} for t in (5, 24, 43, 62, 81, 100, 119, 128)],
        "budget": {"trials": trials},
    }


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


def work(url: str, name: str, devices: int, jobs: int, trial_s: float, account: Path) -> int:
    """Run jobs until SIGTERM. Writes a line for each trial to ``account``: the time, and which it was."""
    stop, lock = threading.Event(), threading.Lock()
    set_on_signals(stop)
    with account.open("a") as file, closing(open_storage(url)) as storage:

        def ran(task: SearchTask, results: Sequence[MeasureResult]) -> None:
            with lock:
                for result in results:
                    which = (task.workload.key, result.kernel.id, str(result.instance))
                    file.write(json.dumps([result.ended_s, result.run_s, *which]) + "\n")

        fleet = Fleet(devices, name=name, trial_s=trial_s, ran=ran)
        runner = JobRunner(storage, SimulatedTools(fleet), stopping=stop.is_set)
        loop = LeaseLoop(storage, SimulatedList(fleet), runner.run, name, stop, most=jobs)  # type: ignore[arg-type]
        loop.run_forever()
    return 0


# -- the benchmark ----------------------------------------------------------------------------------------------------
def run(options: argparse.Namespace, url: str) -> list[Step]:
    steps: list[Step] = []
    for devices in [*(step for step in STEPS if step < options.devices), options.devices]:
        steps.append(_step(options, url, devices, steps[0].trials_per_s if steps else None))
        say(json.dumps(asdict(steps[-1])))
    return steps


def _step(options: argparse.Namespace, url: str, devices: int, one_per_s: float | None) -> Step:
    """The rate at so many devices; at the last as long as the options ask for."""
    trials, least_s = 0, options.seconds
    if devices == options.devices:
        trials, least_s = options.trials, max(least_s, 60 * options.memory_minutes)
    with closing(open_storage(url)) as storage, tempfile.TemporaryDirectory(prefix="account-") as directory:
        storage.register_device(f"{KEY}-0", KEY, native(), {})
        jobs = Jobs(storage, min(options.jobs, devices))
        with _workers(options, url, devices, jobs.count, Path(directory)) as processes:
            jobs.wait_for_one()
            time.sleep(SETTLE_S)
            before, started, cpu_before = jobs.trials(), time.monotonic(), _cpu_s(processes)
            memory: list[tuple[float, float]] = []
            # Asked every time: it submits another job for each that has ended, which may be early.
            while jobs.trials() < trials or time.monotonic() - started < least_s:
                if not memory or time.monotonic() - memory[-1][0] >= MEMORY_EVERY_S:
                    memory.append((time.monotonic(), sum(each.memory_info().rss for each in processes) / 2**20))
                time.sleep(LOOK_S)
            done, ended = jobs.trials() - before, time.monotonic()
            cpu = (_cpu_s(processes) - cpu_before) / (ended - started)
            jobs.cancel()
        ran = [json.loads(line) for path in Path(directory).iterdir() for line in path.read_text().splitlines()]
        recorded = jobs.recorded()
    rate, did = done / (ended - started), Counter(tuple(which) for _, _, *which in ran)
    busy_s = sum(max(0.0, min(end_s, ended) - max(end_s - run_s, started)) for end_s, run_s, *_ in ran)
    return Step(
        devices=devices, jobs=jobs.count, trials=done, seconds=ended - started, trials_per_s=rate,
        linear=rate / (one_per_s * devices) if one_per_s else 1.0,
        idle_share=1 - busy_s / (devices * (ended - started)), cpu_cores=cpu,
        memory_mib=memory[-1][1], memory_slope_mib_per_h=slope_per_h(memory),
        records=recorded.total(), lost=(did - recorded).total(), doubled=(recorded - did).total(),
    )  # fmt: skip


class Jobs:
    """Keeps so many jobs open: another one for each that has ended."""

    def __init__(self, storage: Storage, count: int) -> None:
        self.count, self._storage = count, storage
        self._ended_trials = 0
        self._all: list[str] = []
        self._open = [self._submit() for _ in range(count)]

    def trials(self) -> int:
        """The number of trials that are stored; submits the jobs that are missing."""
        jobs = [self._storage.get_job(job_id) for job_id in self._open]
        now = self._ended_trials + sum(job.trials for job in jobs)
        self._ended_trials += sum(job.trials for job in jobs if job.state.ended)
        self._open = [self._submit() if job.state.ended else job.id for job in jobs]
        return now

    def wait_for_one(self) -> None:
        until = time.monotonic() + START_S
        while not self.trials():
            if time.monotonic() > until:
                raise TimeoutError(f"no trial was stored within {START_S:g} s")
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
        spec = dense_spec(len(self._all), JOB_TRIALS) | {"device": KEY}
        self._all.append(self._storage.create_job(parse_job(spec).on(native()))[0].id)
        return self._all[-1]


@contextmanager
def _workers(
    options: argparse.Namespace, url: str, devices: int, jobs: int, directory: Path
) -> Iterator[Sequence[psutil.Process]]:
    """Worker processes, which share devices and jobs."""
    workers = min(options.workers, devices, jobs)
    line = [sys.executable, "-m", "benchmarks.workers", "--database-url", url, "--trial-s", str(options.trial_s)]
    line += ["--jobs", str(-(-jobs // workers))]
    started = [
        subprocess.Popen(
            [*line, "--devices", str((devices + number) // workers), "--worker", str(directory / f"worker-{number}")]
        )
        for number in range(workers)
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


def slope_per_h(samples: Sequence[tuple[float, float]]) -> float:
    """The slope per hour of the straight line through (seconds, figure); 0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    return 3600 * statistics.linear_regression(*zip(*samples, strict=True)).slope


def summary_of(steps: Sequence[Step], paths: Sequence[PathRates], cores: int) -> dict[str, object]:
    """What the last step says, where the machine was full, and how the whole path of a worker compares."""
    last = asdict(steps[-1])
    full = next((step for step in steps if step.linear < FULL_LINEAR), None)
    figures = ("records", "lost", "doubled", "trials_per_s", "idle_share", "memory_slope_mib_per_h")
    return {
        **{figure: last[figure] for figure in figures},
        "bare_loop_ratio": statistics.median(each.ratio for each in paths) if paths else None,
        "full_at_devices": full.devices if full else None,
        "full_because": _why_full(full, cores) if full else None,
    }


def _why_full(step: Step, cores: int) -> str:
    used = f"the workers use {step.cpu_cores:.1f} of {cores} cores, and the devices are idle {step.idle_share:.0%}"
    if step.cpu_cores >= FULL_CPU * cores:
        return f"the processors are full: {used}"
    return f"the searches of {step.jobs} jobs do not keep {step.devices} devices busy: {used}"


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main(argv: list[str] | None = None) -> int:
    cores = len(os.sched_getaffinity(0))
    # ``worker`` is for the process of a worker alone: the file of its account, which has its name.
    parser = options_of(
        __doc__, needs_json=False, devices=200, jobs=20, trials=0, trial_s=0.5, seconds=20.0, workers=cores,
        memory_minutes=0.0, path_turns=3, path_trials=200, database_url=str, worker=Path,
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.worker:
        given = (options.devices, options.jobs, options.trial_s, options.worker)
        return work(options.database_url, options.worker.name, *given)
    with tempfile.TemporaryDirectory(prefix="workers-") as directory:
        url = options.database_url or f"sqlite:///{directory}/tuning.db"
        upgrade(url)
        steps = run(options, url)
        turns = options.path_turns
        paths = compare_paths(Path(directory), turns, options.path_trials) if turns else []
    plan = {name: each for name, each in vars(options).items() if name not in ("json", "worker", "database_url")}
    document = {
        "steps": [asdict(step) for step in steps], "paths": [asdict(each) for each in paths],
        "summary": summary_of(steps, paths, cores), "protocol": {**plan, "database": url.split(":")[0]},
    }  # fmt: skip
    return finish(options.json, document)


if __name__ == "__main__":
    sys.exit(main())
