"""Results as figures read them, records as people browse them, and what counts against a quota."""

from __future__ import annotations

import pytest

from tests.contract.samples import job_spec, leased, results
from tuner.errors import InvalidInput
from tuner.records import ErrorKind, Phase
from tuner.search.observations import normalized
from tuner.storage import RecordQuery
from tuner.storage.sql import Storage
from tuner.storage.sql.quotas import QuotaUse
from tuner.storage.sql.task_results import TaskResults


def test_results_are_those_of_the_records_at_one_speed(storage: Storage) -> None:
    lease = leased(storage)
    [row] = lease.tasks
    stored = [
        *results(1, error_kind=ErrorKind.CRASH, error="signal 11", latency_s=None),
        *results(2, start=1, anchor_s=1e-3, samples_s=(0.1, 0.2), phase=Phase.THEORY),
        *results(2, start=3, anchor_s=1.25e-3, predicted_s=0.5, round=2, device="d1", t=128),
    ]
    known = TaskResults(row.id)
    assert storage.read_results(known) is False
    storage.append_results(lease, row.id, stored[:3])
    assert storage.read_results(known, limit=2) is True
    storage.append_results(lease, row.id, stored[3:])
    while storage.read_results(known, limit=2):
        pass
    records = storage.records_of_task(row.id)
    assert known.results == normalized([record.result for record in records])
    assert (known.after, known.anchor_s) == (records[-1].seq, 1e-3)
    assert known.results[3].latency_s == pytest.approx(0.25 * 0.8)
    assert len({id(result.instance) for result in known.results}) == 2


def test_records_are_found_newest_first_by_what_they_are_of(storage: Storage) -> None:
    first, second = leased(storage), leased(storage, job_spec(k=32))
    storage.append_results(first, first.tasks[0].id, results(3, device="d1"))
    storage.append_results(second, second.tasks[0].id, results(2, error_kind=ErrorKind.WRONG, latency_s=None))
    everything = storage.find_records(RecordQuery()).items
    assert [record.seq for record in everything] == sorted((record.seq for record in everything), reverse=True)
    assert len(everything) == 5
    for query, count in (
        (RecordQuery(workload_key=first.tasks[0].workload_key), 3),
        (RecordQuery(workload_key=first.tasks[0].workload_key, failed=True), 0),
        (RecordQuery(failed=True), 2),
        (RecordQuery(failed=False), 3),
        (RecordQuery(device="d1"), 3),
        (RecordQuery(provenance="imported"), 0),
        (RecordQuery(target_fingerprint=first.tasks[0].target_fingerprint), 5),
        (RecordQuery(target_fingerprint="none"), 0),
        (RecordQuery(kernel_id=results(1)[0].kernel.id), 2),
    ):
        assert len(storage.find_records(query).items) == count, query
    page = storage.find_records(RecordQuery(), limit=3)
    rest = storage.find_records(RecordQuery(), page.cursor, limit=3)
    assert (*page.items, *rest.items) == everything
    assert rest.cursor is None
    with pytest.raises(InvalidInput, match="cursor"):
        storage.find_records(RecordQuery(), "x")
    assert storage.list_fingerprints() == (first.tasks[0].target_fingerprint,)


def test_what_counts_against_quotas_is_told_by_owner(storage: Storage) -> None:
    storage.create_job(job_spec(), owner="ada")
    storage.create_job(job_spec(budget={"trials": 10, "seconds": 5}), owner="ada")
    assert storage.quota_uses(["ada", "ben", "ada"]) == {"ada": QuotaUse(2, 74, 5.0), "ben": QuotaUse(0, 0, 0.0)}


def test_the_audit_trail_is_found_by_actor_and_action(storage: Storage) -> None:
    key, _ = storage.create_key("one", actor="ada")
    storage.create_key("two", actor="ben")
    storage.revoke_key(key.id, "ben")
    assert [entry.action for entry in storage.list_audit(actor="ben").items] == ["key.revoke", "key.create"]
    assert [entry.actor for entry in storage.list_audit(action="key.create").items] == ["ben", "ada"]
    assert [entry.actor for entry in storage.list_audit(subject=key.id, action="key.revoke").items] == ["ben"]
