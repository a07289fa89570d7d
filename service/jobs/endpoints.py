"""The routes under /jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from service.dependencies import (
    After,
    CallerDep,
    Cursor,
    DevicesDep,
    EventStreamsDep,
    JobsDep,
    Limit,
    RecordsDep,
    SettingsDep,
)
from service.jobs import events, service
from service.jobs.schemas import JobDetail, JobOut, JobPage, TrialList, TrialOut
from service.paths import url_for_path
from tuner.storage import Job, JobState, JobStorage

router = APIRouter(prefix="/jobs", tags=["jobs"])


async def _submitted(request: Request) -> tuple[bytes, str]:
    """The body and its media type, which is one that a job can be written in."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    known = service.JSON_TYPES | service.YAML_TYPES
    if media_type not in known:
        detail = f"{media_type or 'a body without a Content-Type'} cannot be read: one of {', '.join(sorted(known))}"
        raise HTTPException(415, detail, {"Accept-Post": ", ".join(sorted(known))})
    return await request.body(), media_type


def _existing(job_id: str, jobs: JobsDep) -> Job:
    return jobs.get_job(job_id)


def _first_event(
    after: After = 0, last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None
) -> int:
    return events.start_after(last_event_id, after)


SubmittedDep = Annotated[tuple[bytes, str], Depends(_submitted)]
ExistingDep = Annotated[Job, Depends(_existing)]
FirstEventDep = Annotated[int, Depends(_first_event)]


@router.post("", status_code=201)
def submit_job(
    request: Request,
    submitted: SubmittedDep,
    caller: CallerDep,
    jobs: JobsDep,
    devices: DevicesDep,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> JobDetail:
    """Submit a job, in JSON or YAML. With an ``Idempotency-Key`` a repeated request gives the job of the first."""
    key = service.check_idempotency_key(idempotency_key)
    job, created = service.submit(jobs, devices, service.read_job(*submitted), caller.id, key)
    response.headers["Location"] = url_for_path(request, f"/v1/jobs/{job.id}")
    if not created:
        response.headers["Idempotency-Replayed"] = "true"
    return _detail(jobs, job)


@router.get("")
def list_jobs(
    jobs: JobsDep, cursor: Cursor = None, state: Annotated[JobState | None, Query()] = None, limit: Limit = 50
) -> JobPage:
    """Jobs, newest first."""
    return JobPage.of(jobs.list_jobs(cursor, state, limit))


@router.get("/{job_id}")
def get_job(job: ExistingDep, jobs: JobsDep) -> JobDetail:
    return _detail(jobs, job)


@router.post("/{job_id}/cancel")
def cancel_job(job_id: str, jobs: JobsDep) -> JobOut:
    """Ask a job to stop: at once if it waits, after its running trials if it runs. 409 if it has ended."""
    return JobOut.of(jobs.request_cancel(job_id))


@router.post("/{job_id}/resume")
def resume_job(job_id: str, jobs: JobsDep) -> JobOut:
    """Put a cancelled or failed job back in the queue, with everything it has measured. 409 in any other state."""
    return JobOut.of(jobs.resume_job(job_id))


@router.get("/{job_id}/trials")
def list_trials(
    job_id: str, stored: RecordsDep, after: After = 0, limit: Annotated[int, Query(ge=1, le=2000)] = 1000
) -> TrialList:
    """Trials of a job in the order they were stored."""
    records = stored.list_trials(job_id, after, limit)
    return TrialList(items=[TrialOut.of(record) for record in records], after=records[-1].seq if records else after)


@router.get("/{job_id}/events", response_class=EventSourceResponse)
async def follow_events(
    job: ExistingDep,
    after: FirstEventDep,
    jobs: JobsDep,
    streams: EventStreamsDep,
    settings: SettingsDep,
    *,
    follow: Annotated[bool, Query(description="false: end once all that is stored was sent")] = True,
) -> AsyncIterator[ServerSentEvent]:
    """Server-sent events: all so far, then each as it happens, until the job has ended. Ids are the cursor."""
    async for event in events.follow(jobs, job.id, after, streams, settings, stay=follow):
        yield event


def _detail(jobs: JobStorage, job: Job) -> JobDetail:
    return JobDetail.complete(job, jobs.search_tasks(job.id))
