"""Reading the job of a report: a service, or the database in a directory of `shapewright tune`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shapewright.defaults import sqlite_url
from shapewright.errors import ServiceNotFound
from tuner.errors import InvalidInput
from tuner.figures import SearchView, view_of
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import JsonObject, WorkloadInstance
from tuner.program.target.calibration import Levels
from tuner.records import MeasureResult
from tuner.storage import JobEvent, NotFound, SearchTaskRow, StorageUnavailable

if TYPE_CHECKING:
    from shapewright.client import Client
    from tuner.storage.sql import ClientStorage

DATABASE = "tuning.db"


@dataclass(frozen=True)
class ReportedTask:
    """One search task of a job: what it was, and everything that is known of it."""

    position: int
    target_fingerprint: str
    view: SearchView
    count: int = 1


@dataclass(frozen=True)
class ReportedJob:
    """A complete job. ``facts`` are its members as the service returns them: name, state, summary and so on."""

    facts: Mapping[str, Any]
    tasks: tuple[ReportedTask, ...]
    events: tuple[JobEvent, ...]


def from_service(client: Client, job_id: str) -> ReportedJob:
    """What is stored of a job by now; one that is still running is not waited for. Raises ServiceError."""
    job = client.job(job_id)
    events = tuple(_event(job_id, event) for event in client.events(job_id, follow=False))
    results: dict[int, list[MeasureResult]] = {}
    for trial in client.trials(job_id):
        results.setdefault(trial["search_task_id"], []).append(_result(trial))
    tasks = []
    devices = [device for device in client.devices() if device["key"] == job["device"]]
    for row in job["tasks"]:
        view = view_of(
            SearchTask.from_json(row["task"]),
            results.get(row["id"], ()),
            events,
            _served_dispatch(client, row, job_id),
            row.get("baselines"),
            row["position"],
            _levels(devices, row),
        )
        tasks.append(ReportedTask(row["position"], row["target_fingerprint"], view, row.get("count", 1)))
    return ReportedJob(job, tuple(tasks), events)


def _levels(devices: Iterable[Mapping[str, Any]], row: Mapping[str, Any]) -> Levels | None:
    """The levels of the first of a job's devices that is calibrated for a search task and has measured them."""
    of_task = (row["target_fingerprint"], row["task"]["threads"])
    stored = (each for device in devices for each in device.get("calibrations", ()))
    found = (each["levels"] for each in stored if (each["target"], each["threads"]) == of_task)
    return next((Levels.from_json(levels) for levels in found if levels), None)


def _event(job_id: str, event: Mapping[str, Any]) -> JobEvent:
    return JobEvent(job_id, event["seq"], event["kind"], event["data"], event["created_at"])


def _result(trial: Mapping[str, Any]) -> MeasureResult:
    """A trial as the service returns it: sizes have become floating-point numbers there, as weights are."""
    result = MeasureResult.from_json(trial)
    sizes = {name: int(value) for name, value in result.instance.values}
    return replace(result, instance=WorkloadInstance.of(sizes, result.instance.weight))


def _served_dispatch(client: Client, row: Mapping[str, Any], job_id: str) -> JsonObject | None:
    """The dispatch table of the library that this very job built, None if it built none."""
    try:
        return client.dispatcher(row["workload_key"], row["target_fingerprint"], job_id)
    except ServiceNotFound:
        return None


def from_directory(directory: Path) -> ReportedJob:
    """The newest job that `shapewright tune` recorded in a directory. Raises InvalidInput if there is none."""
    from tuner.storage.sql import open_storage  # noqa: PLC0415 - a client of a service needs no SQL

    database = directory / DATABASE
    if not database.is_file():
        raise InvalidInput("ID_OR_DIR", f"there is no {DATABASE} in {directory}", "a directory of `shapewright tune`")
    with closing(open_storage(sqlite_url(database))) as storage:
        try:
            storage.check()
            return _newest(storage, directory)
        except StorageUnavailable as error:
            raise InvalidInput("ID_OR_DIR", f"{database}: {error}", "a directory of this version's `tune`") from error


def _newest(storage: ClientStorage, directory: Path) -> ReportedJob:
    newest = storage.list_jobs(limit=1).items
    if not newest:
        raise InvalidInput("ID_OR_DIR", f"no job is recorded in {directory}", "a directory of `shapewright tune`")
    job, rows = newest[0], storage.search_tasks(newest[0].id)
    events = tuple(_stored_events(storage, job.id))
    views = [_view(storage, row, events) for row in rows]
    tasks = tuple(
        ReportedTask(row.position, row.target_fingerprint, view, row.count)
        for row, view in zip(rows, views, strict=True)
    )
    return ReportedJob(asdict(job) | {"state": job.state.value}, tasks, events)


def _stored_events(storage: ClientStorage, job_id: str) -> Iterator[JobEvent]:
    after = 0
    while events := storage.list_events(job_id, after):
        yield from events
        after = events[-1].seq


def _view(storage: ClientStorage, row: SearchTaskRow, events: tuple[JobEvent, ...]) -> SearchView:
    results = [record.result for record in storage.records_of_task(row.id)]
    baselines = row.baselines.to_json()
    return view_of(row.task, results, events, _stored_dispatch(storage, row), baselines, row.position)


def _stored_dispatch(storage: ClientStorage, row: SearchTaskRow) -> JsonObject | None:
    try:
        return storage.latest_artifact(row.workload_key, row.target_fingerprint, row.job_id).dispatch
    except NotFound:
        return None
