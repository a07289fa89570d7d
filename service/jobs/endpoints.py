"""The routes under /jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.exceptions import HTTPException

from service.access.scopes import READ, SUBMIT, missing_scope
from service.dependencies import (
    BLANK,
    After,
    CallerDep,
    ClientDep,
    Cursor,
    DevicesDep,
    EventStreamsDep,
    Limit,
    SettingsDep,
)
from service.jobs import events, logs, service
from service.jobs.job_schema import request_body
from service.jobs.layer_schemas import LayersOut
from service.jobs.layers import EXPECTATIONS, layers_in
from service.jobs.schemas import (
    TASKS,
    JobChanges,
    JobDetail,
    JobOut,
    JobPage,
    LogLineOut,
    LogPage,
    SearchTaskPage,
    TrialList,
)
from service.paths import url_for_path
from service.problems import Refusal
from service.problems.openapi import answers
from service.validation import ValidationDep
from tuner.program.job.jobspec import MAX_TASKS
from tuner.storage import Job, JobState, Scope
from tuner.storage.sql import ClientStorage

router = APIRouter(prefix="/jobs", tags=["jobs"])

MAX_LINES = 1000

FILTER = (
    "words, each in the name, owner or tags or at the start of the id, and "
    "`name:`, `id:`, `owner:`, `tag:`, `state:`, `device:` and `note:` "
    "with a value; `-` before one finds what lacks it; quotation marks hold spaces together"
)
CREATED = {
    "Location": {"description": "the job", "required": True, "schema": {"type": "string"}},
    "Idempotency-Replayed": {"description": "the job of an earlier request", "schema": {"const": "true"}},
}


async def _submitted(request: Request) -> tuple[bytes, str]:
    """The body and its media type, which is one that a job can be written in."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    known = service.JSON_TYPES | service.YAML_TYPES
    if media_type not in known:
        detail = f"{media_type or 'a body without a Content-Type'} cannot be read: one of {', '.join(sorted(known))}"
        raise HTTPException(415, detail, {"Accept-Post": ", ".join(sorted(known))})
    return await request.body(), media_type


def _existing(job_id: str, jobs: ClientDep) -> Job:
    return jobs.get_job(job_id)


def _first_event(after: After = 0, last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None) -> int:
    return events.start_after(last_event_id, after)


SubmittedDep = Annotated[tuple[bytes, str], Depends(_submitted)]
Position = Annotated[int, Query(ge=0, le=MAX_TASKS, description="the position of a search task in its job")]
ExistingDep = Annotated[Job, Depends(_existing)]


def _own(job: ExistingDep, caller: CallerDep) -> Job:
    """A job that the caller may change: of the same owner, or anybody's for an administrator."""
    if job.owner != caller.owner and not caller.allows(Scope.ADMIN):
        raise Refusal(missing_scope(caller, Scope.ADMIN, f"changing a job of {job.owner or 'another owner'}"))
    return job


OwnDep = Annotated[Job, Depends(_own)]
FirstEventDep = Annotated[int, Depends(_first_event)]


