"""The page of tuning records: what was measured, of every job and what was imported."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from service.access.scopes import READ
from service.dashboard.templating import TEMPLATES
from service.dependencies import CallerDep, ClientDep, Cursor
from tuner.storage import RecordQuery, Scope

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[READ])

PAGE = 50
MAX_CHOICES = 200
"""Workloads that the page offers to choose from: the newest."""
Given = Annotated[str, Query(max_length=200)]
FAILED = {"": None, "no": False, "yes": True}


@router.get("/records")
def records_page(
    request: Request,
    storage: ClientDep,
    caller: CallerDep,
    workload: Given = "",
    target: Given = "",
    failed: Literal["", "yes", "no"] = "",
    provenance: Literal["", "measured", "imported"] = "",
    device: Given = "",
    kernel: Given = "",
    cursor: Cursor = None,
) -> HTMLResponse:
    query = RecordQuery(
        workload or None, target or None, FAILED[failed], provenance or None, device.strip() or None,
        kernel.strip() or None,
    )  # fmt: skip
    given = {
        "workload": workload, "target": target, "failed": failed, "provenance": provenance, "device": device,
        "kernel": kernel,
    }  # fmt: skip
    return TEMPLATES.page(
        request, "records.html", records=storage.find_records(query, cursor, PAGE), first=cursor is None,
        workloads=storage.list_workloads(limit=MAX_CHOICES).items, targets=storage.list_fingerprints(),
        may_import=caller.allows(Scope.ADMIN), given=given,
        asked=urlencode({name: value for name, value in given.items() if value}),
    )  # fmt: skip
