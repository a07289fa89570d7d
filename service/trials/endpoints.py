"""The routes of tables of trials."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from service.access.scopes import READ
from service.dependencies import BLANK, ClientDep, ExportsDep, TaskQuery
from service.jobs.service import find_task
from service.problems.openapi import answers
from service.streaming import in_turn
from service.trials.export import Flat, as_csv, as_parquet
from service.trials.schemas import TrialFacetOut, TrialFacets, TrialTableOut
from tuner.records import ErrorKind, Phase
from tuner.storage.trials import TrialOrder, TrialQuery

router = APIRouter(prefix="/jobs/{job_id}/trials", tags=["jobs"])

ErrorQuery = Annotated[
    ErrorKind | Literal["", "none", "any"], Query(description="a kind of error; `none`: succeeded, `any`: failed")
]
KernelQuery = Annotated[str, Query(max_length=40, description="the beginning of a kernel's id")]
InstanceQuery = Annotated[str, Query(max_length=500, description="an instance, as `S=3,T=7`")]
PhaseQuery = Annotated[Phase | Literal[""], Query(description="what the trial was for")]
CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"


def trial_query(
    error: ErrorQuery = "",
    kernel: KernelQuery = "",
    instance: InstanceQuery = "",
    phase: PhaseQuery = "",
) -> TrialQuery:
    """The trials that a request is about."""
    return TrialQuery(error, kernel.strip(), instance.strip(), phase or None)


FilterDep = Annotated[TrialQuery, Depends(trial_query)]


@router.get("/table", dependencies=[READ], responses=answers(422))
def trial_table(
    job_id: str,
    storage: ClientDep,
    wanted: FilterDep,
    task: TaskQuery = 0,
    order: TrialOrder = TrialOrder.STORED,
    descending: bool = False,
    cursor: Annotated[str | None, Query(max_length=200), BLANK] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> TrialTableOut:
    """Trials of one search task, filtered and in any order. Those that lack what they are ordered by come last."""
    _, _, row = find_task(storage, job_id, task)
    query = replace(wanted, order=order, descending=descending, cursor=cursor, limit=limit)
    return TrialTableOut.of(storage.find_trials(row.id, query))


@router.get("/facets", dependencies=[READ])
def trial_facets(job_id: str, storage: ClientDep, task: TaskQuery = 0) -> TrialFacets:
    """How the trials of one search task are spread over errors, phases and instances."""
    _, _, row = find_task(storage, job_id, task)
    return TrialFacets(items=[TrialFacetOut.model_validate(each) for each in storage.trial_facets(row.id)])


@router.get("/file", dependencies=[READ], response_class=StreamingResponse, responses=answers(422))
async def trial_file(
    job_id: str,
    storage: ClientDep,
    exports: ExportsDep,
    wanted: FilterDep,
    form: Annotated[Literal["csv", "parquet"], Query(alias="format")] = "csv",
    task: TaskQuery = 0,
) -> StreamingResponse:
    """Trials of one search task as a table with a column for each shape variable and each axis of the kernels."""

    def opened() -> Iterator[bytes]:
        job, _, row = find_task(storage, job_id, task)
        flat = Flat(storage, job, row, wanted)
        return as_csv(flat) if form == "csv" else as_parquet(flat)

    pieces = await to_thread.run_sync(opened, limiter=exports)
    headers = {"Content-Disposition": f'attachment; filename="{job_id}-{task}-trials.{form}"'}
    return StreamingResponse(in_turn(pieces, exports), media_type=CSV if form == "csv" else PARQUET, headers=headers)
