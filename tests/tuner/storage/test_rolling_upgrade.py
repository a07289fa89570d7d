"""A database that is upgraded under a worker of the version before: the worker changes nothing, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from tests.contract.samples import LONG_S, job_spec, leased, results, take
from tuner.storage import JobState, Lease, NewEvent, StorageUnavailable
from tuner.storage.sql import Storage
from tuner.storage.sql.migrate import head

SAYS = f"9999, not {head()}; this version of Shapewright is older than its database: update it on this machine"


@contextmanager
def upgraded(storage: Storage) -> Iterator[None]:
    """Inside, the schema is one that only a later version knows."""
    for revision in ("9999", head()):
        with storage._database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
        if revision == "9999":
            yield


WRITES: dict[str, Callable[[Storage, Lease], object]] = {
    "results": lambda storage, lease: storage.append_results(lease, lease.tasks[0].id, results(1)),
    "events": lambda storage, lease: storage.append_events(lease, [NewEvent("log", {})]),
    "end": lambda storage, lease: storage.finish_job(lease, JobState.COMPLETED),
    "heartbeat": lambda storage, lease: storage.heartbeat(lease, LONG_S),
    "lease": lambda storage, _: storage.lease_job("old", LONG_S),
}


@pytest.mark.parametrize("write", WRITES)
def test_an_earlier_worker_changes_nothing_and_is_told_why(storage: Storage, write: str) -> None:
    lease = leased(storage)
    storage.create_job(job_spec())
    with upgraded(storage), pytest.raises(StorageUnavailable, match=SAYS):
        WRITES[write](storage, lease)
    job = storage.get_job(lease.job.id)
    assert (job.state, job.trials, job.epoch) == (JobState.RUNNING, 0, 1)
    WRITES[write](storage, lease)


def test_it_gives_its_job_back_for_a_worker_of_the_later_version(storage: Storage) -> None:
    lease = leased(storage)
    with upgraded(storage):
        storage.release_job(lease)
    assert take(storage, "new").job.id == lease.job.id
