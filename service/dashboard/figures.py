"""The routes of figures: Plotly JSON, made on the server from what is recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response

from service.dashboard.pages import SearchesDep, TaskQuery, find_task
from service.dashboard.searches import Searches
from service.dashboard.templating import between_s
from service.dependencies import DevicesDep, JobsDep, StorageDep
from tuner import figures
from tuner.figures.view import SearchView
from tuner.storage import DeviceReading, NotFound

router = APIRouter(tags=["figures"])

IfNoneMatch = Annotated[str | None, Header()]
PLOTLY = "application/json"
PAUSE_S = 30.0
"""A device that stored nothing for so long had not been working for the job."""


@router.get("/jobs/{job_id}/figures")
def list_figures(job_id: str, storage: JobsDep) -> dict[str, list[dict[str, str]]]:
    """The figures of a job: their names, titles and captions."""
    storage.get_job(job_id)
    found = figures.FIGURES.values()
    return {"items": [{"name": each.name, "title": each.title, "caption": each.caption} for each in found]}


@router.get("/jobs/{job_id}/figures/{name}")
async def job_figure(
    job_id: str,
    name: str,
    storage: JobsDep,
    searches: SearchesDep,
    task: TaskQuery = 0,
    kernel: Annotated[str | None, Query(max_length=40, description="for kernel_times: the id of a kernel")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A figure as Plotly JSON. ``ETag`` changes when the figure may have."""

    def work() -> Response:
        job, _, row = find_task(storage, job_id, task)
        if name not in figures.FIGURES and not (name == "kernel_times" and kernel):
            raise NotFound(f"no figure {name!r}; there are {', '.join(figures.FIGURES)}, and kernel_times of a kernel")
        view, version = searches.view(job, row)

        def make() -> Any:
            return figures.kernel_times(view, kernel) if kernel else figures.figure(name, view)

        return _answer(searches, name, f"{kernel or ''}.{version}", make, if_none_match)

    return await to_thread.run_sync(work, limiter=searches.limiter)


@router.get("/compare/figures/{name}")
async def compared(
    name: str, a: str, b: str, storage: JobsDep, searches: SearchesDep, if_none_match: IfNoneMatch = None
) -> Response:
    """Two jobs in one figure (their first search tasks)."""

    def work() -> Response:
        views: dict[str, SearchView] = {}
        versions = []
        for job_id in (a, b):
            job, _, row = find_task(storage, job_id, 0)
            view, version = searches.view(job, row)
            views[_label(job.name, job.id, views)] = view
            versions.append(version)
        if name not in figures.COMPARABLE:
            raise NotFound(f"no figure {name!r} of two jobs; there are {', '.join(figures.COMPARABLE)}")
        at = "+".join(versions)
        return _answer(searches, f"compare {name}", at, lambda: figures.compare(views, name), if_none_match)

    return await to_thread.run_sync(work, limiter=searches.limiter)


@router.get("/workloads/{key}/figures/latency_by_shape")
async def targets_compared(
    key: str, storage: StorageDep, searches: SearchesDep, if_none_match: IfNoneMatch = None
) -> Response:
    """The newest library of each target in one figure."""

    def work() -> Response:
        views: dict[str, SearchView] = {}
        versions = []
        for row in storage.tasks_of_workload(key):
            if row.done and row.target_fingerprint not in views:
                views[row.target_fingerprint], version = searches.view(storage.get_job(row.job_id), row)
                versions.append(version)
        at, name = "+".join(versions), "latency_by_shape"
        return _answer(searches, f"targets {key}", at, lambda: figures.compare(views, name), if_none_match)

    return await to_thread.run_sync(work, limiter=searches.limiter)


@router.get("/devices/figures/{name}")
async def device_figure(name: str, storage: DevicesDep, searches: SearchesDep) -> Response:
    """How the devices were used (``use``), and how steady their speed was (``drift``)."""

    def work() -> Response:
        if name not in ("use", "drift"):
            raise NotFound(f"no figure {name!r} of devices; there are use and drift")
        readings = storage.device_readings()
        if name == "use":
            made = figures.device_use(spans_of(readings))
        else:
            points = [figures.Reading(each.device, each.at, each.anchor_s) for each in readings if each.anchor_s]
            made = figures.device_drift(points)
        return Response(made.to_json(), media_type=PLOTLY, headers={"Cache-Control": "no-cache"})

    return await to_thread.run_sync(work, limiter=searches.limiter)


def _answer(
    searches: Searches, name: str, version: str, make: Callable[[], Any], if_none_match: str | None
) -> Response:
    """The figure, unless the asker has it at this version already."""
    etag = f'"{hashlib.sha256(f"{name} {version}".encode()).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if if_none_match == etag:
        return Response(status_code=304, headers=headers)
    text = searches.figure(name, version, lambda: str(make().to_json()))
    return Response(text, media_type=PLOTLY, headers=headers)


def spans_of(readings: Iterable[DeviceReading]) -> list[figures.Span]:
    """When each device worked for which job: trials that follow one another within PAUSE_S are one span."""
    found: list[figures.Span] = []
    last: dict[str, int] = {}
    for each in readings:
        before = found[last[each.device]] if each.device in last else None
        if before is not None and _goes_on(before, each):
            found[last[each.device]] = replace(before, end_iso=each.at)
        else:
            last[each.device] = len(found)
            found.append(figures.Span(each.device, each.job_id, each.job_name, each.at, each.at))
    return found


def _goes_on(span: figures.Span, reading: DeviceReading) -> bool:
    return span.job_id == reading.job_id and (between_s(span.end_iso, reading.at) or 0.0) <= PAUSE_S


def _label(name: str, job_id: str, taken: dict[str, SearchView]) -> str:
    label = name or job_id
    return label if label not in taken else f"{label} ({job_id})"