@router.post(
    "",
    status_code=201,
    dependencies=[SUBMIT],
    responses={**answers(415, 422), 201: {"headers": CREATED}},
    openapi_extra=request_body(sorted(service.JSON_TYPES | service.YAML_TYPES)),
)
async def submit_job(
    request: Request,
    submitted: SubmittedDep,
    caller: CallerDep,
    jobs: ClientDep,
    devices: DevicesDep,
    validation: ValidationDep,
    response: Response,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> JobDetail:
    """Submit a job, in JSON or YAML. With an ``Idempotency-Key`` a repeated request gives the job of the first."""
    key = service.check_idempotency_key(idempotency_key)
    spec = await validation.run(request, lambda abandoned: service.check(*submitted, devices, abandoned))
    if spec.priority > 0 and not caller.allows(Scope.ADMIN):
        raise Refusal(missing_scope(caller, Scope.ADMIN, "a priority above 0"))
    job, created = await to_thread.run_sync(service.store, jobs, spec, caller, key)
    response.headers["Location"] = url_for_path(request, f"/v1/jobs/{job.id}")
    if not created:
        response.headers["Idempotency-Replayed"] = "true"
    return await to_thread.run_sync(_detail, jobs, job)


@router.get("", dependencies=[READ])
def list_jobs(
    jobs: ClientDep,
    cursor: Cursor = None,
    state: Annotated[JobState | None, Query(), BLANK] = None,
    q: Annotated[str, Query(max_length=200, description=FILTER)] = "",
    limit: Limit = 50,
) -> JobPage:
    """Jobs, newest first."""
    return JobPage.model_validate(jobs.list_jobs(cursor, state, limit, text=q, whole=False))


@router.get("/{job_id}", dependencies=[READ])
def get_job(job: ExistingDep, jobs: ClientDep) -> JobDetail:
    return _detail(jobs, job)


@router.get("/{job_id}/tasks", dependencies=[READ])
def list_tasks(
    job_id: str, jobs: ClientDep, first: Position = 0, limit: Annotated[int, Query(ge=1, le=TASKS)] = TASKS
) -> SearchTaskPage:
    """Search tasks of a job from position ``first`` on; fewer than ``limit`` where they are large."""
    return SearchTaskPage.of(jobs.search_tasks(job_id, first, limit), len(jobs.task_keys(job_id)))


@router.get("/{job_id}/layers", dependencies=[READ])
def list_layers(
    job: ExistingDep, jobs: ClientDep, first: Position = 0, limit: Annotated[int, Query(ge=1, le=TASKS)] = TASKS
) -> LayersOut:
    """The layers of a model, from position ``first`` on: what each takes of the time, and what was gained so far."""
    layers = layers_in(job, jobs.search_tasks(job.id, first, limit), EXPECTATIONS.of(jobs, job.id))
    return LayersOut.of(job, layers, len(jobs.task_keys(job.id)))


@router.get("/{job_id}/spec", dependencies=[READ])
def get_spec(job: ExistingDep) -> dict[str, Any]:
    """The job file as submitted, complete."""
    return job.spec


@router.patch("/{job_id}", dependencies=[SUBMIT], responses=answers(422))
def change_job(job: OwnDep, changes: JobChanges, caller: CallerDep, jobs: ClientDep) -> JobOut:
    """Give a job other tags, or another note; what is left out stays."""
    return JobOut.model_validate(jobs.annotate_job(job.id, changes.tags, changes.note, caller.id))


@router.post("/{job_id}/cancel", dependencies=[SUBMIT], responses=answers(409))
def cancel_job(job: OwnDep, caller: CallerDep, jobs: ClientDep) -> JobOut:
    """Ask a job to stop: at once if it waits, after its running trials if it runs. 409 if it has ended."""
    return JobOut.model_validate(jobs.request_cancel(job.id, caller.id))


@router.post("/{job_id}/resume", dependencies=[SUBMIT], responses=answers(409))
def resume_job(job: OwnDep, caller: CallerDep, jobs: ClientDep) -> JobOut:
    """Put a cancelled or failed job back in the queue, with everything it has measured. 409 in any other state."""
    return JobOut.model_validate(jobs.resume_job(job.id, caller.id, caller.quota))


@router.get("/{job_id}/trials", dependencies=[READ], response_model=TrialList)
def list_trials(
    job_id: str, stored: ClientDep, after: After = 0, limit: Annotated[int, Query(ge=1, le=2000)] = 1000
) -> Response:
    """Trials of a job in the order they were stored."""
    trials, last = stored.trials_as_json(job_id, after, limit)
    return Response(f'{{"items":[{",".join(trials)}],"after":{last}}}', media_type="application/json")


@router.get("/{job_id}/logs", dependencies=[READ])
def list_logs(
    job: ExistingDep,
    jobs: ClientDep,
    devices: DevicesDep,
    settings: SettingsDep,
    since: Annotated[
        str | None, Query(max_length=40, description="a time: lines of it and later, the first of them")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LINES, description="lines; without `since` the last ones")] = 1000,
) -> LogPage:
    """What the parts of the service's machine logged about a job, and the job's events, as lines.

    The newest 8 MiB of each log are looked through.
    """
    since = logs.moment_of(since)
    parts = logs.parts_in(Path(settings.log_dir) if settings.log_dir else None)
    events = jobs.newest_events(job.id, logs.KINDS, MAX_LINES)
    lines = logs.page_of(logs.lines_about(job.id, parts, events), since, limit)
    items = [LogLineOut.model_validate(line) for line in lines]
    others = logs.elsewhere(job, devices.list_devices(), parts)
    following = items[-1].time if items else since
    return LogPage(items=items, parts=list(parts), elsewhere=others, next=following, ended=job.state.ended)


@router.get("/{job_id}/events", response_class=events.EventStream, responses=events.RESPONSES, dependencies=[READ])
async def follow_events(
    job: ExistingDep,
    after: FirstEventDep,
    jobs: ClientDep,
    streams: EventStreamsDep,
    settings: SettingsDep,
    *,
    follow: Annotated[bool, Query(description="false: end once all that is stored was sent")] = True,
) -> events.EventStream:
    """Server-sent events: all so far, then each as it happens, until the job has ended. Ids are the cursor."""
    content = events.follow(jobs, job.id, after, streams, settings, stay=follow)
    return events.EventStream(content, headers=events.HEADERS)


def _detail(jobs: ClientStorage, job: Job) -> JobDetail:
    return JobDetail.complete(job, jobs.task_keys(job.id), jobs.search_tasks(job.id, 0, TASKS))
