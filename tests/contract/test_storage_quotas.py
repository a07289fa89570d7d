"""What every Storage promises about quotas: what counts, what is refused, and that nothing slips through at once."""

from __future__ import annotations

from functools import partial

import pytest

from tests.contract.samples import job_spec, results, take
from tests.contract.test_storage_at_once import at_once, connections
from tuner.storage import JobState, Quota, QuotaExceeded
from tuner.storage.sql import Storage


def submit(storage: Storage, quota: Quota, owner: str = "ada", trials: int = 10, seconds: float = 20.0) -> str:
    spec = job_spec(budget={"trials": trials, "seconds": seconds})
    return storage.create_job(spec, owner, quota=quota)[0].id


@pytest.mark.parametrize(
    ("quota", "name", "used", "asked"),
    [
        (Quota(open_jobs=1), "open_jobs", 1, 1),
        (Quota(trials=19), "trials", 10, 10),
        (Quota(seconds=39.0), "seconds", 20.0, 20.0),
        (Quota(5, 19, 39.0), "trials", 10, 10),
    ],
)
def test_what_would_be_too_much_is_refused_and_leaves_nothing(
    storage: Storage, quota: Quota, name: str, used: float, asked: float
) -> None:
    first = submit(storage, quota)

    with pytest.raises(QuotaExceeded, match=name) as caught:
        submit(storage, quota)

    error = caught.value
    assert (error.name, error.used, error.asked, error.limit) == (name, used, asked, getattr(quota, name))
    assert error.remedy
    assert [job.id for job in storage.list_jobs().items] == [first]
    assert storage.list_audit().items[0].subject == first


def test_what_fits_exactly_is_accepted(storage: Storage) -> None:
    for _ in range(2):
        submit(storage, Quota(2, 20, 40.0))


def test_others_jobs_do_not_count(storage: Storage) -> None:
    submit(storage, Quota(open_jobs=1), "bob")
    submit(storage, Quota(open_jobs=1), "ada")


def test_a_job_without_a_limit_needs_a_quota_without_one(storage: Storage) -> None:
    spec = job_spec(budget={"seconds": 5})

    with pytest.raises(QuotaExceeded, match="no limit"):
        storage.create_job(spec, "ada", quota=Quota(trials=1000))
    storage.create_job(spec, "ada", quota=Quota(seconds=1000))


def test_a_job_that_ended_counts_with_what_it_used(storage: Storage) -> None:
    submit(storage, Quota())
    lease = take(storage)
    storage.append_results(lease, lease.tasks[0].id, results(4), spent_s=7.5)
    storage.finish_job(lease, JobState.COMPLETED)

    with pytest.raises(QuotaExceeded) as trials:
        submit(storage, Quota(trials=13))
    with pytest.raises(QuotaExceeded) as seconds:
        submit(storage, Quota(seconds=27.0))

    assert (trials.value.used, seconds.value.used) == (4, 7.5)
    submit(storage, Quota(1, 14, 27.5))


def test_the_same_request_again_is_no_further_job(storage: Storage) -> None:
    first, _ = storage.create_job(job_spec(), "ada", "k1", quota=Quota(open_jobs=1))

    again, new = storage.create_job(job_spec(), "ada", "k1", quota=Quota(open_jobs=1))

    assert (again.id, new) == (first.id, False)


def test_resuming_counts_too(storage: Storage) -> None:
    first = submit(storage, Quota(open_jobs=1))
    storage.request_cancel(first)
    second = submit(storage, Quota(open_jobs=1))

    with pytest.raises(QuotaExceeded):
        storage.resume_job(first, quota=Quota(open_jobs=1))
    assert storage.get_job(first).state is JobState.CANCELLED

    storage.request_cancel(second)
    assert storage.resume_job(first, quota=Quota(open_jobs=1)).state is JobState.WAITING


def test_of_many_jobs_at_once_no_more_than_the_quota_get_in(database_url: str) -> None:
    def attempt(storage: Storage, owner: str) -> bool:
        try:
            storage.create_job(job_spec(), owner, quota=Quota(open_jobs=2))
        except QuotaExceeded:
            return False
        return True

    with connections(database_url, 6) as storages:
        key, _ = storages[0].create_key("ci")

        got_in = at_once([partial(attempt, storage, key.owner) for storage in storages])

        assert got_in.count(True) == 2
        assert len(storages[0].list_jobs().items) == 2


def test_a_job_that_has_ended_counts_for_no_more_seconds_than_it_was_given(storage: Storage) -> None:
    submit(storage, Quota())
    lease = take(storage)
    # As two searches do that run at once.
    storage.append_results(lease, lease.tasks[0].id, results(1), spent_s=35.0)
    storage.finish_job(lease, JobState.COMPLETED)

    with pytest.raises(QuotaExceeded) as caught:
        submit(storage, Quota(seconds=39.0))

    assert caught.value.used == 20.0
