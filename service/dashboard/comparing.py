"""The page of jobs side by side."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.compare import service
from service.compare.schemas import CompareOut
from service.dashboard.templating import TEMPLATES
from service.dependencies import StorageDep
from service.figures.searches import Searches, SearchesDep
from tuner.storage import JobQuery, NotFound
from tuner.storage.sql import Storage

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

FIGURES = (
    ("best_over_time", "Best so far over time"),
    ("best_over_trials", "Best so far over trials"),
    ("speedup_by_shape", "Speed over the first job, by shape"),
    ("latency_by_shape", "Latency over the range"),
)
JobId = Annotated[str, Query(max_length=50)]


@router.get("/compare")
def compare_page(
    request: Request,
    storage: StorageDep,
    searches: SearchesDep,
    job: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    a: JobId = "",
    b: JobId = "",
) -> HTMLResponse:
    """Several jobs side by side. Unknown job ids give a message on the page, not an error."""
    wanted = list(dict.fromkeys(filter(None, (a, b, *job))))
    chosen = [job_id for job_id in wanted if _exists(storage, job_id)]
    found = _compared(storage, searches, chosen[: service.MAX_JOBS])
    return TEMPLATES.page(
        request, "compare.html",
        chosen=chosen[: service.MAX_JOBS], missing=[job_id for job_id in wanted if job_id not in chosen],
        most=service.MAX_JOBS, too_many=max(0, len(chosen) - service.MAX_JOBS), compared=found,
        recent=storage.find_jobs(JobQuery(limit=100)).items, figures=FIGURES, figure_query=_figure_query,
    )  # fmt: skip


def _exists(storage: Storage, job_id: str) -> bool:
    try:
        storage.get_job(job_id)
    except NotFound:
        return False
    return True


def _compared(storage: Storage, searches: Searches, job_ids: list[str]) -> CompareOut | None:
    return service.answer(service.compared(storage, searches, job_ids)) if len(job_ids) > 1 else None


def _figure_query(pairing: Any) -> str:
    """The query of a figure of one pairing: its workload and target, and its jobs."""
    about = [("workload", pairing.workload_key), ("target", pairing.target_fingerprint)]
    return urlencode([*about, *(("job", total.job_id) for total in pairing.totals)])
