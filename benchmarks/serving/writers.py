"""Writers of the benchmarks of the service, in processes of their own: they store as a real worker does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.serving.filled import MEASURED, dense_job, kernels, leased, result_of
from tuner.program.job.jobspec import parse_job
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.search.pipeline import BATCH
from tuner.search.summary import SearchSummary
from tuner.storage import Lease, NewEvent
from tuner.storage.sql import Storage, open_storage

AGAIN_EVERY, AGAIN = 3, 3
"""Batches after which the fastest kernel of the last one is measured once more, at so many instances."""


@dataclass(frozen=True)
class Inserted:
    """What one worker has stored."""

    records: int
    batches: int
    elapsed_s: float


def waiting_jobs(url: str, device: str, count: int) -> list[str]:
    """New jobs for a device, which nobody runs by themselves: their event streams stay open and say nothing."""
    storage = open_storage(url)
    spec = parse_job(dense_job(4096, 64, device=device))
    result = [storage.create_job(spec)[0].id for _ in range(count)]
    storage.close()
    return result


def insert_records(url: str, name: str, seconds: float) -> Inserted:
    """Store trials under a lease for so long, in the batches that a search makes, each with its events and summary."""
    storage = open_storage(url)
    lease = leased(storage, parse_job(dense_job(4096, 64, device=name)), name)
    records, batches = 0, 0
    trials, started = _batches(), time.monotonic()
    while (elapsed_s := time.monotonic() - started) < seconds:
        batch = next(trials)
        records, batches = records + len(batch), batches + 1
        store(storage, lease, batch, batches, records, elapsed_s)
    assert storage.get_job(lease.job.id).trials == records, "what was acknowledged is stored"
    _end(storage, lease)
    return Inserted(records, batches, elapsed_s)


def store(
    storage: Storage, lease: Lease, batch: list[MeasureResult], batches: int, records: int, elapsed_s: float
) -> None:
    """A batch with its events and the search's summary, as a worker stores it."""
    summary = SearchSummary("search", batches, records, 10**6, 0, "", elapsed_s, 3600.0, 1e-3, 2e-3, 2.0).to_json()
    facts = {"count": len(batch), "failed": 0, "position": 0}
    events = [NewEvent("trials", facts), NewEvent("progress", {**summary, "position": 0})]
    storage.append_results(lease, lease.tasks[0].id, batch, events, elapsed_s, summary)


def _batches() -> Iterator[list[MeasureResult]]:
    """Endless batches of kernels that were never seen, now and then one of readings taken again."""
    # The kernels of an earlier run are in the database already, with readings that would be read again.
    number, unseen, safe = 0, time.time_ns(), kernels()[0]
    first, *rest = safe.values
    while True:
        values = [((first[0], unseen + number + index), *rest) for index in range(BATCH)]
        batch = [MicroKernel(safe.rule, safe.rule_version, each) for each in values]
        number += BATCH
        yield [result_of(kernel, t, 1.0 + number % 97 / 97, number) for kernel in batch for t in MEASURED]
        if number // BATCH % AGAIN_EVERY == 0:
            yield [result_of(batch[-1], t, 1.0, number, attempt=1) for t in MEASURED[:AGAIN]]


def commit_events(url: str, job_device: str, count: int, pause_s: float) -> dict[int, float]:
    """Append numbered events to the waiting job of a device; when each commit returned."""
    storage = open_storage(url)
    lease, committed = storage.lease_job(job_device, 3600.0, [job_device]), {}
    assert lease is not None
    for index in range(count):
        time.sleep(pause_s)
        storage.append_events(lease, [NewEvent("progress", {"index": index})])
        committed[index] = time.monotonic()
    _end(storage, lease)
    return committed


def _end(storage: Storage, lease: Lease) -> None:
    storage.release_job(lease)
    storage.request_cancel(lease.job.id)
    storage.close()
