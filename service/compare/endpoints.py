"""GET /compare."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from service.access.scopes import READ
from service.compare import service
from service.compare.schemas import CompareOut
from service.dependencies import ClientDep
from service.figures.searches import SearchesDep
from service.problems.openapi import answers

router = APIRouter(tags=["jobs"])

JobsQuery = Annotated[
    list[str], Query(alias="job", max_length=50, description="the id of a job; repeated, 2 to 8 times")
]


@router.get("/compare", dependencies=[READ], response_model=CompareOut, responses=answers(404, 422))
async def compare_jobs(job_ids: JobsQuery, jobs: ClientDep, searches: SearchesDep) -> Response:
    """Jobs side by side over their equal workloads: ratios to the first job by shape, with intervals.

    Workloads are equal if target, number of threads and state of the caches are, too. What only one of the jobs has is
    listed with what is unlike.
    """

    def respond() -> str:
        found = service.compared(jobs, searches, job_ids)
        return searches.figure("side by side", found.version, lambda: service.answer(found).model_dump_json())

    text = await to_thread.run_sync(respond, limiter=searches.limiter)
    return Response(text, media_type="application/json")
