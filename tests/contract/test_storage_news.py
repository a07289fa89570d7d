"""What every Storage promises to those who wait for news, and to those who read long lists. Runs on each database."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.samples import LONG_S, job_spec, leased, many_tasks, results
from tuner.records import ErrorKind, TuningRecord
from tuner.storage import NewEvent, NotFound
from tuner.storage.sql import Storage, open_storage


# -- what is new ------------------------------------------------------------------------------------------------------
def test_the_newest_events_of_many_jobs_are_told_at_once(storage: Storage) -> None:
    lease = leased(storage)
    waiting = storage.create_job(job_spec())[0].id
    storage.append_events(lease, [NewEvent("log", {})] * 3)

    assert storage.last_events([lease.job.id, waiting, "job-none"]) == {lease.job.id: 5, waiting: 1}
    assert storage.last_events([]) == {}
    many = [f"job-{number}" for number in range(1200)]
    assert storage.last_events([*many, waiting]) == {waiting: 1}


def test_a_watch_tells_of_every_commit_and_of_nothing_else(storage: Storage, database_url: str) -> None:
    other = open_storage(database_url)
    lease = leased(other)
    watch = storage.watch_commits()

    assert watch.changed(), "at first there may be anything"
    # A server's own upkeep may commit something now and then.
    assert not all(watch.changed() for _ in range(20))
    for write in (
        lambda: other.append_events(lease, [NewEvent("log", {})]),
        lambda: storage.append_events(lease, [NewEvent("log", {})]),
        lambda: other.heartbeat(lease, LONG_S),
    ):
        write()
        assert watch.changed()
    watch.close()
    assert watch.changed(), "and again after a break"
    watch.close()
    other.close()


# -- trials as JSON ---------------------------------------------------------------------------------------------------
def as_told(record: TuningRecord) -> dict[str, Any]:
    names = ("seq", "job_id", "search_task_id", "workload_key", "target_fingerprint", "threads", "protocol")
    known = {name: getattr(record, name) for name in (*names, "provenance", "created_at")}
    return {**known, **record.result.to_json()}


def test_trials_as_json_are_the_trials(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    first, second, third = (task.id for task in lease.tasks)
    said = 'a "quoted" line\nwith \\ and é, \u2028 and 𝄞'
    storage.append_results(lease, first, results(5, samples_s=(0.5, 1e-7), predicted_s=0.1, anchor_s=1e-3, device="d"))
    failed = {"latency_s": None, "error_kind": ErrorKind.WRONG, "error": said}
    storage.append_results(lease, third, [replace(result, **failed) for result in results(3)])  # type: ignore[arg-type]
    storage.append_results(lease, first, results(3, start=5, t=128))
    storage.append_results(lease, second, [])
    everything = [as_told(record) for record in storage.list_trials(lease.job.id)]
    assert len(everything) == 11

    entries, after = [], 0
    while True:
        texts, last = storage.trials_as_json(lease.job.id, after, 4)
        if not texts:
            break
        assert len(texts) <= 4
        entries += [json.loads(text) for text in texts]
        after = last
    assert entries == everything
    assert (texts, last) == ([], everything[-1]["seq"])
    assert [list(trial) for trial in entries] == [list(trial) for trial in everything]
    with pytest.raises(NotFound, match="job-none"):
        storage.trials_as_json("job-none")


# -- jobs, and how much there is of a workload ------------------------------------------------------------------------
def test_a_list_of_jobs_need_not_have_what_is_large(storage: Storage) -> None:
    storage.create_job(job_spec())
    (whole,), (brief,) = storage.list_jobs().items, storage.list_jobs(whole=False).items

    assert whole.spec == job_spec().source
    assert (brief.spec, brief.summary) == ({}, {})
    assert replace(whole, spec={}, summary={}) == brief


def test_records_are_counted_once_however_often_they_are_sent(storage: Storage) -> None:
    first, second = leased(storage), leased(storage)
    key = first.tasks[0].workload_key
    for lease, count in ((first, 5), (first, 5), (second, 3), (first, 7)):
        storage.append_results(lease, lease.tasks[0].id, results(count))

    assert storage.get_workload(key).records == 7 + 3
