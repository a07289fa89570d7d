"""The job state machine against a model of it, on sequences of calls that hypothesis thinks of."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.contract.samples import LONG_S, job_spec, results, states
from tuner.storage import MAX_ATTEMPTS, Conflict, JobState, Lease, LeaseLost, NewEvent
from tuner.storage.sql import Storage, queue

ENDED = st.sampled_from([JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED])
RESUMABLE = (JobState.CANCELLED, JobState.FAILED)


class JobMachine(RuleBasedStateMachine):
    """One job, its workers and its users. ``holder`` is the one lease that is good; all others must be refused."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.storage = storage
        # A device of its own: nobody else's jobs are leased.
        self.device = f"dev-{secrets.token_hex(6)}"
        self.job_id = storage.create_job(job_spec(device=self.device))[0].id
        self.state = JobState.WAITING
        self.told = ["WAITING"]
        self.events = 1
        self.trials = 0
        self.leases: list[Lease] = []
        self.holder: Lease | None = None
        self.expired = False
        self.failed = 0
        self.trials_at_failure = 0

    def fail(self) -> None:
        """An attempt has failed. When this returns the wait for the next one, of FIRST_WAIT_S at most, is over."""
        self.failed = 1 if self.trials > self.trials_at_failure else self.failed + 1
        self.trials_at_failure = self.trials
        self.become(JobState.FAILED if self.failed == MAX_ATTEMPTS else JobState.WAITING)
        if 1 < self.failed < MAX_ATTEMPTS:
            time.sleep(2 * queue.FIRST_WAIT_S + 0.05)

    def become(self, state: JobState) -> None:
        self.state = state
        self.told.append(state.value)
        self.events += 1
        if state not in (JobState.RUNNING, JobState.CANCELLING):
            self.holder = None

    @rule(gone=st.booleans())
    def lease(self, gone: bool) -> None:
        lease = self.storage.lease_job("w", 0.001 if gone else LONG_S, [self.device])
        if self.state is JobState.CANCELLING and self.expired:
            self.become(JobState.CANCELLED)
        free = self.state is JobState.WAITING
        if self.state is JobState.RUNNING and self.expired:
            self.fail()
            free = self.failed == 1
        assert (lease is not None) == free
        if lease is not None:
            self.become(JobState.RUNNING)
            assert lease.epoch == len(self.leases) + 1
            self.leases.append(lease)
            self.holder = lease
            self.expire(gone)

    def expire(self, gone: bool) -> None:
        self.expired = gone
        if gone:
            time.sleep(0.005)

    def attempt(self, data: Any, call: Any) -> bool:
        """Call with one of the leases; whether it was the good one, and so went through."""
        lease = data.draw(st.sampled_from(self.leases))
        if lease is self.holder:
            call(lease)
            return True
        try:
            call(lease)
        except LeaseLost:
            return False
        raise AssertionError(f"epoch {lease.epoch} was let through")

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), gone=st.booleans())
    def heartbeat(self, data: Any, gone: bool) -> None:
        def call(lease: Lease) -> None:
            assert self.storage.heartbeat(lease, 0.001 if gone else LONG_S) is self.state

        if self.attempt(data, call):
            self.expire(gone)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), start=st.integers(0, 5), count=st.integers(0, 3))
    def append(self, data: Any, start: int, count: int) -> None:
        batch = results(count, start)

        def call(lease: Lease) -> None:
            before = len(self.storage.records_of_task(lease.tasks[0].id))
            self.storage.append_results(lease, lease.tasks[0].id, batch, [NewEvent("trials", {})])
            added = len(self.storage.records_of_task(lease.tasks[0].id)) - before
            self.trials += added
            self.events += 1 if added or not batch else 0

        self.attempt(data, call)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), state=ENDED)
    def finish(self, data: Any, state: JobState) -> None:
        if self.attempt(data, lambda lease: self.storage.finish_job(lease, state)):
            self.become(state)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        if self.attempt(data, self.storage.release_job):
            self.become(JobState.CANCELLED if self.state is JobState.CANCELLING else JobState.WAITING)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def fail_attempt(self, data: Any) -> None:
        if self.attempt(data, lambda lease: self.storage.fail_attempt(lease, "no device")):
            if self.state is JobState.CANCELLING:
                self.become(JobState.CANCELLED)
            else:
                self.fail()

    @rule()
    def end_abandoned(self) -> None:
        self.storage.end_abandoned()
        if self.state is JobState.CANCELLING and self.expired:
            self.become(JobState.CANCELLED)

    @rule()
    def cancel(self) -> None:
        try:
            self.storage.request_cancel(self.job_id)
        except Conflict:
            assert self.state.ended
            return
        assert not self.state.ended
        if self.state is not JobState.CANCELLING:
            was_running = self.state is JobState.RUNNING
            self.become(JobState.CANCELLING if was_running else JobState.CANCELLED)
            if was_running and self.expired:
                self.become(JobState.CANCELLED)

    @rule()
    def resume(self) -> None:
        try:
            self.storage.resume_job(self.job_id)
        except Conflict:
            assert self.state not in RESUMABLE
            return
        assert self.state in RESUMABLE
        self.failed = 0
        self.become(JobState.WAITING)

    @invariant()
    def the_job_is_as_the_model_has_it(self) -> None:
        job = self.storage.get_job(self.job_id)
        assert (job.state, job.epoch, job.trials) == (self.state, len(self.leases), self.trials)
        assert job.failed_attempts == self.failed
        assert (job.ended_at is not None) == self.state.ended
        assert states(self.storage, self.job_id) == self.told
        assert [event.seq for event in self.storage.list_events(self.job_id)] == [*range(1, self.events + 1)]


@pytest.mark.parametrize("examples", [10, pytest.param(25, marks=pytest.mark.soak)])
def test_every_sequence_of_calls_keeps_to_the_model(
    examples: int, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "FIRST_WAIT_S", 0.3)
    run_state_machine_as_test(
        # Any factory will do, though the annotation asks for a class.
        lambda: JobMachine(storage),  # type: ignore[arg-type]
        settings=settings(
            max_examples=examples,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
