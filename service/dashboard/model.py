"""The page of a model: a job of several workloads as the layers that it has of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES
from service.dependencies import ClientDep
from service.jobs.layers import EXPECTATIONS, by_share, layers_in
from tuner.program.job.jobspec import MAX_TASKS, counts_of
from tuner.storage.sql import ClientStorage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

LAYERS = 50
"""Layers on a page."""


class Order(StrEnum):
    """What layers are sorted by."""

    MODEL = "model"
    SHARE = "share"


PageNumber = Annotated[int, Query(ge=1, le=MAX_TASKS)]


@router.get("/jobs/{job_id}/model")
def model_page(
    request: Request, job_id: str, jobs: ClientDep, order: Order = Order.MODEL, page: PageNumber = 1
) -> HTMLResponse:
    return TEMPLATES.page(request, "model.html", **_model(jobs, job_id, order, page))


@router.get("/fragments/jobs/{job_id}/model")
def model_fragment(
    request: Request, job_id: str, jobs: ClientDep, order: Order = Order.MODEL, page: PageNumber = 1
) -> HTMLResponse:
    """The part of the page that changes, for the script that keeps it up to date."""
    return TEMPLATES.page(request, "_model.html", **_model(jobs, job_id, order, page))


def _model(jobs: ClientStorage, job_id: str, order: Order, page: int) -> dict[str, Any]:
    """Raises NotFound. In the model's order the layers of the page are read, in another one all of them.

    A page after the last one is the last one.
    """
    job, expected = jobs.get_job(job_id), EXPECTATIONS.of(jobs, job_id)
    counts = counts_of(job.spec)
    pages = max(1, -(-len(counts) // LAYERS))
    page = min(page, pages)
    first = (page - 1) * LAYERS
    if order is Order.MODEL:
        layers = layers_in(job, jobs.search_tasks(job_id, first, LAYERS), expected)
        shown = list(layers.items)
    else:
        layers = layers_in(job, jobs.search_tasks(job_id), expected)
        shown = by_share(layers.items)[first : first + LAYERS]
    return {
        "job": job, "layers": layers, "shown": shown, "order": order, "page_number": page, "count": len(counts),
        "operators": sum(counts), "pages": pages,
        "targets": len(job.spec.get("targets") or [None]),
    }  # fmt: skip
