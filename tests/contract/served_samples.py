"""Libraries of one workload with ranges, kernels and latencies of a test's choice."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.contract.samples import job_spec, kernel, leased
from tuner.library.choice import Point
from tuner.library.dispatcher import Dispatcher, Leaf, TableRow, made_for
from tuner.program.job.jobspec import JobSpec, parse_job
from tuner.program.job.range_text import Ranges
from tuner.program.language.workload import WorkloadInstance
from tuner.records import ErrorKind, MeasureResult
from tuner.storage import Comparison, JobState, LibraryQuery
from tuner.storage.sql import Storage

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Saved:
    """A library that a job has left behind."""

    digest: str
    job_id: str
    key: str
    target: str
    ranges: Ranges


def digest_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def new_library(
    storage: Storage,
    low: int = 1,
    high: int = 128,
    *,
    predicted_s: Mapping[int, float] | None = None,
    measured_s: Mapping[int, float] | None = None,
    comparison: Comparison | None = None,
    digest: str | None = None,
    k: int = 64,
    manifest: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Saved:
    """A library of one kernel of its own for T from ``low`` to ``high``; latencies of that kernel by T."""
    number = next(_numbers)
    ends = [{"T": low}, {"T": high}] if high > low else [{"T": low}]
    spec = job_spec(k=k, **({"shape_vars": {"T": {"min": low, "max": high}}, "instances": ends} | fields))
    held = leased(storage, spec)
    row = held.tasks[0]
    own = kernel(number)
    table = tuple(TableRow({"T": t}, 0, seconds) for t, seconds in (predicted_s or {}).items())
    dispatcher = Dispatcher(row.task, (own,), 0, Leaf(0), table)
    results = [
        MeasureResult(own, WorkloadInstance.of({"T": t}), latency_s=seconds, anchor_s=1e-6)
        for t, seconds in (measured_s or {}).items()
    ]
    if results:
        storage.append_results(held, row.id, results)
    result = digest or digest_of(number)
    facts = {"format": 1, "digest": result, **(manifest or {})}
    storage.save_library(held, row.id, {"library.so": b"so"}, facts, dispatcher.to_json(), comparison=comparison)
    storage.finish_job(held, JobState.COMPLETED)
    return Saved(result, held.job.id, row.workload_key, row.target_fingerprint, made_for(row.task))


def symbols(low: int, high: int) -> Ranges:
    """T from ``low`` to ``high``, in the workload's symbol."""
    return {"m": range(16 * low, 16 * high + 1, 16)}


def found_wrong(storage: Storage, library: Saved) -> str:
    """Let a later search find a kernel of the library wrong; the id of the kernel."""
    (wrong,) = Dispatcher.from_json(storage.serve(LibraryQuery(library.key, digest=library.digest)).dispatch).kernels
    held = leased(storage, spec_of(storage, library))
    failed = MeasureResult(wrong, held.tasks[0].task.instances[0], error_kind=ErrorKind.WRONG, error="wrong at T=1")
    storage.append_results(held, held.tasks[0].id, [failed])
    storage.finish_job(held, JobState.COMPLETED)
    return wrong.id


def spec_of(storage: Storage, library: Saved) -> JobSpec:
    """The job that built a library, to be submitted again."""
    return parse_job(storage.get_job(library.job_id).spec)


def served(storage: Storage, like: Saved, low: int | None = None, high: int | None = None, *at: int) -> str:
    """The digest that is served for a range of T, compared at these values of T."""
    ranges = None if low is None or high is None else symbols(low, high)
    points = tuple(Point({"m": 16 * t}) for t in at)
    return storage.serve(LibraryQuery(like.key, ranges=ranges, points=points)).digest


def won(against: Saved, ratio: float = 1.2, **fields: Any) -> Comparison:
    return replace(Comparison(against.digest, ratio, noise=0.02, verified=True), **fields)
