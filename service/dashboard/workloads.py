"""The pages of workloads: what is served for each, under which names, since when and by which decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard import presenters
from service.dashboard.presenters import JobLine
from service.dashboard.templating import TEMPLATES
from service.dependencies import ClientDep, Cursor, StorageDep
from service.libraries.service import Place, places_of, served_tasks
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import format_ranges
from tuner.search.verdict import DEFAULT, Ratio, within
from tuner.storage import AliasQuery, LibraryQuery, LibraryRow, NotFound, Promotion, SearchTaskRow, Served
from tuner.storage.sql import ClientStorage, Storage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

PAGE = 50
MAX_JOBS = 50
"""Searches that the page lists: the newest."""
Given = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class Searched:
    """One search task for the workload, in the job that it is part of."""

    line: JobLine
    row: SearchTaskRow
    gain: Ratio | None
    kernels: int | None


@dataclass(frozen=True, slots=True)
class AtPlace:
    """What is served on a target with a number of threads and for a state of the caches: None where nothing is."""

    target: str
    threads: int
    cache: Cache
    served: Served | None


@dataclass(frozen=True, slots=True)
class Listed:
    """A library as a line: ``standing`` is served, kept (another is served in its place) or withdrawn."""

    library: LibraryRow
    made_for: str
    standing: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a library, or of a name: ``kind`` is served, kept, promoted, by rule or rolled back."""

    at: str
    kind: str
    name: str
    digest: str | None
    target: str
    threads: int
    cache: Cache
    by: str
    job_id: str | None
    why: str


@router.get("/workloads")
def workloads_page(request: Request, storage: ClientDep, cursor: Cursor = None, q: Given = "") -> HTMLResponse:
    listed = storage.list_workloads(cursor, PAGE, q.strip())
    return TEMPLATES.page(request, "workloads.html", listed=listed, first=cursor is None, text=q.strip())


@router.get("/workloads/{key}")
def workload_page(request: Request, key: str, storage: StorageDep, before: Cursor = None) -> HTMLResponse:
    """``before``: the cursor of older libraries."""
    known, rows = storage.get_workload(key), storage.tasks_of_workload(key)
    libraries = storage.list_libraries(LibraryQuery(key), before, PAGE)
    places = places_of(rows)
    promotions = storage.list_promotions(AliasQuery(key), limit=PAGE)
    listed = [_listed(library) for library in libraries.items]
    return TEMPLATES.page(
        request, "workload.html", known=known, places=[_at(storage, key, place) for place in places],
        aliases=storage.list_aliases(AliasQuery(key)), libraries=listed, older=libraries.cursor, first=before is None,
        decisions=_decisions(libraries.items, promotions.items), searches=_searches(storage, rows[:MAX_JOBS]),
        search_count=len(rows), is_served=bool(served_tasks(storage, key)), several=len(places) > 1,
    )  # fmt: skip


def _at(storage: ClientStorage, key: str, place: Place) -> AtPlace:
    target, threads, cache = place
    try:
        served = storage.served(LibraryQuery(key, target, threads, cache=cache))
        return AtPlace(*place, served)
    except NotFound:
        return AtPlace(*place, None)  # none was built, or what was built is withdrawn


def _listed(library: LibraryRow) -> Listed:
    if library.wrong_kernel is not None:
        return Listed(
            library, format_ranges(library.ranges), "withdrawn",
            f"its kernel {library.wrong_kernel} was found wrong or crashed since",
        )  # fmt: skip
    standing = "kept" if library.superseded_by else "served"
    return Listed(library, format_ranges(library.ranges), standing, _compared(library))


def _compared(library: LibraryRow) -> str:
    """How a library fared against the one that was served when it was built."""
    facts = library.comparison
    if facts is None:
        return "not compared with another"
    ratio, noise, against = facts.get("ratio"), facts.get("noise"), str(facts.get("against"))[:12]
    if not isinstance(ratio, int | float) or not isinstance(noise, int | float):
        return f"not comparable with {against}"
    speed = f"{within(against, ratio, noise)}, timed in turns"
    return speed if facts.get("verified") else f"{speed}, not verified"


def _decisions(libraries: Sequence[LibraryRow], promotions: Sequence[Promotion]) -> list[Decision]:
    """What was served and named when, newest first."""
    built = [
        Decision(
            library.created_at, "kept" if (library.comparison or {}).get("verdict") == "kept" else "served", "",
            library.digest, library.target_fingerprint, library.threads, library.cache, "the service", library.job_id,
            _compared(library),
        )
        for library in libraries
    ]  # fmt: skip
    named = [
        Decision(
            each.at, each.action.value.replace("_", " "), each.name, each.digest, each.target_fingerprint, each.threads,
            each.cache, each.by, None, each.reason,
        )
        for each in promotions
    ]  # fmt: skip
    return sorted(built + named, key=lambda decision: decision.at, reverse=True)[:PAGE]


def _searches(storage: Storage, rows: Sequence[SearchTaskRow]) -> list[Searched]:
    keys = storage.list_keys()
    return [_searched(storage, row, keys) for row in rows]


def _searched(storage: ClientStorage, row: SearchTaskRow, keys: Any) -> Searched:
    job = storage.get_job(row.job_id)
    summary = presenters.summary_of(job, row.position)
    line = presenters.lines_of([job], keys)[0]
    speedup, kernels = (summary.outcome.ratio(DEFAULT), summary.kernels) if summary else (None, None)
    return Searched(line, row, speedup, kernels)
