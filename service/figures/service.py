"""Figures from what is stored: which search or searches each one shows, and at which version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.figures.searches import Searches
from service.jobs.service import find_task
from service.libraries.service import served_tasks
from service.times import between_s
from tuner import figures
from tuner.figures.axes import coordinates
from tuner.figures.view import SearchView
from tuner.program.language.workload import JsonObject
from tuner.storage import DeviceReading, NotFound, SearchTaskRow
from tuner.storage.sql import ClientStorage, DeviceStorage

PAUSE_S = 30.0
"""Trials of a job on a device that are further apart than this belong to different spans of use."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that can be drawn. ``version`` changes whenever the figure may have; None: it is never cached."""

    name: str
    version: str | None
    draw: Callable[[], Any]


def job_figure(
    jobs: ClientStorage, searches: Searches, job_id: str, position: int, name: str, kernel: str | None
) -> Figure:
    """A figure of one search task; ``kernel`` is for kernel_times alone. Raises NotFound."""
    job, _, row = find_task(jobs, job_id, position)
    if name not in figures.FIGURES and not (name == "kernel_times" and kernel):
        raise NotFound(f"no figure {name!r}; there are {', '.join(figures.FIGURES)}, and kernel_times of a kernel")
    view, version = searches.view(job, row)

    def draw() -> Any:
        return figures.kernel_times(view, kernel) if kernel else figures.figure(name, view)

    return Figure(name, f"{kernel or ''}.{version}", draw)


def job_coordinates(jobs: ClientStorage, searches: Searches, job_id: str, position: int) -> JsonObject:
    """The kernels of one search task over the axes in which they differ. Raises NotFound."""
    job, _, row = find_task(jobs, job_id, position)
    return coordinates(searches.view(job, row)[0])


def comparison(
    jobs: ClientStorage,
    searches: Searches,
    job_ids: Iterable[str],
    name: str,
    workload_key: str | None = None,
    target: str | None = None,
) -> Figure:
    """Several jobs in one figure: of each the first search task of that workload and target. Raises NotFound."""
    if name not in figures.COMPARABLE:
        raise NotFound(f"no figure {name!r} of several jobs; there are {', '.join(figures.COMPARABLE)}")
    views: dict[str, SearchView] = {}
    versions = []
    for job_id in dict.fromkeys(job_ids):
        job, rows, _ = find_task(jobs, job_id, 0)
        view, version = searches.view(job, _of_workload(job_id, rows, workload_key, target))
        views[_label(job.name, job.id, views)] = view
        versions.append(version)
    if not views:
        raise NotFound("no job is named: give the ids of the jobs to compare")
    return Figure(f"compare {name}", "+".join(versions), lambda: figures.compare(views, name))


def _of_workload(job_id: str, rows: Sequence[SearchTaskRow], key: str | None, target: str | None) -> SearchTaskRow:
    """The first search task of a workload and a target, if given. Raises NotFound."""
    for row in rows:
        if key in (None, row.workload_key) and target in (None, row.target_fingerprint):
            return row
    raise NotFound(f"job {job_id} has no search task of workload {key} on target {target}")


def targets_compared(jobs: ClientStorage, libraries: ClientStorage, searches: Searches, workload_key: str) -> Figure:
    """The library that is served for each target of a workload, by shape. Raises NotFound."""
    views: dict[str, SearchView] = {}
    versions, served = [], served_tasks(libraries, workload_key)
    for target, row in served.items():
        # One target needs no name: it would fill a phone.
        name = target if len(served) > 1 else ""
        views[name], version = searches.view(jobs.get_job(row.job_id), row)
        versions.append(version)
    return Figure(f"targets {workload_key}", "+".join(versions), lambda: figures.compare(views, "latency_by_shape"))


def device_figure(devices: DeviceStorage, name: str, device_id: str | None = None) -> Figure:
    """When devices were in use (``use``), or how steady their speed was (``drift``); of all, or of one. Raises
    NotFound."""
    if name not in ("use", "drift"):
        raise NotFound(f"no figure {name!r} of devices; there are use and drift")
    readings = devices.device_readings(device_id=device_id)
    if name == "use":
        return Figure(name, None, lambda: figures.device_use(spans_of(readings)))
    points = [figures.Reading(each.device, each.at, each.anchor_s) for each in readings if each.anchor_s]
    return Figure(name, None, lambda: figures.device_drift(points))


def spans_of(readings: Iterable[DeviceReading]) -> list[figures.Span]:
    """When each device worked for which job: trials at most PAUSE_S apart are one span."""
    spans: list[figures.Span] = []
    last: dict[str, int] = {}
    for each in readings:
        before = spans[last[each.device]] if each.device in last else None
        if before is not None and _continues(before, each):
            spans[last[each.device]] = replace(before, end_iso=each.at)
        else:
            last[each.device] = len(spans)
            spans.append(figures.Span(each.device, each.job_id, each.job_name, each.at, each.at))
    return spans


def _continues(span: figures.Span, reading: DeviceReading) -> bool:
    return span.job_id == reading.job_id and (between_s(span.end_iso, reading.at) or 0.0) <= PAUSE_S


def _label(name: str, job_id: str, taken: dict[str, SearchView]) -> str:
    label = name or job_id
    return label if label not in taken else f"{label} ({job_id})"
