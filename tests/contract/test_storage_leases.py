"""What every Storage promises about leases, cancelling and resuming. Runs on each database."""

from __future__ import annotations

import time

import pytest

from tests.contract.samples import LONG_S, expire, job_spec, leased, many_tasks, results, states, take
from tuner.errors import InvalidInput
from tuner.records import Baselines, Roof
from tuner.storage import MAX_ATTEMPTS, Conflict, JobState, Lease, LeaseLost, NewEvent
from tuner.storage.sql import Storage, queue

ENDED = (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


# -- leases -----------------------------------------------------------------------------------------------------------
def test_the_oldest_waiting_job_is_leased_first(storage: Storage) -> None:
    made = [storage.create_job(many_tasks())[0].id for _ in range(2)]

    first, second = take(storage, "w1"), take(storage, "w2")

    assert [first.job.id, second.job.id] == made
    assert storage.lease_job("w3", LONG_S) is None
    assert (first.job.state, first.job.worker, first.worker, first.epoch) == (JobState.RUNNING, "w1", "w1", 1)
    assert first.job == storage.get_job(made[0])
    assert first.job.started_at is not None
    assert first.tasks == storage.search_tasks(made[0])
    assert states(storage, made[0]) == ["WAITING", "RUNNING"]


def test_a_worker_gets_only_jobs_for_its_devices(storage: Storage) -> None:
    storage.create_job(job_spec(device="rack-1"))
    wanted, _ = storage.create_job(job_spec(device="rack-2"))

    assert storage.lease_job("w", LONG_S, ()) is None
    assert storage.lease_job("w", LONG_S, ("local",)) is None
    lease = storage.lease_job("w", LONG_S, ("local", "rack-2"))
    assert lease is not None
    assert lease.job.id == wanted.id


def test_an_expired_lease_goes_to_the_next_worker_with_the_next_epoch(storage: Storage) -> None:
    late = leased(storage)
    assert storage.lease_job("w2", LONG_S) is None
    expire(storage, late)

    lease = take(storage, "w2")

    assert (lease.job.id, lease.epoch, lease.job.worker) == (late.job.id, 2, "w2")
    assert lease.job.state is JobState.RUNNING
    assert lease.job.started_at == late.job.started_at
    lost = [event.data for event in storage.list_events(late.job.id) if event.kind == "state"][2]
    assert (lost["state"], lost["failed_attempts"]) == ("WAITING", 1)
    assert "worker w1 was lost" in lost["error"]
    assert lease.job.failed_attempts == 1


def test_a_late_worker_changes_nothing(storage: Storage) -> None:
    late = leased(storage)
    expire(storage, late)
    lease = take(storage, "w2")
    before = (storage.get_job(late.job.id), storage.list_events(late.job.id))
    task = late.tasks[0].id

    for attempt in (
        lambda: storage.heartbeat(late, LONG_S),
        lambda: storage.append_results(late, task, results(3), [NewEvent("log", {})], 9.0, {"late": True}),
        lambda: storage.append_events(late, [NewEvent("log", {})]),
        lambda: storage.save_baselines(late, task, Baselines(roof=Roof(1e11, 1e10))),
        lambda: storage.save_library(late, task, {"library.so": b"late"}, {"digest": "d"}, {}),
        lambda: storage.finish_job(late, JobState.FAILED, "late"),
        lambda: storage.release_job(late),
        lambda: storage.fail_attempt(late, "no device"),
    ):
        with pytest.raises(LeaseLost, match=late.job.id):
            attempt()

    assert (storage.get_job(late.job.id), storage.list_events(late.job.id)) == before
    assert storage.list_trials(late.job.id) == ()
    assert storage.search_tasks(late.job.id) == lease.tasks
    assert storage.heartbeat(lease, LONG_S) is JobState.RUNNING


def test_who_is_late_but_alone_may_go_on(storage: Storage) -> None:
    lease = leased(storage)
    expire(storage, lease)

    storage.append_results(lease, lease.tasks[0].id, results(1))
    assert storage.heartbeat(lease, LONG_S) is JobState.RUNNING

    assert storage.lease_job("w2", LONG_S) is None


@pytest.mark.parametrize("state", ENDED)
def test_a_finished_job_is_nobodys(storage: Storage, state: JobState) -> None:
    lease = leased(storage)

    job = storage.finish_job(lease, state, "disk full" if state is JobState.FAILED else "", {"best_s": 0.5})

    assert job == storage.get_job(lease.job.id)
    assert (job.state, job.summary) == (state, {"best_s": 0.5})
    assert job.ended_at is not None
    last = storage.list_events(job.id)[-1]
    failed = {"state": "FAILED", "error": "disk full"}
    assert last.data == (failed if state is JobState.FAILED else {"state": state.value})
    assert job.error == last.data.get("error", "")
    assert storage.lease_job("w2", LONG_S) is None
    with pytest.raises(LeaseLost):
        storage.heartbeat(lease, LONG_S)
    with pytest.raises(LeaseLost):
        storage.finish_job(lease, JobState.COMPLETED)


def test_a_job_cannot_finish_in_a_state_that_goes_on(storage: Storage) -> None:
    lease = leased(storage)

    with pytest.raises(InvalidInput, match="RUNNING does not end a job"):
        storage.finish_job(lease, JobState.RUNNING)

    assert storage.get_job(lease.job.id).state is JobState.RUNNING


def test_a_released_job_waits_again(storage: Storage) -> None:
    lease = leased(storage)

    storage.release_job(lease)

    job = storage.get_job(lease.job.id)
    assert (job.state, job.worker, job.ended_at) == (JobState.WAITING, None, None)
    with pytest.raises(LeaseLost):
        storage.append_events(lease, [NewEvent("log", {})])
    assert take(storage, "w2").epoch == 2
    assert states(storage, job.id) == ["WAITING", "RUNNING", "WAITING", "RUNNING"]


# -- failed attempts --------------------------------------------------------------------------------------------------
def lose(storage: Storage, lease: Lease) -> Lease | None:
    """The next lease of the job, after its worker was lost and every wait is over."""
    expire(storage, lease)
    again = storage.lease_job("w2", LONG_S)
    if again is None and storage.get_job(lease.job.id).state is JobState.WAITING:
        time.sleep(0.05)
        again = storage.lease_job("w2", LONG_S)
    return again


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FIRST_WAIT_S", 0.002)


@pytest.mark.usefixtures("quick")
def test_a_job_that_costs_one_worker_after_the_other_fails_and_the_queue_goes_on(storage: Storage) -> None:
    lease: Lease | None = leased(storage)
    other, _ = storage.create_job(job_spec())
    assert lease is not None
    job_id = lease.job.id
    for failed in range(1, MAX_ATTEMPTS):
        lease = lose(storage, lease)
        assert lease is not None and (lease.job.id, lease.job.failed_attempts) == (job_id, failed)

    expire(storage, lease)
    following = storage.lease_job("w3", LONG_S)

    job = storage.get_job(job_id)
    assert (job.state, job.failed_attempts) == (JobState.FAILED, MAX_ATTEMPTS)
    assert "4 attempts in a row failed with nothing recorded; the last: worker w2 was lost" in job.error
    assert (following or take(storage)).job.id == other.id


@pytest.mark.usefixtures("quick")
def test_an_attempt_that_recorded_something_starts_the_count_again(storage: Storage) -> None:
    lease: Lease | None = leased(storage)
    for number in range(MAX_ATTEMPTS + 1):
        assert lease is not None
        storage.append_results(lease, lease.tasks[0].id, results(1, number))
        lease = lose(storage, lease)
    assert lease is not None and lease.job.failed_attempts == 1


def test_a_job_waits_longer_after_each_failed_attempt_and_others_go_first(storage: Storage) -> None:
    lease = leased(storage)
    assert storage.fail_attempt(lease, "no device").state is JobState.WAITING
    again = take(storage)
    other, _ = storage.create_job(job_spec())
    waiting = storage.fail_attempt(again, "Ray did not start")

    assert waiting == storage.get_job(lease.job.id)
    assert (waiting.state, waiting.failed_attempts, waiting.error) == (JobState.WAITING, 2, "Ray did not start")
    assert waiting.not_before is not None and waiting.worker is None
    assert take(storage).job.id == other.id
    assert storage.lease_job("w", LONG_S) is None
    waits = [event.data.get("wait_s") for event in storage.list_events(lease.job.id) if "wait_s" in event.data]
    assert waits == [0.0, 1.0]


def test_a_resumed_job_has_all_its_attempts_again(storage: Storage) -> None:
    lease = leased(storage)
    storage.fail_attempt(lease, "no device")
    storage.fail_attempt(take(storage), "no device")
    storage.request_cancel(lease.job.id)

    job = storage.resume_job(lease.job.id)

    assert (job.failed_attempts, job.not_before, job.error) == (0, None, "")
    assert take(storage).job.error == ""


def test_a_failed_attempt_at_a_job_that_is_being_cancelled_ends_it(storage: Storage) -> None:
    lease = leased(storage)
    storage.request_cancel(lease.job.id)
    assert storage.fail_attempt(lease, "no device").state is JobState.CANCELLED


def test_an_orderly_release_is_no_failed_attempt(storage: Storage) -> None:
    lease = leased(storage)
    storage.release_job(lease)
    assert storage.get_job(lease.job.id).failed_attempts == 0


# -- cancel and resume ------------------------------------------------------------------------------------------------
def test_cancelling_a_waiting_job_ends_it(storage: Storage) -> None:
    job, _ = storage.create_job(job_spec())

    cancelled = storage.request_cancel(job.id)

    assert cancelled == storage.get_job(job.id)
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.ended_at is not None
    assert storage.lease_job("w", LONG_S) is None
    assert states(storage, job.id) == ["WAITING", "CANCELLED"]


def test_cancelling_a_running_job_asks_its_worker(storage: Storage) -> None:
    lease = leased(storage)

    assert storage.request_cancel(lease.job.id).state is JobState.CANCELLING
    assert storage.request_cancel(lease.job.id).state is JobState.CANCELLING

    assert storage.heartbeat(lease, LONG_S) is JobState.CANCELLING
    storage.append_results(lease, lease.tasks[0].id, results(2))
    assert storage.finish_job(lease, JobState.CANCELLED).trials == 2
    assert states(storage, lease.job.id) == ["WAITING", "RUNNING", "CANCELLING", "CANCELLED"]


def test_releasing_a_job_that_is_being_cancelled_ends_it(storage: Storage) -> None:
    lease = leased(storage)
    storage.request_cancel(lease.job.id)

    storage.release_job(lease)

    assert storage.get_job(lease.job.id).state is JobState.CANCELLED


def test_a_job_being_cancelled_ends_when_its_worker_is_gone(storage: Storage) -> None:
    lease = leased(storage, job_spec(device="rack-1"))
    storage.request_cancel(lease.job.id)
    assert storage.lease_job("w2", LONG_S) is None
    assert storage.get_job(lease.job.id).state is JobState.CANCELLING
    expire(storage, lease)

    # A worker of any device sees to it: those of this one may all be gone.
    assert storage.lease_job("w2", LONG_S, ["rack-2"]) is None

    assert storage.get_job(lease.job.id).state is JobState.CANCELLED
    with pytest.raises(LeaseLost):
        storage.heartbeat(lease, LONG_S)


def test_a_job_being_cancelled_ends_though_there_is_no_worker_at_all(storage: Storage) -> None:
    lease = leased(storage)
    storage.request_cancel(lease.job.id)
    storage.end_abandoned()
    assert storage.get_job(lease.job.id).state is JobState.CANCELLING
    expire(storage, lease)

    storage.end_abandoned()

    assert storage.get_job(lease.job.id).state is JobState.CANCELLED


def test_cancelling_a_job_whose_worker_is_gone_ends_it_at_once(storage: Storage) -> None:
    lease = leased(storage)
    expire(storage, lease)
    assert storage.request_cancel(lease.job.id).state is JobState.CANCELLED
    assert states(storage, lease.job.id) == ["WAITING", "RUNNING", "CANCELLING", "CANCELLED"]


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED])
def test_a_resumed_job_keeps_its_records_and_its_spent_time(storage: Storage, state: JobState) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(3), spent_s=12.5)
    storage.finish_job(lease, state, "worker lost its device")

    job = storage.resume_job(lease.job.id)

    assert job == storage.get_job(lease.job.id)
    assert (job.state, job.error, job.ended_at, job.worker, job.trials) == (JobState.WAITING, "", None, None, 3)
    with pytest.raises(LeaseLost):
        storage.append_events(lease, [NewEvent("log", {})])
    again = take(storage, "w2")
    assert again.epoch == 2
    assert again.tasks[0].spent_s == 12.5
    assert len(storage.records_of_task(again.tasks[0].id)) == 3
    assert states(storage, job.id) == ["WAITING", "RUNNING", state.value, "WAITING", "RUNNING"]


def test_what_does_not_fit_the_state_is_a_conflict_and_changes_nothing(storage: Storage) -> None:
    waiting, _ = storage.create_job(job_spec())
    with pytest.raises(Conflict, match="WAITING"):
        storage.resume_job(waiting.id)
    lease = take(storage)
    with pytest.raises(Conflict, match="RUNNING"):
        storage.resume_job(waiting.id)
    ended = storage.finish_job(lease, JobState.COMPLETED)
    with pytest.raises(Conflict, match="COMPLETED"):
        storage.resume_job(waiting.id)
    with pytest.raises(Conflict, match="COMPLETED"):
        storage.request_cancel(waiting.id)

    assert storage.get_job(waiting.id) == ended
    assert states(storage, waiting.id) == ["WAITING", "RUNNING", "COMPLETED"]
