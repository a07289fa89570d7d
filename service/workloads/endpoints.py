"""The routes under /workloads."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request

from service.access.scopes import READ
from service.dependencies import ClientDep, Cursor, Limit
from service.json_response import JsonResponse
from service.lookup.batching import LookupBatcher
from service.lookup.best_query import BestQuery
from service.lookup.schemas import BestOut
from service.metrics import Metrics
from service.workloads.schemas import WorkloadJob, WorkloadJobs, WorkloadOut, WorkloadPage

MAX_JOBS = 100

router = APIRouter(prefix="/workloads", tags=["workloads"])


@router.get("", dependencies=[READ])
def list_workloads(
    storage: ClientDep,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=200, description="text in the key, the label or the program")] = "",
    limit: Limit = 50,
) -> WorkloadPage:
    """Workloads that some job was submitted for, newest first."""
    return WorkloadPage.model_validate(storage.list_workloads(cursor, limit, q.strip()))


@router.get("/{key}", dependencies=[READ])
def get_workload(key: str, storage: ClientDep) -> WorkloadOut:
    return WorkloadOut.model_validate(storage.get_workload(key))


@router.get("/{key}/jobs", dependencies=[READ])
def list_jobs_of(key: str, storage: ClientDep, limit: Annotated[int, Query(ge=1, le=MAX_JOBS)] = 20) -> WorkloadJobs:
    """The newest jobs that search the workload, newest first, each with how far that search is."""
    rows = storage.tasks_of_workload(key, limit)
    jobs = {job_id: storage.get_job(job_id) for job_id in dict.fromkeys(row.job_id for row in rows)}
    return WorkloadJobs(items=[WorkloadJob.of(jobs[row.job_id], row) for row in rows])


@router.get("/{key}/best", dependencies=[READ], response_model=BestOut)
async def best(key: str, request: Request, query: Annotated[BestQuery, Query()]) -> JsonResponse:
    """The best known micro-kernel for one shape, and how it was found.

    Measured with so many threads and caches in that state on this target alone; of one job alone, where it is given.
    """
    # Most are answered before they come here: service/lookup/direct.py.
    state = request.app.state
    batcher, metrics = cast(LookupBatcher, state.lookup_batcher), cast(Metrics, state.metrics)
    answer = await batcher.best(query.lookup(key))
    metrics.looked_up(answer.match)
    return JsonResponse(answer.to_json())
