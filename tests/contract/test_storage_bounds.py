"""Search tasks of a job part by part, and rows that can no longer be read."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tests.contract.samples import LONG_S, job_spec, many_tasks
from tuner.program.job.jobspec import parse_job
from tuner.program.target import Target
from tuner.storage import CorruptData, JobState, NotFound
from tuner.storage.sql import Storage
from tuner.storage.sql.schema import search_tasks, targets


def spoil(storage: Storage, job_id: str, **task: object) -> None:
    """Put something else in place of a job's search task, as a faulty disk or hand might."""
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        connection.execute(update(search_tasks).where(search_tasks.c.job_id == job_id).values(task=task))


def test_search_tasks_are_read_part_by_part(storage: Storage) -> None:
    job, _ = storage.create_job(many_tasks())
    every = storage.search_tasks(job.id)
    assert [task.position for task in storage.search_tasks(job.id, 1)] == [1, 2]
    assert storage.search_tasks(job.id, 0, 2) == every[:2]
    assert storage.search_tasks(job.id, 3, 2) == ()


def test_the_keys_of_a_jobs_workloads_come_without_its_tasks(storage: Storage) -> None:
    job, _ = storage.create_job(many_tasks())
    assert storage.task_keys(job.id) == tuple(task.workload_key for task in storage.search_tasks(job.id))
    with pytest.raises(NotFound):
        storage.task_keys("job-0")


@pytest.mark.parametrize(
    "task", [{}, {"workload": 3}, {"workload": {"op": "nosuch"}}, {"workload": {"op": "dense", "args": {"m": "T"}}}]
)
def test_a_row_that_cannot_be_read_is_no_fault_of_the_reader(storage: Storage, task: dict[str, object]) -> None:
    job, _ = storage.create_job(job_spec())
    spoil(storage, job.id, **task)
    with pytest.raises(CorruptData, match="a search task is stored in a form that cannot be read"):
        storage.search_tasks(job.id)
    assert len(storage.task_keys(job.id)) == 1


def test_a_device_whose_target_cannot_be_read_is_named_in_the_log_and_stops_no_other(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    target, other = job_spec().tasks[0].known_target, Target.from_json({"kind": "llvm", "mcpu": "znver4"})
    storage.register_device("rack-7", "rack", target, {})
    storage.register_device("rack-8", "rack", other, {})
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        spoiled = update(targets).where(targets.c.fingerprint == target.fingerprint)
        connection.execute(spoiled.values(target={"kind": "llvm", "mcpu": "nosuch -mattr=+foo"}))

    assert [device.id for device in storage.list_devices()] == ["rack-8"]
    assert "the target of device rack-7" in caplog.text


def test_a_job_that_cannot_be_read_fails_and_the_next_one_is_leased(storage: Storage) -> None:
    spoilt, _ = storage.create_job(job_spec())
    good, _ = storage.create_job(parse_job(job_spec().source | {"seed": 1}))
    spoil(storage, spoilt.id)
    result = storage.lease_job("w1", LONG_S) or storage.lease_job("w1", LONG_S)
    assert result is not None
    assert result.job.id == good.id
    ended = storage.get_job(spoilt.id)
    assert ended.state is JobState.FAILED
    assert "cannot be read" in ended.error
