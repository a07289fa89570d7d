"""Requests about what is known: the best kernels, records, and the devices that measure them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import httpx

from shapewright.queries import WorkloadLike, check_knows_caches, key_of, symbols_text, task_of, without_usual
from shapewright.steps import Each, Steps, ask, each, pieces, request
from tuner.program.job.cache import parse_cache
from tuner.program.language.workload import JsonObject

# A service stores what it is sent before it takes more.
IMPORT_TIMEOUT = httpx.Timeout(120.0, connect=5.0)


class KnownRequests:
    """For a class that sends requests."""

    @request
    def devices(self) -> Steps[list[JsonObject]]:
        """The devices that ever registered."""
        return (yield from ask("GET", "/v1/devices")).rows("items")

    @request
    def best(
        self,
        workload: WorkloadLike,
        shape: Mapping[str, int] | str,
        target: str | None = None,
        threads: int | None = None,
        job: str | None = None,
        *,
        cache: str | None = None,
    ) -> Steps[JsonObject]:
        """The best known micro-kernel for a shape: ``{"match", "kernel", "latency_s", "predicted_latency_s", ...}``.

        The shape is in the shape variables of ``workload`` or, of a key, in the workload's symbols. A search task and
        a job bring their target, their threads and their caches; others are of the newest target, one thread and warm
        caches, unless ``cache`` says cold or streamed. With ``job`` only of what that one measured and built.
        """
        task = task_of(workload)
        if task is not None:
            target = target or (task.target.fingerprint if task.target else None)
            threads = threads or task.threads
            cache = cache or task.cache.value
        cache = None if cache is None else parse_cache(cache).value
        params = {"shape": symbols_text(workload, shape), "target": target, "threads": threads, "job": job}
        answer = yield from ask("GET", f"/v1/workloads/{key_of(workload)}/best", params={**params, "cache": cache})
        check_knows_caches(answer, cache)
        return answer

    @request
    def lookup(self, queries: Sequence[Mapping[str, Any]]) -> Steps[list[JsonObject]]:
        """The best kernel for each of up to 1,000 queries: ``{"best": as of best, "problem": null}``, or the other way
        round for one that cannot be answered.

        A query is ``{"workload": as in a job, "shape", "target", "threads", "cache", "job"}``, or has a
        ``workload_key``.
        """
        body = {"queries": [without_usual(query) for query in queries]}
        return (yield from ask("POST", "/v1/lookup", json=body)).rows("answers")

    @each
    def export_records(self, workloads: Sequence[WorkloadLike] = ()) -> Each[bytes]:
        """Every record (of these workloads, if any are named) as JSON lines, in pieces as they arrive."""
        yield from pieces("/v1/records", {"workload": [key_of(workload) for workload in workloads]})

    @request
    def import_records(self, lines: Iterable[bytes]) -> Steps[JsonObject]:
        """Import what ``export_records`` gave, in pieces of any size: ``{"added", "known"}``.

        Importing twice adds nothing. Imported records decide nothing until the service's own devices measured them.
        """
        headers = {"Content-Type": "application/jsonl"}
        return (yield from ask("POST", "/v1/records", content=iter(lines), headers=headers, timeout=IMPORT_TIMEOUT))
