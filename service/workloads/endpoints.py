"""The routes under /workloads."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from service.access.scopes import READ
from service.dependencies import Cursor, Limit, MetricsDep, WorkloadsDep
from service.lookup import lookups
from service.lookup.schemas import BestOut
from service.lookup.together import Together
from service.workloads import service
from service.workloads.schemas import WorkloadOut, WorkloadPage
from tuner.program.task import parse_shape
from tuner.storage import LookupScope

router = APIRouter(prefix="/workloads", tags=["workloads"])

TargetQuery = Annotated[str | None, Query(max_length=200, description="a target's fingerprint; the newest if left out")]
ShapeQuery = Annotated[
    str,
    Query(
        max_length=1000,
        description="the workload's symbols, as in m=592; or the newest job's variables, as in T=37,S=4",
    ),
]
ThreadsQuery = Annotated[int, Query(ge=1, le=1024, description="how many threads a kernel runs on")]
JobQuery = Annotated[str | None, Query(max_length=200, description="only what this job measured and built")]


@router.get("", dependencies=[READ])
def list_workloads(storage: WorkloadsDep, cursor: Cursor = None, limit: Limit = 50) -> WorkloadPage:
    """Workloads that some job was submitted for, newest first."""
    return WorkloadPage.of(storage.list_workloads(cursor, limit))


@router.get("/{key}", dependencies=[READ])
def get_workload(key: str, storage: WorkloadsDep) -> WorkloadOut:
    return WorkloadOut.of(storage.get_workload(key))


@router.get("/{key}/best", dependencies=[READ], response_model=BestOut)
async def best(
    key: str,
    request: Request,
    metrics: MetricsDep,
    *,
    shape: ShapeQuery = "",
    target: TargetQuery = None,
    threads: ThreadsQuery = 1,
    job: JobQuery = None,
) -> JSONResponse:
    """The best known micro-kernel for one shape, and how it was found.

    Measured with so many threads on this target alone; of one job alone, where it is given.
    """
    together = cast(Together, request.app.state.lookups_together)
    scope = LookupScope(key, service.fingerprint(target), threads, job)
    # No model of the answer: it is ours, and this is the route that is asked most.
    answer = await together.best(lookups.Query(scope, parse_shape(shape)))
    metrics.looked_up(answer.match)
    return JSONResponse(answer.to_json())
