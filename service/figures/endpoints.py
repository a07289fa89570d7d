"""The routes of figures: Plotly JSON, made on the server from what is recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Response

from service.access.scopes import READ
from service.dependencies import BLANK, ClientDep, DevicesDep, StorageDep, TaskQuery
from service.figures import service
from service.figures.schemas import CoordinatesOut, FigureList, FigureOut
from service.figures.searches import Searches, SearchesDep
from service.figures.service import Figure
from tuner.figures import FIGURES

router = APIRouter(tags=["figures"])

IfNoneMatch = Annotated[str | None, Header()]
KernelQuery = Annotated[str | None, Query(max_length=40, description="for kernel_times: the id of a kernel")]
DeviceQuery = Annotated[str | None, Query(max_length=200, description="the id of a device"), BLANK]
ComparedQuery = Annotated[Sequence[str], Query(alias="job", max_length=8, description="the id of a job; repeated")]
WorkloadQuery = Annotated[str | None, Query(max_length=200, description="the key of a workload of every job"), BLANK]
TargetQuery = Annotated[
    str | None, Query(max_length=200, description="the fingerprint of a target of every job"), BLANK
]
PLOTLY = "application/json"


@router.get("/jobs/{job_id}/figures", dependencies=[READ])
def list_figures(job_id: str, jobs: ClientDep) -> FigureList:
    """The figures of a job: their names, titles and captions."""
    jobs.get_job(job_id)
    return FigureList(items=[FigureOut.model_validate(spec) for spec in FIGURES.values()])


@router.get("/jobs/{job_id}/figures/{name}", dependencies=[READ])
async def job_figure(
    job_id: str,
    name: str,
    jobs: ClientDep,
    searches: SearchesDep,
    task: TaskQuery = 0,
    kernel: KernelQuery = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A figure as Plotly JSON. ``ETag`` changes when the figure may have."""
    return await _respond(
        searches, if_none_match, lambda: service.job_figure(jobs, searches, job_id, task, name, kernel)
    )


@router.get("/jobs/{job_id}/coordinates", dependencies=[READ])
async def job_coordinates(job_id: str, jobs: ClientDep, searches: SearchesDep, task: TaskQuery = 0) -> CoordinatesOut:
    """The kernels of a search over the axes of their space, the most important axis and the fastest kernel first:
    what parallel coordinates are drawn from."""
    return await to_thread.run_sync(
        lambda: CoordinatesOut.model_validate(service.job_coordinates(jobs, searches, job_id, task)),
        limiter=searches.limiter,
    )


@router.get("/compare/figures/{name}", dependencies=[READ])
async def compared(
    name: str,
    jobs: ClientDep,
    searches: SearchesDep,
    a: Annotated[str | None, Query(max_length=50, description="as the first `job`")] = None,
    b: Annotated[str | None, Query(max_length=50, description="as the second `job`")] = None,
    job_ids: ComparedQuery = (),
    workload: WorkloadQuery = None,
    target: TargetQuery = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Several jobs in one figure: their search tasks of one workload, or their first ones."""
    named = [*filter(None, (a, b)), *job_ids]
    return await _respond(
        searches, if_none_match, lambda: service.comparison(jobs, searches, named, name, workload, target)
    )


@router.get("/workloads/{key}/figures/latency_by_shape", dependencies=[READ])
async def targets_compared(
    key: str, jobs: ClientDep, storage: StorageDep, searches: SearchesDep, if_none_match: IfNoneMatch = None
) -> Response:
    """The library that is served for each target, in one figure."""
    return await _respond(searches, if_none_match, lambda: service.targets_compared(jobs, storage, searches, key))


@router.get("/devices/figures/{name}", dependencies=[READ])
async def device_figure(name: str, devices: DevicesDep, searches: SearchesDep, device: DeviceQuery = None) -> Response:
    """When the devices were in use (``use``), and how steady their speed was (``drift``); of all, or of one."""
    return await _respond(searches, None, lambda: service.device_figure(devices, name, device))


async def _respond(searches: Searches, if_none_match: str | None, find: Callable[[], Figure]) -> Response:
    """The figure, or 304 if the client has this version. Found and drawn in the threads that figures have."""

    def respond() -> Response:
        figure = find()
        headers = {"Cache-Control": "no-cache"}
        if figure.version is None:
            return Response(figure.draw().to_json(), media_type=PLOTLY, headers=headers)
        headers["ETag"] = f'"{hashlib.sha256(f"{figure.name} {figure.version}".encode()).hexdigest()[:32]}"'
        if if_none_match == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        text = searches.figure(figure.name, figure.version, lambda: str(figure.draw().to_json()))
        return Response(text, media_type=PLOTLY, headers=headers)

    return await to_thread.run_sync(respond, limiter=searches.limiter)
