"""What every Storage promises to a search that starts from earlier ones. Runs on each database."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.samples import job_spec, leased, results, take
from tuner.library.dispatcher import symbol_bounds
from tuner.program.target import Target
from tuner.records import ErrorKind, Phase
from tuner.storage import JobState, Storage

FILES = {"library.so": b"\x7fELF", "manifest.json": b"{}"}


def test_the_newest_records_of_a_workload_come_in_the_order_stored(storage: Storage) -> None:
    first, second = leased(storage), leased(storage, job_spec(name="again"))
    elsewhere = leased(storage, job_spec(k=128))
    failed = results(1, start=7, latency_s=None, error_kind=ErrorKind.CRASH)
    known = [replace(result, phase=Phase.KNOWN) for result in results(2, start=4)]
    for lease, batch in ((first, results(3)), (second, [*known, *failed]), (elsewhere, results(2))):
        storage.append_results(lease, lease.tasks[0].id, batch)
    row = first.tasks[0]
    found = storage.newest_records(row.workload_key, row.target_fingerprint, 1)
    assert [record.result.kernel for record in found] == [r.kernel for r in (*results(3), *known, *failed)]
    assert [record.result.phase for record in found[3:5]] == [Phase.KNOWN] * 2
    assert {str(record.result.instance) for record in found} == {"m=80"}
    assert storage.newest_records(row.workload_key, row.target_fingerprint, 1, limit=4) == found[2:]
    assert storage.newest_records(row.workload_key, row.target_fingerprint, 2) == ()
    assert storage.newest_records("wl-none", row.target_fingerprint, 1) == ()


def test_every_target_that_anything_had_is_listed_in_the_order_they_came(storage: Storage) -> None:
    wide = Target.from_json({"kind": "llvm", "mcpu": "znver4", "num-cores": 64})
    own = leased(storage).tasks[0].task.known_target
    storage.create_job(job_spec(target=wide.to_json()))
    device = Target.from_json({"kind": "llvm", "mcpu": "haswell", "num-cores": 1})
    storage.register_device("d-1", "local", device, {})
    assert storage.list_targets() == (own, wide, device)


def test_a_library_of_a_search_that_was_cancelled_leaves_the_task_open(storage: Storage) -> None:
    lease = leased(storage)
    row = lease.tasks[0]
    storage.request_cancel(lease.job.id)
    storage.save_library(lease, row.id, FILES, {"digest": "d1"}, {}, done=False)
    storage.finish_job(lease, JobState.CANCELLED, "cancelled on request")
    assert not storage.search_tasks(lease.job.id)[0].done
    assert storage.latest_artifact(row.workload_key, job_id=lease.job.id).digest == "d1"
    storage.resume_job(lease.job.id)
    again = take(storage)
    storage.save_library(again, row.id, FILES, {"digest": "d1"}, {})
    assert storage.search_tasks(lease.job.id)[0].done


def test_the_incumbent_is_of_the_same_workload_target_and_threads(storage: Storage) -> None:
    lease = leased(storage)
    row = lease.tasks[0]
    ranges = symbol_bounds(row.task)
    assert storage.incumbent(row.workload_key, row.target_fingerprint, 1, ranges) is None
    storage.save_library(lease, row.id, FILES, {"digest": "d1"}, {})
    found = storage.incumbent(row.workload_key, row.target_fingerprint, 1, ranges)
    assert found is not None and found.digest == "d1"
    assert storage.incumbent(row.workload_key, row.target_fingerprint, 2, ranges) is None
    assert storage.incumbent(row.workload_key, "llvm-other", 1, ranges) is None
    assert storage.incumbent("wl-none", row.target_fingerprint, 1, ranges) is None
