"""Several searches of one job, on a real database, each a curve over its trials in the place of a real search."""

from __future__ import annotations

import pytest

from tests.measuring import wait_for
from tests.worker.budget.curves import Bed, CurveSearch, falling, flat, leased, run, trials_of
from tests.worker.jobs.scripted import Tools
from tuner.measure import DeviceLost
from tuner.storage import JobState, Lease, NotFound
from tuner.storage.sql import Storage
from worker.jobs import open_searches
from worker.jobs.runner import JobRunner


def test_what_occurs_most_has_most_of_the_budget_and_nobody_is_starved(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    assert run(storage, bed, lease) is JobState.COMPLETED
    first, frequent, last = trials_of(storage, lease)
    assert first + frequent + last == 192
    assert min(first, last) >= 32
    assert frequent >= 96
    assert [position for position, _ in bed.explored[:3]] == [1, 0, 2], "what is expected to gain most goes first"
    assert all(row.done for row in storage.search_tasks(lease.job.id))


def test_a_search_that_still_gains_goes_on_before_one_that_does_not(storage: Storage) -> None:
    lease, bed = leased(storage, (1, 1, 1)), Bed([flat, flat, falling])
    assert run(storage, bed, lease) is JobState.COMPLETED
    trials = trials_of(storage, lease)
    assert trials[2] > max(trials[:2])


def test_each_search_is_kept_between_its_pieces(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)
    run(storage, bed, lease)
    assert sorted(bed.opened) == [0, 1, 2]
    assert len(bed.explored) > 3


def test_none_is_closed_while_there_is_room(storage: Storage) -> None:
    lease, bed = leased(storage, (1,) * 12, trials=12 * 16 + 64), Bed([flat] * 12)
    assert run(storage, bed, lease) is JobState.COMPLETED
    assert sorted(bed.opened) == list(range(12))


def test_only_so_many_are_kept_and_the_others_go_on_from_their_records(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_searches, "MAX_LIVE", 1)
    lease, bed = leased(storage), Bed([flat] * 3)
    most: list[int] = []
    bed.before = lambda search: most.append(len(bed.live))
    assert run(storage, bed, lease) is JobState.COMPLETED
    assert max(most) == 1
    assert len(bed.opened) > 3
    assert sum(trials_of(storage, lease)) == 192


def test_what_one_leaves_that_nothing_helps_goes_to_the_others(storage: Storage) -> None:
    lease, bed = leased(storage, (1, 1, 1)), Bed([flat] * 3, most={0: 20})
    assert run(storage, bed, lease) is JobState.COMPLETED
    first, *others = trials_of(storage, lease)
    assert (first, sum(others)) == (20, 172)


def test_a_lost_device_costs_nothing_that_was_recorded(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)

    def lose(search: CurveSearch) -> None:
        if len(bed.explored) == 4:
            raise DeviceLost("gone")

    bed.before = lose
    assert run(storage, bed, lease) is JobState.COMPLETED
    assert sum(trials_of(storage, lease)) == 192
    assert said_of(storage, lease) == ["gone; retrying (1 of 2)"]


def test_another_worker_goes_on_with_the_same_shares(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)

    def die(search: CurveSearch) -> None:
        if len(bed.explored) == 5:
            raise SystemExit

    bed.before = die
    with pytest.raises(SystemExit):
        JobRunner(storage, Tools(), open_search=bed.open, heartbeat_s=0.05).run(lease)
    before = sum(trials_of(storage, lease))
    storage.release_job(lease)
    again = storage.lease_job("w2", 30.0)
    assert again is not None
    second = Bed([flat] * 3)
    assert run(storage, second, again) is JobState.COMPLETED
    assert 0 < before < sum(trials_of(storage, lease)) == 192
    assert min(trials_of(storage, lease)) >= 32


def test_a_cancelled_job_leaves_a_library_of_each_search_that_has_begun(storage: Storage) -> None:
    lease, bed = leased(storage), Bed([flat] * 3)

    def cancel(search: CurveSearch) -> None:
        if len(bed.explored) == 2:
            storage.request_cancel(lease.job.id)
            wait_for(search.should_finish)

    bed.before = cancel
    assert run(storage, bed, lease) is JobState.CANCELLED
    assert sorted(bed.finished) == [0, 1]
    rows = storage.search_tasks(lease.job.id)
    assert not any(row.done for row in rows)
    for row in rows[:2]:
        assert storage.latest_artifact(row.workload_key, job_id=lease.job.id).digest == f"{row.position}" * 64
    with pytest.raises(NotFound):
        storage.latest_artifact(rows[2].workload_key)


def test_a_device_lost_over_one_library_of_a_cancelled_job_costs_no_other(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that are no longer in memory have a library, too.
    monkeypatch.setattr(open_searches, "MAX_LIVE", 1)
    lease, bed = leased(storage), Bed([flat] * 3, loses=(1,))

    def cancel(search: CurveSearch) -> None:
        if search.position == 2:
            storage.request_cancel(lease.job.id)
            wait_for(search.should_finish)

    bed.before = cancel
    assert run(storage, bed, lease) is JobState.CANCELLED
    assert sorted(bed.finished) == [0, 1, 2]
    rows = storage.search_tasks(lease.job.id)
    for position in (0, 2):
        stored = storage.latest_artifact(rows[position].workload_key, job_id=lease.job.id)
        assert stored.digest == f"{position}" * 64
    with pytest.raises(NotFound):
        storage.latest_artifact(rows[1].workload_key)


def test_what_there_is_no_budget_for_is_not_searched_and_the_job_says_so(storage: Storage) -> None:
    lease, bed = leased(storage, (1, 9, 4), trials=32), Bed([flat] * 3)
    assert run(storage, bed, lease) is JobState.COMPLETED
    assert trials_of(storage, lease) == [0, 16, 16]
    assert all(row.done for row in storage.search_tasks(lease.job.id)), "it has a library of theory"
    assert said_of(storage, lease) == ["3 workloads in 32 trials: 1 will not be searched; 192 trials recommended"]


def said_of(storage: Storage, lease: Lease) -> list[str]:
    return [event.data["message"] for event in storage.list_events(lease.job.id) if event.kind == "log"]


def test_a_job_of_no_trials_has_the_library_of_theory_for_each(storage: Storage) -> None:
    lease, bed = leased(storage, trials=0), Bed([flat] * 3)
    assert run(storage, bed, lease) is JobState.COMPLETED
    assert trials_of(storage, lease) == [0, 0, 0]
    assert all(row.done for row in storage.search_tasks(lease.job.id))
