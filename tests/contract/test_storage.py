"""What every Storage promises about jobs: how they are submitted and listed. Runs on each database, as does every
suite whose name begins like this one's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.samples import job_spec, many_tasks, seqs
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import parse_job
from tuner.storage import IdempotencyMismatch, JobState, NotFound
from tuner.storage.sql import Storage


# -- submission -------------------------------------------------------------------------------------------------------
def test_a_new_job_waits_with_its_task_and_its_first_event(storage: Storage) -> None:
    spec = job_spec(device="rack-3")

    job, new = storage.create_job(spec, owner="ada")

    assert new
    assert (job.state, job.name, job.owner, job.device) == (JobState.WAITING, "qkv", "ada", "rack-3")
    assert job.spec == spec.source
    assert (job.epoch, job.worker, job.trials, job.error, job.started_at, job.ended_at) == (0, None, 0, "", None, None)
    assert job == storage.get_job(job.id)
    (task,) = storage.search_tasks(job.id)
    assert (task.job_id, task.position, task.count, task.spent_s, task.done) == (job.id, 0, 1, 0.0, False)
    assert task.task == spec.tasks[0]
    assert task.workload_key == spec.tasks[0].workload.key
    assert task.task.target is not None
    assert task.target_fingerprint == task.task.target.fingerprint
    (event,) = storage.list_events(job.id)
    assert (event.job_id, event.seq, event.kind, event.data) == (job.id, 1, "state", {"state": "WAITING"})


def test_several_workloads_become_tasks_in_order_with_their_counts(storage: Storage) -> None:
    job, _ = storage.create_job(many_tasks())

    tasks = storage.search_tasks(job.id)

    assert [task.position for task in tasks] == [0, 1, 2]
    assert [task.count for task in tasks] == [1, 12, 1]
    assert [task.task.workload.to_json()["op"] for task in tasks] == ["dense", "matmul", "dense"]
    assert len({task.workload_key for task in tasks}) == 2


def test_a_job_without_a_target_is_refused_and_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(InvalidInput) as caught:
        storage.create_job(parse_job(job_spec().source | {"target": "native"}))

    assert caught.value.field == "tasks[0].target"
    assert storage.list_jobs().items == ()
    assert storage.list_workloads().items == ()


def test_times_are_utc_and_now(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec())

    created = datetime.fromisoformat(job.created_at)

    assert job.created_at.endswith("Z")
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=1)


def test_the_same_key_and_body_give_the_same_job(storage: Storage) -> None:
    first, _ = storage.create_job(job_spec(), "ada", "k1")
    reordered = parse_job(dict(reversed(job_spec().source.items())))

    again, new = storage.create_job(reordered, "ada", "k1")

    assert not new
    assert again.id == first.id
    assert len(storage.list_jobs().items) == 1
    assert len(storage.search_tasks(first.id)) == 1
    assert seqs(storage, first.id) == [1]


def test_the_same_key_for_another_body_is_refused(storage: Storage) -> None:
    storage.create_job(job_spec(), "ada", "k1")

    with pytest.raises(IdempotencyMismatch, match="k1"):
        storage.create_job(job_spec(k=128), "ada", "k1")


def test_idempotency_keys_are_each_owners_own_and_none_is_no_key(storage: Storage) -> None:
    ids = {storage.create_job(job_spec(), owner, key)[0].id for owner, key in [("ada", "k"), ("bob", "k")]}
    ids |= {storage.create_job(job_spec(), "ada")[0].id for _ in range(2)}

    assert len(ids) == 4


def test_unknown_jobs_are_not_found(storage: Storage) -> None:
    for ask in (
        storage.get_job,
        storage.search_tasks,
        storage.request_cancel,
        storage.resume_job,
        storage.list_events,
        storage.list_trials,
    ):
        with pytest.raises(NotFound, match="job-none"):
            ask("job-none")


# -- lists ------------------------------------------------------------------------------------------------------------
def test_pages_go_from_the_newest_job_to_the_oldest_and_lose_none(storage: Storage) -> None:
    made = [storage.create_job(job_spec())[0].id for _ in range(7)]

    seen, cursor = [], None
    while True:
        page = storage.list_jobs(cursor, limit=3)
        assert len(page.items) <= 3
        seen += [job.id for job in page.items]
        # Jobs submitted while somebody pages are on pages already seen.
        storage.create_job(job_spec(name="late"))
        if (cursor := page.cursor) is None:
            break

    assert seen == made[::-1]


def test_a_page_that_ends_with_the_last_job_has_no_cursor(storage: Storage) -> None:
    for _ in range(2):
        storage.create_job(job_spec())

    assert storage.list_jobs(limit=2).cursor is None
    assert storage.list_jobs(limit=1).cursor is not None


def test_jobs_can_be_listed_by_state(storage: Storage) -> None:
    cancelled = storage.create_job(job_spec())[0].id
    waiting = storage.create_job(job_spec())[0].id
    storage.request_cancel(cancelled)

    assert [job.id for job in storage.list_jobs(state=JobState.WAITING).items] == [waiting]
    assert [job.id for job in storage.list_jobs(state=JobState.CANCELLED).items] == [cancelled]
    assert storage.list_jobs(state=JobState.FAILED).items == ()


@pytest.mark.parametrize("cursor", ["", "x", "!!", "ä", "am9iczo", "am9iczotMQ", "am9iczoxMjM0NTY3ODkwMTIzNDU2Nzg5MA"])
def test_a_cursor_that_is_not_ours_is_refused(storage: Storage, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        storage.list_jobs(cursor)
    assert caught.value.field == "cursor"


def test_a_cursor_of_another_list_is_refused(storage: Storage) -> None:
    for k in (64, 128):
        storage.create_job(job_spec(k=k))

    with pytest.raises(InvalidInput):
        storage.list_jobs(storage.list_workloads(limit=1).cursor)
