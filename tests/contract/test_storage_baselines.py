"""What every Storage promises about what kernels are compared with. Runs on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.samples import leased, many_tasks, seqs
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NO_BASELINES, NUMPY, Baseline, Baselines, Roof
from tuner.storage import NotFound
from tuner.storage.sql import Storage


def compared(*latencies_s: float) -> Baselines:
    points = [
        Baseline(NUMPY, WorkloadInstance.of({"T": t}, 2.0), latency_s, 3e-6) for t, latency_s in enumerate(latencies_s)
    ]
    return Baselines(tuple(points), Roof(2.4e11, 3e10, 2.9e-6))


def test_baselines_come_back_as_they_were_with_their_task_alone(storage: Storage) -> None:
    lease = leased(storage, many_tasks())
    first, second, third = lease.tasks
    result = compared(1e-3, 2.5e-3)

    storage.save_baselines(lease, second.id, result)

    rows = storage.search_tasks(lease.job.id)
    assert rows == (first, replace(second, baselines=result), third)
    assert first.baselines == NO_BASELINES
    assert storage.latest_task(second.workload_key).baselines == result


def test_baselines_are_told_once_and_new_ones_take_their_place(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0].id
    later = compared(1.5)

    for result in (compared(1.0, 2.0), compared(1.0, 2.0), later):
        storage.save_baselines(lease, task, result)

    assert storage.search_tasks(lease.job.id)[0].baselines == later
    told = [event.data for event in storage.list_events(lease.job.id) if event.kind == "baselines"]
    assert told == [{"count": count, "search_task_id": task, "position": 0} for count in (2, 1)]
    assert seqs(storage, lease.job.id) == [1, 2, 3, 4]


def test_baselines_of_another_jobs_task_are_refused_whole(storage: Storage) -> None:
    other = leased(storage)
    lease = leased(storage)

    with pytest.raises(NotFound, match=str(other.tasks[0].id)):
        storage.save_baselines(lease, other.tasks[0].id, compared(1.0))

    assert storage.search_tasks(other.job.id) == other.tasks
    assert seqs(storage, lease.job.id) == [1, 2]
