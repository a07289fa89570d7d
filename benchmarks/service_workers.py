"""Workers of the benchmark of the service, to be run in processes of their own: they write as a real one does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.service_load import MEASURED, dense_job
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult, Phase
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel
from tuner.search.pipeline import BATCH
from tuner.search.summary import SearchSummary
from tuner.storage import Lease, NewEvent, Storage
from tuner.storage.sql import open_storage

LEASE_S = 3600.0
AGAIN_EVERY = 3
"""Batches after which the fastest kernel of the last one is measured once more, in a batch of its own."""
AGAIN = 3


@dataclass(frozen=True)
class Inserted:
    """What one worker has stored."""

    records: int
    batches: int
    elapsed_s: float


def leased(storage: Storage, name: str) -> Lease:
    """The only job for the device of that name, which no other worker requests."""
    lease = storage.lease_job(name, LEASE_S, [name])
    assert lease is not None
    return lease


def waiting_jobs(url: str, device: str, count: int) -> list[str]:
    """New jobs for a device, which nobody runs by themselves: their event streams stay open and say nothing."""
    storage = open_storage(url)
    spec = parse_job(dense_job(4096, 64, device=device))
    result = [storage.create_job(spec)[0].id for _ in range(count)]
    storage.close()
    return result


def insert_records(url: str, name: str, seconds: float) -> Inserted:
    """Store trials under a lease for so long, in the batches that a search makes, each with its events and summary."""
    waiting_jobs(url, name, 1)
    storage = open_storage(url)
    lease = leased(storage, name)
    task, records, batches = lease.tasks[0], 0, 0
    trials = _batches(task.task)
    started = time.monotonic()
    while (elapsed_s := time.monotonic() - started) < seconds:
        batch = next(trials)
        records, batches = records + len(batch), batches + 1
        summary = SearchSummary("search", batches, records, 10**6, 0, "", elapsed_s, 3600.0, 1e-3, 2e-3, 2.0).to_json()
        facts = {"count": len(batch), "failed": 0, "position": 0}
        events = [NewEvent("trials", facts), NewEvent("progress", {**summary, "position": 0})]
        storage.append_results(lease, task.id, batch, events, elapsed_s, summary)
    assert storage.get_job(lease.job.id).trials == records, "what was acknowledged is stored"
    storage.release_job(lease)
    storage.request_cancel(lease.job.id)
    storage.close()
    return Inserted(records, batches, elapsed_s)


def _batches(task: SearchTask) -> Iterator[list[MeasureResult]]:
    """Endless batches of kernels that were never seen, now and then one of readings taken again."""
    safe, instances = default_kernel(task), [WorkloadInstance.of({"T": t}) for t in MEASURED]
    # The kernels of an earlier run are in the database already, with readings that would be read again.
    number, unseen = 0, time.time_ns()
    first, *rest = safe.values
    while True:
        kernels = []
        for _ in range(BATCH):
            number += 1
            kernels.append(MicroKernel(safe.rule, safe.rule_version, ((first[0], unseen + number), *rest)))
        yield [_result(kernel, instance, number, 0) for kernel in kernels for instance in instances]
        if number // BATCH % AGAIN_EVERY == 0:
            yield [_result(kernels[-1], instance, number, 1) for instance in instances[:AGAIN]]


def _result(kernel: MicroKernel, instance: WorkloadInstance, number: int, attempt: int) -> MeasureResult:
    latency_s = 1e-6 * instance.shape["T"] * (1.0 + number % 97 / 97)
    samples = (latency_s, latency_s * 1.01, latency_s * 0.99)
    return MeasureResult(
        kernel,
        instance,
        latency_s,
        samples,
        build_s=0.5,
        run_s=0.05,
        predicted_s=latency_s,
        round=number // 64,
        phase=Phase.SEARCH,
        attempt=attempt,
        anchor_s=1e-3,
        device="bench-0",
    )


def commit_events(url: str, name: str, count: int, pause_s: float) -> dict[int, float]:
    """Append numbered events to the job of that name; when each commit returned."""
    storage = open_storage(url)
    lease, committed = leased(storage, name), {}
    for index in range(count):
        time.sleep(pause_s)
        storage.append_events(lease, [NewEvent("progress", {"index": index})])
        committed[index] = time.monotonic()
    storage.release_job(lease)
    storage.request_cancel(lease.job.id)
    storage.close()
    return committed
