"""A tuning database as a team has it after some years, filled through the storage itself, as workers write it; and
writers beside the clients, who store as a real worker does."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow, Tree
from tuner.library.package import package
from tuner.program.job.jobspec import JobSpec, parse_job
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.program.target import native
from tuner.records import ErrorKind, MeasureResult, Phase
from tuner.schedule import default_kernel, space_of
from tuner.schedule.space import MicroKernel
from tuner.search.pipeline import BATCH
from tuner.search.summary import SearchSummary
from tuner.storage import JobState, Lease, NewEvent
from tuner.storage.jobs import JobQuery
from tuner.storage.sql import Storage, open_storage, upgrade

CPUS = ("x86-64-v3", "x86-64-v4", "znver4", "icelake-server", "sapphirerapids")
MEASURED = (5, 24, 43, 62, 81, 100, 119, 128)
"""The values of T that were measured, of 1..LONGEST."""
LONGEST = 128
WIDE_MEASURED = tuple(range(8, 2001, 8))
WIDEST = 2048
"""The largest T of the one large workload: all values but the multiples of 8 were never measured."""
KERNELS, LIBRARY_KERNELS = 512, 8
FAILED_SHARE = 0.05
STORED = 2000
EVENTS_EVERY = 500
"""Trials of the large job to one progress event."""
LEASE_S = 3600.0
LARGE = "benchmark load"
AGAIN_EVERY, AGAIN = 3, 3
"""Batches of a writer after which the fastest kernel of the last one is measured once more, at so many instances."""


@dataclass(frozen=True)
class Scale:
    """How much is stored: 2,000 workloads, 10,000 jobs and one of 100,000 trials for a million records; less for fewer.
    ``large`` records are of one workload and one job, in addition to ``records``."""

    records: int

    @property
    def workloads(self) -> int:
        return max(2, min(2_000, self.records // 500))

    @property
    def large(self) -> int:
        return max(100, min(100_000, self.records // 10))

    @property
    def pairs(self) -> int:
        return self.workloads * len(CPUS)


@dataclass(frozen=True)
class Loaded:
    """What clients query. ``pairs``: (workload key, target fingerprint), each with a job of its own; those of every
    other workload have libraries. ``large``: the same of the large workload, which has none, and the job of its
    records."""

    scale: Scale
    pairs: tuple[tuple[str, str], ...]
    large: tuple[str, str]
    large_job: str


def has_library(pair: int) -> bool:
    return pair // len(CPUS) % 2 == 0


def load(url: str, scale: Scale) -> Loaded:
    """Fill an empty database; one that was filled at this scale is taken as it is. Raises InvalidInput where it holds
    something else."""
    upgrade(url)
    draw, name = random.Random(0), f"{LARGE} {scale.records}"
    with closing(open_storage(url)) as storage:
        before = storage.find_jobs(JobQuery(text=LARGE)).items
        if before and before[0].name != name:
            raise InvalidInput("database_url", f"was filled at another scale, {before[0].name}", "an empty database")
        if not before and any(storage.pulse().jobs.values()):
            raise InvalidInput("database_url", "has jobs already", "an empty database")
        specs = [
            parse_job(dense_job(64 * (1 + number % 50), 64 * (1 + number // 50), cpu=cpu))
            for number in range(scale.workloads) for cpu in CPUS
        ]  # fmt: skip
        if not before:
            storage.register_device("local-0", "local", native(), {})
            each = max(len(MEASURED), scale.records // scale.pairs)
            for pair, spec in enumerate(specs):
                _store(storage, spec, results_of(each, MEASURED, draw), library=has_library(pair))
            # The large job is stored last.
            wide = {"name": name, "instances": [{"T": t} for t in WIDE_MEASURED]}
            spec = parse_job(dense_job(64 * 51, 64, WIDEST) | wide)
            _store(storage, spec, results_of(scale.large, WIDE_MEASURED, draw), library=False)
        job = storage.find_jobs(JobQuery(text=LARGE)).items[0]
        (task,) = storage.search_tasks(job.id)
        pairs = [(spec.tasks[0].workload.key, spec.tasks[0].known_target.fingerprint) for spec in specs]
        return Loaded(scale, tuple(pairs), (task.workload_key, task.target_fingerprint), job.id)


# -- jobs -------------------------------------------------------------------------------------------------------------
def dense_job(n: int, k: int, longest: int = LONGEST, device: str = "local", cpu: str = CPUS[0]) -> dict[str, Any]:
    return {
        "name": f"dense {n} {k}", "workload": {"op": "dense", "args": {"m": "16*T", "n": n, "k": k}},
        "shape_vars": {"T": {"min": 1, "max": longest}}, "instances": [{"T": t} for t in MEASURED],
        "target": {"kind": "llvm", "mcpu": cpu, "num-cores": 2}, "device": device, "budget": {"trials": 1000},
    }  # fmt: skip


def leased(storage: Storage, spec: JobSpec, device: str = "local") -> Lease:
    """A new job, leased: no other one waits for the device."""
    storage.create_job(spec)
    lease = storage.lease_job(f"benchmark {device}", LEASE_S, [device])
    assert lease is not None
    return lease


def _store(storage: Storage, spec: JobSpec, trials: Iterable[MeasureResult], *, library: bool) -> None:
    """A job that has ended, with its trials and, where it has one, its library."""
    lease, results = leased(storage, spec), list(trials)
    (row,) = lease.tasks
    for start in range(0, len(results), STORED):
        part = results[start : start + STORED]
        done = range(start, start + len(part), EVENTS_EVERY)
        events = [NewEvent("progress", _progress(number)) for number in done]
        storage.append_results(lease, row.id, part, events, 60.0, _progress(start + len(part)))
    if library:
        made = package(_dispatcher(row.task), b"\0" * 4096, "{}", {}, lease.job.id)
        storage.save_library(lease, row.id, made.files, made.manifest, made.dispatch)
    storage.finish_job(lease, JobState.COMPLETED, summary=_progress(len(results)))


def _progress(trials: int) -> dict[str, Any]:
    """What a search says of itself after so many trials."""
    best = 0.99995**trials
    gained = (1e-3 * best, 1e-3, 1 / best, 1.2 / best)
    told = SearchSummary("search", trials // 64, trials, 10**6, trials // 20, "", 0.1 * trials, None, *gained)
    return {**told.to_json(), "position": 0}


# -- trials and libraries ---------------------------------------------------------------------------------------------
@cache
def kernels() -> tuple[MicroKernel, ...]:
    """Different kernels of dense layers, the default one first."""
    task = parse_job(dense_job(64, 64)).tasks[0]
    rng, space, result = np.random.default_rng(0), space_of(task), dict.fromkeys([default_kernel(task)])
    while len(result) < KERNELS:
        result[space.mutate(list(result)[int(rng.integers(len(result)))], rng)] = None
    return tuple(result)


def result_of(
    kernel: MicroKernel, t: int, slowness: float, number: int, *, failed: bool = False, attempt: int = 0
) -> MeasureResult:
    """A trial at T = t, ``slowness`` times as slow as can be; the ``number``-th of its search."""
    instance, latency_s = WorkloadInstance.of({"T": t}), 1e-6 * t * slowness
    seen: dict[str, Any] = {"round": number // 64, "attempt": attempt, "device": "local-0"}
    if failed:
        return MeasureResult(kernel, instance, error_kind=ErrorKind.RUN_TIMEOUT, error="it failed", **seen)
    seen |= {"build_s": 0.5, "run_s": 0.05, "predicted_s": latency_s, "anchor_s": 1e-3}
    samples, phase = (latency_s, latency_s * 1.01, latency_s * 0.99), Phase.SEARCH if number else Phase.THEORY
    return MeasureResult(kernel, instance, latency_s, samples, phase=phase, **seen)


def results_of(count: int, shapes: Sequence[int], draw: random.Random) -> Iterator[MeasureResult]:
    """So many trials: every kernel at every shape, some of which failed; none of those that libraries have did. More
    kernels than there are in the pool are further attempts."""
    for number in range(count):
        which, at = divmod(number, len(shapes))
        failed = which >= LIBRARY_KERNELS and draw.random() < FAILED_SHARE
        again, kernel = divmod(which, KERNELS)
        yield result_of(kernels()[kernel], shapes[at], 1.0 + draw.random(), which, failed=failed, attempt=again)


def _dispatcher(task: SearchTask) -> Dispatcher:
    """A kernel for each measured shape and those below it, and a table of the whole range."""
    tree: Tree = Leaf(LIBRARY_KERNELS - 1)
    for index in reversed(range(LIBRARY_KERNELS - 1)):
        tree = Node("m", 16 * MEASURED[index], Leaf(index), tree)
    table = tuple(TableRow({"T": t}, min(t // 16, LIBRARY_KERNELS - 1), 1.5e-6 * t) for t in range(1, LONGEST + 1))
    return Dispatcher(task, kernels()[:LIBRARY_KERNELS], 0, tree, table)


# -- writers, in processes of their own -------------------------------------------------------------------------------
def waiting_jobs(url: str, device: str, count: int) -> list[str]:
    """New jobs for a device, which nobody runs by themselves: their event streams stay open and say nothing."""
    spec = parse_job(dense_job(4096, 64, device=device))
    with closing(open_storage(url)) as storage:
        return [storage.create_job(spec)[0].id for _ in range(count)]


def insert_records(url: str, name: str, seconds: float) -> dict[str, Any]:
    """Store trials under a lease for so long, in the batches that a search makes, each with its events and summary;
    how many that were."""
    records, batches = 0, 0
    with closing(open_storage(url)) as storage:
        lease, trials = leased(storage, parse_job(dense_job(4096, 64, device=name)), name), _batches()
        started = time.monotonic()
        while (elapsed_s := time.monotonic() - started) < seconds:
            batch = next(trials)
            records, batches = records + len(batch), batches + 1
            told, counts = _progress(records), {"count": len(batch), "failed": 0, "position": 0}
            events = [NewEvent("trials", counts), NewEvent("progress", told)]
            storage.append_results(lease, lease.tasks[0].id, batch, events, elapsed_s, told)
        assert storage.get_job(lease.job.id).trials == records, "what was acknowledged is stored"
        _end(storage, lease)
    return {"records": records, "batches": batches, "elapsed_s": elapsed_s}


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
    with closing(open_storage(url)) as storage:
        lease, committed = storage.lease_job(job_device, LEASE_S, [job_device]), {}
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
