"""What every Storage promises about its figures, stale knowledge and retention. Runs on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.contract.samples import job_spec, leased, results, states
from tests.contract.served_samples import Saved, new_library
from tests.serving import register_local, store_library
from tuner.errors import InvalidInput
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import RULES
from tuner.storage import AliasQuery, JobState, NewEvent, NotFound, PromotionOrder, Prunable, Retention
from tuner.storage.sql import Storage

CURRENT = next(rule.version for rule in RULES if rule.name == "x86_contraction")
ALL = Retention(events_older_than_s=0.0, failed_trials_older_than_s=0.0)


def of_version(version: int, count: int, start: int = 0) -> list[MeasureResult]:
    """Results of kernels of a version of their rule."""
    return [replace(each, kernel=replace(each.kernel, rule_version=version)) for each in results(count, start)]


def current(count: int, start: int = 0) -> list[MeasureResult]:
    """Results of kernels of the version of today."""
    return of_version(CURRENT, count, start)


# -- figures ----------------------------------------------------------------------------------------------------------
def test_an_empty_database_has_a_pulse(storage: Storage) -> None:
    pulse = storage.pulse()
    assert set(pulse.jobs.values()) == {0}
    assert (pulse.queue_age_s, pulse.trials, pulse.events, pulse.records) == (0.0, 0, 0, 0)
    assert (pulse.failed_trials, pulse.devices) == ({}, ())
    assert pulse.connections["in_use"] == 1


def test_the_pulse_counts_jobs_trials_errors_and_devices(storage: Storage) -> None:
    register_local(storage)
    lease = leased(storage)
    waiting, _ = storage.create_job(job_spec())
    storage.append_results(lease, lease.tasks[0].id, results(3, device="local-0", run_s=2.0))
    storage.append_results(lease, lease.tasks[0].id, results(2, 3, latency_s=None, error_kind=ErrorKind.BUILD))
    with storage._database.write() as connection:
        moment = "2026-01-01T00:00:00.000Z"
        connection.execute(text("UPDATE jobs SET created_at = :at WHERE id = :id"), {"at": moment, "id": waiting.id})

    pulse = storage.pulse()

    assert (pulse.jobs["RUNNING"], pulse.jobs["WAITING"]) == (1, 1)
    assert (pulse.trials, pulse.records, pulse.failed_trials) == (5, 5, {"build": 2})
    assert pulse.queue_age_s > 86_400
    (device,) = pulse.devices
    assert (device.id, device.key) == ("local-0", "local")
    assert device.busy == pytest.approx(0.1)
    assert 0.0 <= device.seen_age_s < 60


# -- stale knowledge --------------------------------------------------------------------------------------------------
def test_what_is_measured_today_is_not_stale(storage: Storage) -> None:
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, current(3))
    assert storage.stale_knowledge() == ()


def test_other_protocols_rules_and_databases_are_stale_until_something_is_measured(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0]
    storage.append_results(lease, task.id, of_version(CURRENT + 1, 4))
    storage.append_results(lease, task.id, current(2, 10))
    with storage._database.write() as connection:
        connection.execute(text("UPDATE tuning_records SET protocol = 'v0' WHERE latency_s < 0.2"))
    (own, *_) = storage.export_records()
    storage.import_records([replace(own, record=replace(own.record, job_id="job-of-others"))])

    result = {each.reason: each for each in storage.stale_knowledge()}

    assert set(result) == {"protocol", "rule", "imported"}
    assert {each.workload_key for each in result.values()} == {task.workload_key}
    assert {each.target_fingerprint for each in result.values()} == {task.target_fingerprint}
    assert (result["protocol"].count, result["rule"].count, result["imported"].count) == (2, 4, 1)
    assert "v0" in result["protocol"].detail
    assert f"version {CURRENT + 1} of rule x86_contraction" in result["rule"].detail
    assert not any(each.remeasured for each in result.values())

    storage.append_results(lease, task.id, current(1, 50))
    assert all(each.remeasured for each in storage.stale_knowledge())


def test_a_library_of_an_earlier_toolchain_is_stale(storage: Storage) -> None:
    first = leased(storage, job_spec(k=64))
    store_library(storage, first)
    storage.finish_job(first, JobState.COMPLETED)
    assert storage.stale_knowledge() == ()
    second = leased(storage, job_spec(k=128))
    store_library(storage, second)
    with storage._database.write() as connection:
        changed = 'UPDATE artifacts SET manifest = replace(CAST(manifest AS TEXT), \'"tvm":"0"\', \'"tvm":"9"\')'
        cast = "::json" if connection.dialect.name == "postgresql" else ""
        line = changed.replace("replace(CAST", "(replace(CAST") + f"){cast} WHERE id = 2"
        connection.execute(text(line.replace("::", "\\:\\:")))

    (result,) = storage.stale_knowledge()

    assert (result.reason, result.workload_key) == ("toolchain", first.tasks[0].workload_key)
    assert "tvm 0" in result.detail
    assert "tvm 9" in result.detail


# -- retention --------------------------------------------------------------------------------------------------------
def searched(storage: Storage, end: bool = True) -> str:
    """A job with events of all kinds, with trials that succeeded, failed in passing, and were wrong."""
    lease = leased(storage)
    task = lease.tasks[0].id
    events = [NewEvent(kind, {"n": 1}) for kind in ("trials", "progress", "log")]
    storage.append_results(lease, task, results(3), events)
    for start, kind in ((3, ErrorKind.BUILD), (5, ErrorKind.DEVICE), (7, ErrorKind.WRONG), (9, ErrorKind.CRASH)):
        storage.append_results(lease, task, results(2, start, latency_s=None, error_kind=kind, error="x"))
    if end:
        storage.finish_job(lease, JobState.COMPLETED)
    return lease.job.id


def pruned(storage: Storage, retention: Retention, limit: int = 2) -> int:
    deleted = 0
    while some := storage.prune(retention, limit):
        assert some <= limit
        deleted += some
    return deleted


def test_what_would_go_is_told_and_nothing_goes(storage: Storage) -> None:
    job_id = searched(storage)
    result = {each.what: each for each in storage.prunable(ALL)}
    assert {what: each.rows for what, each in result.items()} == {"events": 3, "failed_trials": 4}
    assert all(each.bytes > 0 for each in result.values())
    assert len(storage.list_trials(job_id)) == 11


def test_events_and_passing_failures_go_and_everything_that_decides_stays(storage: Storage) -> None:
    job_id = searched(storage)
    running = searched(storage, end=False)
    before = [record for record in storage.list_trials(job_id) if record.result.ok]

    assert pruned(storage, ALL) == 7

    assert states(storage, job_id) == ["WAITING", "RUNNING", "COMPLETED"]
    assert {event.kind for event in storage.list_events(job_id)} == {"state"}
    left = storage.list_trials(job_id)
    assert [record for record in left if record.result.ok] == before
    kinds = {record.result.error_kind for record in left if not record.result.ok}
    assert kinds == {ErrorKind.WRONG, ErrorKind.CRASH}, "a kernel that was wrong stays known"
    assert len(storage.list_trials(running)) == 11, "a job that goes on keeps all"
    assert [each.rows for each in storage.prunable(ALL)] == [0, 0]
    assert pruned(storage, ALL) == 0


def test_what_is_younger_stays(storage: Storage) -> None:
    searched(storage)
    young = Retention(events_older_than_s=3600.0, failed_trials_older_than_s=3600.0)
    assert [each.rows for each in storage.prunable(young)] == [0, 0]
    assert storage.prune(young) == 0


def test_only_what_is_named_goes(storage: Storage) -> None:
    job_id = searched(storage)
    assert storage.prunable(Retention()) == ()
    assert storage.prune(Retention()) == 0
    assert pruned(storage, Retention(events_older_than_s=0.0)) == 3
    assert len(storage.list_trials(job_id)) == 11
    assert storage.prunable(Retention(failed_trials_older_than_s=0.0))[0].what == "failed_trials"
    assert isinstance(storage.prunable(Retention(failed_trials_older_than_s=0.0))[0], Prunable)


def test_a_limit_must_be_positive(storage: Storage) -> None:
    with pytest.raises(InvalidInput):
        storage.prune(ALL, 0)


# -- superseded libraries ---------------------------------------------------------------------------------------------
LIBRARIES = Retention(superseded_artifacts=True)


def supersede(storage: Storage, links: dict[int, int | None]) -> None:
    """Say which library replaced which, both counted from 1 in the order they were stored."""
    with storage._database.write() as connection:
        for number, heir in links.items():
            line = text("UPDATE artifacts SET superseded_by = :heir WHERE id = :number")
            connection.execute(line, {"number": number, "heir": heir})


def kept(storage: Storage, libraries: list[Saved]) -> list[int]:
    """Which of the libraries still have files, counted from 1."""
    result = []
    for number, library in enumerate(libraries, 1):
        try:
            storage.artifact_files(library.digest)
        except NotFound:
            continue
        result.append(number)
    return result


def test_replaced_libraries_go_and_served_and_named_ones_stay(storage: Storage) -> None:
    libraries = [new_library(storage) for _ in range(5)]
    supersede(storage, {1: 2, 2: 3, 3: 4, 4: None, 5: 4})
    named = libraries[1]
    place = AliasQuery(named.key, "production", target_fingerprint=named.target, threads=1)
    storage.promote(place, named.digest, PromotionOrder("ada", "it is known"))
    (told,) = storage.prunable(LIBRARIES)
    assert (told.what, told.rows, told.bytes) == ("superseded_artifacts", 3, 6)
    assert kept(storage, libraries) == [1, 2, 3, 4, 5]

    assert pruned(storage, LIBRARIES, limit=1) == 3

    assert kept(storage, libraries) == [2, 4]
    with storage._database.read() as connection:
        rows = connection.execute(text("SELECT id, superseded_by FROM artifacts ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [(2, 4), (4, None)], "what replaced what was deleted"
    assert storage.prunable(LIBRARIES)[0].rows == 0
