"""What every Storage promises to a search that starts from earlier ones. Runs on each database."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.samples import job_spec, leased, results, take
from tuner.library.dispatcher import symbol_bounds
from tuner.program.target import Target
from tuner.records import ErrorKind, Phase
from tuner.storage import JobState
from tuner.storage.sql import Storage

FILES = {"library.so": b"\x7fELF", "manifest.json": b"{}"}


def test_a_search_starts_from_the_newest_records_in_the_order_stored(storage: Storage) -> None:
    first, second = leased(storage), leased(storage, job_spec(name="again"))
    elsewhere = leased(storage, job_spec(k=128))
    failed = results(1, start=7, latency_s=None, error_kind=ErrorKind.CRASH)
    known = [replace(result, phase=Phase.KNOWN) for result in results(2, start=4)]
    for lease, batch in ((first, results(3)), (second, [*known, *failed]), (elsewhere, results(2))):
        storage.append_results(lease, lease.tasks[0].id, batch)
    row = first.tasks[0]
    entries = storage.prior_records(row.workload_key, row.target_fingerprint, 1)
    assert [record.result.kernel for record in entries] == [r.kernel for r in (*results(3), *known, *failed)]
    assert [record.result.phase for record in entries[3:5]] == [Phase.KNOWN] * 2
    assert {str(record.result.instance) for record in entries} == {"m=80"}
    # A kernel that crashed does so on any number of threads.
    (crashed,) = storage.prior_records(row.workload_key, row.target_fingerprint, 2)
    assert crashed == entries[-1]
    assert storage.prior_records("wl-none", row.target_fingerprint, 1) == ()


def test_old_records_that_still_decide_are_among_those_that_a_search_starts_from(storage: Storage) -> None:
    lease = leased(storage)
    row = lease.tasks[0]
    wrong = results(1, latency_s=None, error_kind=ErrorKind.WRONG)
    best = results(1, start=1, latency_s=1e-6)
    passing = results(1, start=2, latency_s=None, error_kind=ErrorKind.BUILD_TIMEOUT)
    # More than are kept of an instance however old they are, and slower.
    slower = results(12, start=3, latency_s=1e-3)
    for batch in (wrong, best, passing, slower):
        storage.append_results(lease, row.id, batch)

    entries = storage.prior_records(row.workload_key, row.target_fingerprint, 1, limit=2)

    kernels = [record.result.kernel for record in entries]
    assert kernels[:2] == [wrong[0].kernel, best[0].kernel]
    assert kernels[-2:] == [result.kernel for result in slower[-2:]]
    assert passing[0].kernel not in kernels
    assert len(kernels) < 15


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
    result = storage.incumbent(row.workload_key, row.target_fingerprint, 1, ranges)
    assert result is not None and result.digest == "d1"
    assert storage.incumbent(row.workload_key, row.target_fingerprint, 2, ranges) is None
    assert storage.incumbent(row.workload_key, "llvm-other", 1, ranges) is None
    assert storage.incumbent("wl-none", row.target_fingerprint, 1, ranges) is None
