"""What every Storage promises when several threads and processes use it at once. Runs on each database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import tuner
from tests.contract.samples import LONG_S, expire, job_spec, leased, many_tasks, results, seqs, states, take
from tests.shares import chosen
from tuner.storage import JobState, Lease, LeaseLost, NewEvent
from tuner.storage.sql import Storage, open_storage

T = TypeVar("T")
ROOT = Path(tuner.__file__).parents[1]
DEADLINE_S = 60
WRITER = """
import sys
from tests.contract.samples import results
from tuner.storage import Lease, NewEvent
from tuner.storage.sql import open_storage

url, job_id, number = sys.argv[1:]
storage = open_storage(url)
lease = Lease(storage.get_job(job_id), storage.search_tasks(job_id), "w1", 1)
for start in range(20):
    batch = results(3, start, t=int(number))
    storage.append_results(lease, lease.tasks[0].id, batch, [NewEvent("trials", {"by": number, "start": start})])
"""


@contextmanager
def connections(url: str, count: int) -> Iterator[list[Storage]]:
    """As many storages, each with connections of its own, as processes would have them."""
    with ExitStack() as stack:
        opened = [open_storage(url) for _ in range(count)]
        for storage in opened:
            stack.callback(storage.close)
        yield list(opened)


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Start every call at the same moment, each in a thread; what they returned."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        barrier.wait(DEADLINE_S)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(DEADLINE_S) for future in [pool.submit(run, call) for call in calls]]


def test_a_job_is_leased_by_exactly_one_of_many_workers(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        for _ in range(8):
            job_id = storages[0].create_job(job_spec())[0].id
            calls = [partial(storage.lease_job, f"w{n}", LONG_S) for n, storage in enumerate(storages)]

            won = [lease for lease in at_once(calls) if lease is not None]

            assert [lease.job.id for lease in won] == [job_id]
            assert storages[0].get_job(job_id).worker == won[0].worker
            assert states(storages[0], job_id) == ["WAITING", "RUNNING"]


def test_an_expired_job_is_taken_over_by_exactly_one(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        late = leased(storages[0])
        expire(storages[0], late)
        calls = [partial(storage.lease_job, f"w{n}", LONG_S) for n, storage in enumerate(storages)]

        (won,) = [lease for lease in at_once(calls) if lease is not None]

        assert won.epoch == 2


def test_workers_that_drain_a_queue_get_every_job_once(database_url: str) -> None:
    def drain(storage: Storage, worker: str) -> list[str]:
        done = []
        while (lease := storage.lease_job(worker, LONG_S)) is not None:
            storage.finish_job(lease, JobState.COMPLETED)
            done.append(lease.job.id)
        return done

    with connections(database_url, 4) as storages:
        made = [storages[0].create_job(job_spec())[0].id for _ in range(24)]

        parts = at_once([partial(drain, storage, f"w{n}") for n, storage in enumerate(storages)])

        assert sorted(job_id for part in parts for job_id in part) == sorted(made)


def test_the_same_idempotency_key_at_once_makes_one_job(database_url: str) -> None:
    with connections(database_url, 6) as storages:
        made = at_once([partial(storage.create_job, many_tasks(), "ada", "k1") for storage in storages])

        assert len({job.id for job, _ in made}) == 1
        assert [new for _, new in made].count(True) == 1
        assert len(storages[0].search_tasks(made[0][0].id)) == 3


def test_a_search_that_is_saved_twice_at_once_is_saved(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        for number in range(8):
            saved = at_once([partial(storage.save_filter, "ada", f"f{number}", "bert") for storage in storages])
            assert {each.query for each in saved} == {"bert"}
        assert len(storages[0].list_filters("ada")) == 8


def test_jobs_submitted_at_once_share_their_new_workloads(database_url: str) -> None:
    with connections(database_url, 6) as storages:
        at_once([partial(storage.create_job, many_tasks()) for storage in storages])

        assert [row.jobs for row in storages[0].list_workloads().items] == [6, 6]


def test_events_have_no_gaps_and_a_reader_misses_none(database_url: str) -> None:
    """Writers in threads append to one job while a reader follows it; what is read is gapless at every moment."""
    writers, each = 4, 25

    def write(storage: Storage, lease: Lease, by: int) -> None:
        for line in range(each):
            storage.append_events(lease, [NewEvent("log", {"by": by, "line": line})] * 2)

    def follow(storage: Storage, job_id: str) -> list[int]:
        seen: list[int] = []
        while len(seen) < 2 + 2 * writers * each:
            more = storage.list_events(job_id, after=seen[-1] if seen else 0)
            seen += [event.seq for event in more]
            assert seen == list(range(1, len(seen) + 1))
        return seen

    with connections(database_url, writers + 1) as storages:
        lease = leased(storages[0])
        calls: list[Callable[[], object]] = [partial(write, storages[n], lease, n) for n in range(writers)]
        calls.append(partial(follow, storages[-1], lease.job.id))
        at_once(calls)

        events = storages[0].list_events(lease.job.id, after=2)
        for by in range(writers):
            lines = [event.data["line"] for event in events if event.data["by"] == by]
            assert lines == sorted([*range(each)] * 2)


def test_batches_sent_at_once_are_stored_once(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        lease = leased(storages[0])
        batch = (lease, lease.tasks[0].id, results(64), [NewEvent("trials", {})])

        at_once([partial(storage.append_results, *batch) for storage in storages])

        assert storages[0].get_job(lease.job.id).trials == 64
        assert [record.result for record in storages[0].list_trials(lease.job.id)] == results(64)
        assert seqs(storages[0], lease.job.id) == [1, 2, 3]


def test_jobs_that_find_the_same_kernels_at_once_share_them(database_url: str) -> None:
    def write(storage: Storage, lease: Lease, step: int) -> None:
        for start in range(0, 200, 40):
            storage.append_results(lease, lease.tasks[0].id, results(40, start)[::step])

    with connections(database_url, 4) as storages:
        leases = [leased(storages[0]) for _ in storages]

        at_once([partial(write, storages[n], leases[n], (-1) ** n) for n in range(4)])

        assert [storages[0].get_job(lease.job.id).trials for lease in leases] == [200] * 4


def test_finishing_and_taking_over_at_once_leaves_one_of_the_two(database_url: str) -> None:

    def finish(storage: Storage, lease: Lease) -> bool:
        try:
            storage.finish_job(lease, JobState.COMPLETED)
        except LeaseLost:
            return False
        return True

    with connections(database_url, 2) as storages:
        for _ in range(8):
            late = leased(storages[0])
            expire(storages[0], late)

            calls: list[Callable[[], object]] = [
                partial(finish, storages[0], late),
                partial(storages[1].lease_job, "w2", LONG_S),
            ]
            finished, taken = at_once(calls)

            assert finished is (taken is None)
            if isinstance(taken, Lease):
                storages[1].finish_job(taken, JobState.COMPLETED)
            assert states(storages[0], late.job.id).count("COMPLETED") == 1


# To PostgreSQL a process is one more connection, as a thread's is.
@pytest.mark.parametrize("database_url", chosen(["sqlite"], ["sqlite", "postgresql"]), indirect=True)
def test_processes_that_write_at_once_lose_nothing(database_url: str, storage: Storage) -> None:
    job_id = storage.create_job(job_spec())[0].id
    take(storage)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, database_url, job_id, str(number)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]

    said = [process.communicate(timeout=DEADLINE_S)[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], said
    # Each sends kernels 0..21 in overlapping batches of three.
    assert storage.get_job(job_id).trials == 2 * 22
    assert seqs(storage, job_id) == list(range(1, 2 + 2 * 20 + 1))
