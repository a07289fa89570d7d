"""The pages. Each is made on the server; scripts only keep it up to date."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard import kernels, presenters
from service.dashboard.examples import EXAMPLES, job_text
from service.dashboard.templating import TEMPLATES
from service.dependencies import CallerDep, StorageDep, TaskQuery
from service.devices.fleet import SEEN_S
from service.figures.searches import SearchesDep
from service.jobs.service import find_task
from service.times import between_s
from tuner.figures import FIGURES
from tuner.figures.instances import instance_lines
from tuner.storage import JobOrder, JobQuery, JobState
from tuner.storage.sql import Storage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

PAGE = 50
LOGGED = ("state", "log", "library", "baselines")
"""Kinds of events that the log of a job shows; the others are what the figures are for."""
MAX_LOGGED = 200


# -- jobs -----------------------------------------------------------------------------------------------------------
def job_query(
    q: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[JobState | Literal[""], Query()] = "",
    order: JobOrder = JobOrder.CREATED,
    up: bool = False,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> JobQuery:
    """The query of the overview; ``up``: in ascending order."""
    return JobQuery(q.strip(), state or None, order, not up, (page - 1) * PAGE, PAGE)


QueryDep = Annotated[JobQuery, Depends(job_query)]


@router.get("/")
def overview(request: Request, storage: StorageDep, caller: CallerDep, query: QueryDep) -> HTMLResponse:
    filters = storage.list_filters(caller.owner)
    return TEMPLATES.page(request, "overview.html", states=list(JobState), filters=filters, **_overview(storage, query))


@router.get("/fragments/jobs")
def jobs_fragment(request: Request, storage: StorageDep, query: QueryDep) -> HTMLResponse:
    """The part of the overview that changes, for the script that keeps it up to date."""
    return TEMPLATES.page(request, "_jobs.html", **_overview(storage, query))


def _overview(storage: Storage, query: JobQuery) -> dict[str, Any]:
    table, counts = storage.find_jobs(query), storage.job_counts()
    return {
        "jobs": presenters.lines_of(table.items, storage.list_keys()),
        "total": table.total,
        "query": query,
        "page_number": query.offset // PAGE + 1,
        "pages": max(1, -(-table.total // PAGE)),
        "counts": counts,
        "devices": sum((between_s(each.seen_at, None) or 0.0) <= SEEN_S for each in storage.list_devices()),
    }


@router.get("/jobs/new")
def new_job(
    request: Request, storage: StorageDep, source: Annotated[str | None, Query(alias="from")] = None
) -> HTMLResponse:
    """The form for a job; filled in with another's file, or with an example."""
    text = job_text(storage.get_job(source).spec) if source else EXAMPLES[0].text
    devices = sorted({device.key for device in storage.list_devices()})
    return TEMPLATES.page(request, "new_job.html", text=text, examples=EXAMPLES, devices=devices, source=source)


@router.get("/jobs/{job_id}")
def job_page(request: Request, job_id: str, storage: StorageDep, task: TaskQuery = 0) -> HTMLResponse:
    # First: events that are stored while the rest is read reach the page through its stream.
    seq = storage.last_events([job_id]).get(job_id, 0)
    job, rows, row = find_task(storage, job_id, task)
    line = presenters.lines_of([job], storage.list_keys())[0]
    summary = presenters.summary_of(job, row.position)
    return TEMPLATES.page(
        request, "job.html", job=job, line=line, rows=rows, row=row, summary=summary,
        headline=presenters.headline(summary), progress=presenters.budget_share(summary), figures=FIGURES.values(),
        log=[event for event in storage.newest_events(job_id, LOGGED, MAX_LOGGED) if event.seq <= seq], seq=seq,
        kernels=kernels.chosen(storage, job, row),
    )  # fmt: skip


@router.get("/fragments/jobs/{job_id}/instances")
def instances_fragment(
    request: Request, job_id: str, storage: StorageDep, searches: SearchesDep, task: TaskQuery = 0
) -> HTMLResponse:
    """The instances of a search, for the script of its page: a long search takes seconds to read."""
    job, _, row = find_task(storage, job_id, task)
    view, _ = searches.view(job, row)
    return TEMPLATES.page(request, "_instances.html", job=job, row=row, lines=instance_lines(view))


@router.get("/jobs/{job_id}/kernels/{kernel_id}")
def kernel_page(
    request: Request, job_id: str, kernel_id: str, storage: StorageDep, task: TaskQuery = 0
) -> HTMLResponse:
    job, _, row = find_task(storage, job_id, task)
    kernel = kernels.kernel_of(storage, job, row, kernel_id)
    return TEMPLATES.page(request, "kernel.html", job=job, row=row, kernel=kernel)


@router.get("/fragments/jobs/{job_id}/kernels/{kernel_id}/times")
def kernel_times_fragment(
    request: Request, job_id: str, kernel_id: str, storage: StorageDep, searches: SearchesDep, task: TaskQuery = 0
) -> HTMLResponse:
    """The times of a kernel beside the best ones, for the script of its page: as those of the instances."""
    job, _, row = find_task(storage, job_id, task)
    view, _ = searches.view(job, row)
    timings = kernels.timings(view, kernel_id)
    return TEMPLATES.page(request, "_kernel_times.html", job=job, row=row, timings=timings)
