"""What every Storage promises to pages that people look at: tables of jobs, newest events, readings of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.samples import job_spec, leased, many_tasks, results
from tuner.storage import JobOrder, JobQuery, JobState, NewEvent, NotFound
from tuner.storage.sql import Storage


def names(storage: Storage, **query: object) -> list[str]:
    return [job.name for job in storage.find_jobs(JobQuery(**query)).items]  # type: ignore[arg-type]


@pytest.fixture
def three(storage: Storage) -> Storage:
    """Jobs b, A and c, submitted in that order; 0, 3 and 1 trials; c is cancelled."""
    for name, trials in (("b", 0), ("A", 3), ("c", 1)):
        lease = leased(storage, job_spec(name=name))
        if trials:
            storage.append_results(lease, lease.tasks[0].id, results(trials))
        if name == "c":
            storage.finish_job(lease, JobState.CANCELLED)
    return storage


def test_a_table_of_jobs_stands_in_any_order(three: Storage) -> None:
    assert names(three) == ["c", "A", "b"]
    assert names(three, descending=False) == ["b", "A", "c"]
    assert names(three, order=JobOrder.NAME, descending=False) == ["A", "b", "c"]
    assert names(three, order=JobOrder.TRIALS) == ["A", "c", "b"]
    assert names(three, order=JobOrder.STATE, descending=False) == ["c", "A", "b"]


def test_a_table_of_jobs_comes_in_parts_and_tells_how_many_there_are(three: Storage) -> None:
    part = three.find_jobs(JobQuery(offset=1, limit=1))
    assert ([job.name for job in part.items], part.total) == (["A"], 3)
    assert three.find_jobs(JobQuery(offset=9)) == replace(part, items=())


def test_jobs_are_found_by_name_id_owner_and_state(storage: Storage) -> None:
    key, _ = storage.create_key("Ada's laptop")
    made, _ = storage.create_job(job_spec(name="注意力 50%_done"), key.id)
    storage.create_job(job_spec(name="other"))

    for text in ("注意", "50%_", "0%_D", made.id[:-6].upper(), "ada", "注意力 50%_done"):
        assert names(storage, text=text) == [made.name], text
    assert names(storage, text="50_") == []
    assert names(storage, text="other", state=JobState.RUNNING) == []
    assert names(storage, text="other", state=JobState.WAITING) == ["other"]


def test_jobs_are_counted_by_state_with_all_their_trials(three: Storage) -> None:
    counts = three.job_counts()
    assert (counts["RUNNING"], counts["CANCELLED"], counts["FAILED"], counts["trials"]) == (2, 1, 0, 4)


def test_an_empty_database_counts_nothing(storage: Storage) -> None:
    assert set(storage.job_counts().values()) == {0}
    assert storage.find_jobs(JobQuery()).total == 0
    assert storage.device_readings() == ()


def test_the_newest_events_of_some_kinds_come_in_order(storage: Storage) -> None:
    lease = leased(storage)
    storage.append_events(lease, [NewEvent("log", {"n": number}) for number in range(4)])
    storage.append_events(lease, [NewEvent("progress", {})])

    result = storage.newest_events(lease.job.id, ("log", "state"), 3)

    assert [event.data["n"] for event in result] == [1, 2, 3]
    assert storage.newest_events(lease.job.id, ()) == ()
    with pytest.raises(NotFound):
        storage.newest_events("job-none", ("log",))


def test_the_tasks_of_a_workload_come_newest_first(storage: Storage) -> None:
    first, second = leased(storage, many_tasks()), leased(storage)
    key = first.tasks[0].workload_key
    mine = [row for lease in (first, second) for row in lease.tasks if row.workload_key == key]

    assert [row.id for row in storage.tasks_of_workload(key)] == [row.id for row in reversed(mine)]
    assert len(storage.tasks_of_workload(key, limit=1)) == 1
    with pytest.raises(NotFound):
        storage.tasks_of_workload("dense-none")


def test_readings_of_devices_are_told_oldest_first(storage: Storage) -> None:
    lease = leased(storage)
    known = [replace(result, device=f"d{n}", anchor_s=1e-6) for n, result in enumerate(results(3))]
    storage.append_results(lease, lease.tasks[0].id, [*results(1, start=3), *known])

    entries = storage.device_readings()

    assert [reading.device for reading in entries] == ["d0", "d1", "d2"]
    assert {(each.job_id, each.job_name, each.anchor_s) for each in entries} == {(lease.job.id, lease.job.name, 1e-6)}
    assert all(lease.job.created_at <= each.at for each in entries)
    assert [reading.device for reading in storage.device_readings(limit=1)] == ["d2"]
