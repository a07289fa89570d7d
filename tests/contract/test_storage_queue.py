"""What every Storage promises about the order of the queue: priorities, and turns between owners."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.contract.samples import LONG_S, expire, job_spec, take
from tests.contract.test_storage_at_once import at_once, connections
from tuner.storage import JobState, Lease
from tuner.storage.sql import Storage


def submit(storage: Storage, owner: str, count: int = 1, **fields: Any) -> list[str]:
    return [storage.create_job(job_spec(**fields), owner)[0].id for _ in range(count)]


def drained(storage: Storage) -> list[str]:
    """The owners of all jobs, in the order in which one worker does them."""
    order = []
    while (lease := storage.lease_job("w", LONG_S)) is not None:
        storage.finish_job(lease, JobState.COMPLETED)
        order.append(lease.job.owner)
    return order


def test_one_owners_many_jobs_do_not_keep_anothers_waiting(storage: Storage) -> None:
    submit(storage, "ada", 12)
    submit(storage, "bob")

    assert drained(storage)[:2] == ["ada", "bob"]


def test_owners_take_turns(storage: Storage) -> None:
    for owner in ("ada", "bob", "cyd"):
        submit(storage, owner, 3)

    assert drained(storage) == ["ada", "bob", "cyd"] * 3


def test_who_has_fewest_jobs_running_comes_first(storage: Storage) -> None:
    submit(storage, "ada", 3)
    submit(storage, "bob", 3)

    running = [take(storage, f"w{n}") for n in range(4)]

    assert [lease.job.owner for lease in running] == ["ada", "bob", "ada", "bob"]
    for lease in running[::2]:
        storage.finish_job(lease, JobState.COMPLETED)
    assert [take(storage, "w").job.owner, take(storage, "w").job.owner] == ["ada", "bob"]


def test_a_higher_priority_comes_first_whoever_owns_it(storage: Storage) -> None:
    submit(storage, "bob", 2, priority=-1)
    submit(storage, "ada", 2)
    submit(storage, "ada", 2, priority=3)

    assert drained(storage) == ["ada", "ada", "ada", "ada", "bob", "bob"]
    assert [job.priority for job in storage.list_jobs().items] == [3, 3, 0, 0, -1, -1]


def test_of_one_owners_jobs_the_oldest_comes_first(storage: Storage) -> None:
    made = submit(storage, "ada", 4)

    assert [take(storage).job.id for _ in made] == made


def test_a_job_whose_worker_is_gone_does_not_count_as_running(storage: Storage) -> None:
    submit(storage, "ada", 2)
    late = take(storage)
    expire(storage, late)
    submit(storage, "bob", 1)

    # Ada was served last; her first job is leasable again and still her oldest.
    assert [take(storage).job.owner for _ in range(3)] == ["bob", "ada", "ada"]


def test_turns_are_taken_among_the_jobs_that_a_worker_can_do(storage: Storage) -> None:
    submit(storage, "ada", 2, device="rack-1", priority=5)
    (wanted,) = submit(storage, "bob", device="rack-2")

    lease = storage.lease_job("w", LONG_S, ("rack-2",))

    assert lease is not None
    assert lease.job.id == wanted


def test_workers_that_come_at_once_serve_different_owners(database_url: str) -> None:
    with connections(database_url, 4) as storages:
        for owner in ("ada", "bob", "cyd", "dan"):
            submit(storages[0], owner, 3)

        calls = [partial(storage.lease_job, f"w{n}", LONG_S) for n, storage in enumerate(storages)]
        leases = [lease for lease in at_once(calls) if isinstance(lease, Lease)]

        assert sorted(lease.job.owner for lease in leases) == ["ada", "bob", "cyd", "dan"]
