"""Requests about names of libraries: what they stand for, and did before."""

from __future__ import annotations

from shapewright.client_libraries import LibraryRequests
from shapewright.queries import WorkloadLike, check_knows_caches, key_of, library_query, part, task_of
from shapewright.steps import PAGE, Steps, ask, items, request
from tuner.program.job.cache import Cache
from tuner.program.language.workload import JsonObject


class NameRequests(LibraryRequests):
    """For a class that sends requests."""

    @request
    def promote(
        self,
        workload: WorkloadLike,
        digest: str | None,
        alias: str,
        *,
        target: str | None = None,
        threads: int | None = None,
        cache: str | None = None,
        reason: str = "",
        at_least_percent: float | None = None,
    ) -> Steps[JsonObject]:
        """Give a name to the library of that digest, of which the first digits are enough; None: to the one that is
        served now, for the target, the threads and the caches.

        With ``at_least_percent`` a later library that is verified and at least so much faster takes it by itself.
        """
        if digest is None:
            asked = library_query(workload, target=target, threads=threads, cache=cache)
            served = yield from self._served(workload, asked)
            chosen = served["digest"]
        else:
            chosen = yield from self._digest(workload, digest)
        body = {"digest": chosen, "reason": reason, "at_least_percent": at_least_percent}
        return (yield from ask("POST", f"/v1/workloads/{key_of(workload)}/aliases/{part(alias)}", json=body))

    @request
    def roll_back(
        self,
        workload: WorkloadLike,
        alias: str,
        target: str | None = None,
        threads: int | None = None,
        *,
        cache: str | None = None,
        reason: str = "",
    ) -> Steps[JsonObject]:
        """Give a name back to the library that had it before; its rule ends."""
        path = f"/v1/workloads/{key_of(workload)}/aliases/{part(alias)}/rollback"
        params = _place(workload, target, threads, cache)
        if params["cache"] not in (None, Cache.WARM):
            for each in (yield from self._aliases(workload, target)):
                check_knows_caches(each, params["cache"])
        return (yield from ask("POST", path, params=params, json={"reason": reason}))

    @request
    def aliases(self, workload: WorkloadLike, target: str | None = None) -> Steps[list[JsonObject]]:
        """The names of a workload's libraries, each with its library."""
        return (yield from self._aliases(workload, target))

    def _aliases(self, workload: WorkloadLike, target: str | None) -> Steps[list[JsonObject]]:
        params = {"target": target}
        return (yield from ask("GET", f"/v1/workloads/{key_of(workload)}/aliases", params=params)).rows("items")

    @request
    def promotions(
        self, workload: WorkloadLike, alias: str | None = None, target: str | None = None, limit: int = PAGE
    ) -> Steps[list[JsonObject]]:
        """How names came to stand for libraries, newest first, at most ``limit`` entries."""
        return (yield from items(f"/v1/workloads/{key_of(workload)}/history", limit, alias=alias, target=target))


def _place(workload: WorkloadLike, target: str | None, threads: int | None, cache: str | None) -> JsonObject:
    """The target, the number of threads and the state of the caches, those of a task or a job where they are not
    given."""
    task = task_of(workload)
    if task is None:
        return {"target": target, "threads": threads, "cache": cache}
    own = task.target.fingerprint if task.target else None
    return {"target": target or own, "threads": threads or task.threads, "cache": cache or task.cache.value}
