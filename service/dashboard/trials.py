"""The page of a search's trials: a table that is filtered, ordered, and read part by part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES
from service.dependencies import BLANK, StorageDep, TaskQuery
from service.jobs.service import find_task
from service.trials.endpoints import FilterDep
from tuner.figures.axes import meanings_of
from tuner.storage.trials import FAILED, SUCCEEDED, TrialFacet, TrialLine, TrialOrder, TrialQuery

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

PAGE = 100
HEADS = (
    (TrialOrder.STORED, "Trial", ""),
    (None, "Instance", ""),
    (TrialOrder.KERNEL, "Kernel", ""),
    (None, "Choices in which these differ", ""),
    (TrialOrder.LATENCY, "Measured", "number"),
    (TrialOrder.PREDICTED, "Predicted", "number"),
    (None, "Error", ""),
    (None, "Phase", ""),
    (TrialOrder.ROUND, "Round", "number"),
    (TrialOrder.BUILD, "Built in", "number"),
    (TrialOrder.RUN, "Ran for", "number"),
    (None, "Device", ""),
)


@router.get("/jobs/{job_id}/trials")
def trials_page(
    request: Request,
    job_id: str,
    storage: StorageDep,
    wanted: FilterDep,
    task: TaskQuery = 0,
    order: TrialOrder = TrialOrder.STORED,
    descending: bool = False,
    cursor: Annotated[str | None, Query(max_length=200), BLANK] = None,
) -> HTMLResponse:
    job, rows, row = find_task(storage, job_id, task)
    query = replace(wanted, order=order, descending=descending, cursor=cursor, limit=PAGE)
    facets, table = storage.trial_facets(row.id), storage.find_trials(row.id, query)
    return TEMPLATES.page(
        request, "trials.html", job=job, rows=rows, row=row, query=query, heads=HEADS,
        table=table, differing=differing_in(table.items), meanings=meanings_of(row.task), **_choices(facets, query),
        filters=urlencode(filters_of(query, task)), first=cursor is None,
        origin=f"{request.url.scheme}://{request.url.netloc}",
    )  # fmt: skip


def differing_in(lines: Sequence[TrialLine]) -> frozenset[str]:
    """The axes, by their names in records, in which kernels on a part of the table differ; all where none do."""
    values: dict[str, set[int]] = {}
    for line in lines:
        for name, value in line.kernel.values:
            values.setdefault(name, set()).add(value)
    return frozenset(name for name, known in values.items() if len(known) > 1) or frozenset(values)


def filters_of(query: TrialQuery, task: int) -> dict[str, str]:
    """What a link to the same trials has in its query, without order and cursor."""
    about = {"error": str(query.error), "kernel": query.kernel, "instance": query.instance, "phase": query.phase or ""}
    return {"task": str(task)} | {name: value for name, value in about.items() if value}


def _choices(facets: tuple[TrialFacet, ...], query: TrialQuery) -> dict[str, Any]:
    """What the filters offer, each with the number of its trials; and how many trials match."""
    by: dict[str, Counter[str]] = {name: Counter() for name in ("error_kind", "phase", "instance")}
    for facet in facets:
        for name, counts in by.items():
            counts[getattr(facet, name) or SUCCEEDED] += facet.trials
    matching = sum(facet.trials for facet in facets if _matches(facet, query))
    total = sum(facet.trials for facet in facets)
    return {
        "errors": by["error_kind"],
        "failed": total - by["error_kind"][SUCCEEDED],
        "phases": by["phase"],
        "instances": by["instance"],
        "total": total,
        "matching": None if query.kernel else matching,
    }


def _matches(facet: TrialFacet, query: TrialQuery) -> bool:
    error = facet.error_kind or SUCCEEDED
    right = query.error in ("", error) or (query.error == FAILED and facet.error_kind is not None)
    return right and query.instance in ("", facet.instance) and query.phase in (None, facet.phase)
