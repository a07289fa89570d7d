"""The page of a model: a job of several workloads as the layers that it has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES
from service.dependencies import ClientDep
from service.jobs.layers import EXPECTATIONS, Layer, Layers, by_share, layers_in
from tuner.program.job.jobspec import MAX_TASKS, counts_of
from tuner.search.verdict import DEFAULT
from tuner.storage.sql import ClientStorage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

LAYERS = 50
"""Layers on a page."""


MAX_PARTS = 40
"""Layers that the bar of shares tells apart: the largest."""
NEXT = 3
"""Layers that the page names as what to search next."""


@dataclass(frozen=True, slots=True)
class Part:
    """A layer in the bar of shares, from ``start`` on; both are parts of 1."""

    layer: Layer
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class NextGain:
    """A layer that was not searched, and how much of the model's time it would save by the gain of those that were;
    None where they gained nothing beyond noise, or nothing is known."""

    layer: Layer
    saved: float | None


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
    """Raises NotFound. A page after the last one is the last one."""
    job, expected = jobs.get_job(job_id), EXPECTATIONS.of(jobs, job_id)
    counts = counts_of(job.spec)
    pages = max(1, -(-len(counts) // LAYERS))
    page = min(page, pages)
    first = (page - 1) * LAYERS
    layers = layers_in(job, jobs.search_tasks(job_id), expected)
    listed = layers.items if order is Order.MODEL else by_share(layers.items)
    return {
        "job": job, "layers": layers, "shown": listed[first : first + LAYERS], "order": order,
        "parts": parts_of(layers.items), "next": next_gains(layers),
        "unknown": [layer for layer in layers.items if layer.share is None], "page_number": page, "count": len(counts),
        "operators": sum(counts), "pages": pages,
        "targets": len(job.spec.get("targets") or [None]),
    }  # fmt: skip


def parts_of(layers: Sequence[Layer]) -> list[Part]:
    """The largest layers beside one another; what is left of the bar are the others. On several targets each has a bar
    of its own length: the parts are of their sum."""
    known = [layer for layer in by_share(layers) if layer.share]
    whole = sum(layer.share or 0.0 for layer in known)
    parts, start = [], 0.0
    for layer in known[:MAX_PARTS]:
        width = (layer.share or 0.0) / whole
        parts.append(Part(layer, start, width))
        start += width
    return parts


def next_gains(layers: Layers) -> list[NextGain]:
    """The largest layers that nothing was measured of, if the job has ended: a search of them may gain most."""
    gained = layers.outcome.ratio(DEFAULT)
    ratio = gained.ratio if gained is not None and gained.verdict != "equal" and gained.ratio > 1 else None
    waiting = [layer for layer in by_share(layers.items) if layer.basis == "expected"]
    return [NextGain(layer, (layer.share or 0.0) * (1 - 1 / ratio) if ratio else None) for layer in waiting[:NEXT]]
