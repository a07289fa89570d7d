"""What every Storage tells of what devices did lately. Runs on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.contract.samples import job_spec, leased, results
from tests.fleets import fail, measured
from tuner.program.target import native
from tuner.storage import JobState, NotFound
from tuner.storage.jsonl import SharedRecord
from tuner.storage.sql import Storage


@pytest.fixture
def devices(storage: Storage) -> None:
    for name in ("rack-1", "rack-2"):
        storage.register_device(name, "rack", native(), {})


def test_trials_are_told_when_they_ran_not_when_they_were_stored(storage: Storage, devices: None) -> None:
    lease = leased(storage)
    measured(storage, lease, [("rack-1", 400.0), ("rack-1", 398.0), ("rack-1", 20.0), ("rack-2", 5.0)], run_s=2.0)
    fail(storage, lease, "rack-2", 0)

    result = storage.device_activity(900.0, 10.0)

    first, *_, last = result.slots
    assert [slot.device for slot in result.slots] == sorted(slot.device for slot in result.slots)
    # Two trials, one after the other, that may fall on either side of a slot's border.
    assert result.now_s - first.start_s == pytest.approx(402.0, abs=1.5)
    assert sum(slot.trials for slot in result.slots) == 5
    assert sum(slot.busy_s for slot in result.slots if slot.device == "rack-1") == pytest.approx(6.0)
    assert sum(slot.failed for slot in result.slots if slot.device == "rack-2") == 1
    assert result.now_s - last.end_s == pytest.approx(2.0, abs=1.5)
    assert result.jobs[lease.job.id].state is JobState.RUNNING
    assert {slot.job_id for slot in result.slots} == {lease.job.id}
    assert {slot.device for slot in storage.device_activity(900.0, 10.0, "rack-2").slots} == {"rack-2"}
    assert {name: use.trials for name, use in storage.device_use(3600.0).items()} == {"rack-1": 3, "rack-2": 2}
    assert storage.device_use(3600.0)["rack-2"].failed == 1


def test_a_trial_of_a_clock_that_nobody_noted_ended_when_it_was_stored(storage: Storage, devices: None) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(1, device="rack-1", run_s=3.0))
    [slot] = storage.device_activity(60.0, 1.0).slots
    assert slot.end_s - slot.start_s == pytest.approx(3.0, abs=1e-3)
    assert storage.device_activity(60.0, 1.0).now_s - slot.end_s < 5.0


def test_nothing_is_told_of_imported_records_or_of_devices_of_others(storage: Storage, devices: None) -> None:
    lease = leased(storage)
    trials = [*results(1, device="rack-1"), *results(1, start=1), *results(1, start=2, device="another's")]
    storage.append_results(lease, lease.tasks[0].id, trials)
    [record, *_] = storage.export_records()
    foreign = replace(record.record, job_id="job-of-another", result=replace(record.record.result, attempt=7))
    imported = SharedRecord(record.workload, record.target, foreign)
    assert storage.import_records([imported]).added == 1

    assert {slot.device: slot.trials for slot in storage.device_activity(900.0, 60.0).slots} == {"rack-1": 1}
    assert storage.trials_on("rack-1") == 1
    assert len(storage.newest_trials("rack-1")) == 1


def test_the_newest_trials_of_a_device_come_first_and_its_failures_alone(storage: Storage, devices: None) -> None:
    lease = leased(storage)
    measured(storage, lease, [("rack-1", 3.0), ("rack-2", 2.0), ("rack-1", 1.0)])
    fail(storage, lease, "rack-1", 0)

    trials = storage.newest_trials("rack-1")
    assert [(each.result.attempt, each.result.ok) for each in trials] == [(0, False), (2, True), (0, True)]
    assert trials[0].job_id == lease.job.id
    assert trials[0].result.instance.shape == {"T": 5}
    assert storage.newest_trials("rack-1", failed=True) == trials[:1]
    assert storage.newest_trials("rack-1", limit=2) == trials[:2]
    assert storage.newest_trials("rack-2", failed=True) == ()
    assert (storage.trials_on("rack-1"), storage.trials_on("rack-1", most=2), storage.trials_on("none")) == (3, 2, 0)


def test_readings_of_one_device(storage: Storage, devices: None) -> None:
    lease = leased(storage)
    measured(storage, lease, [("rack-1", 3.0), ("rack-2", 2.0), ("rack-1", 1.0)])
    assert [each.device for each in storage.device_readings(device_id="rack-1")] == ["rack-1"] * 2
    assert storage.device_readings(device_id="none") == ()


def test_the_queue_is_counted_by_key(storage: Storage, devices: None) -> None:
    assert storage.queue_counts() == {}
    leased(storage, job_spec(device="rack"))
    for device in ("rack", "rack", "edge"):
        storage.create_job(job_spec(device=device))
    expected = {"rack": {JobState.RUNNING: 1, JobState.WAITING: 2}, "edge": {JobState.WAITING: 1}}
    assert storage.queue_counts() == expected


def test_a_device_is_found_by_its_id(storage: Storage, devices: None) -> None:
    assert storage.get_device("rack-2") == storage.list_devices()[1]
    with pytest.raises(NotFound, match="no device 'none'"):
        storage.get_device("none")
