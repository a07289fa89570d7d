"""The audit trail over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from service.access.scopes import ADMIN
from service.dependencies import BLANK, Cursor, Limit, OperatorDep
from service.schemas import FromAttributes, PageOut

router = APIRouter(prefix="/audit", tags=["access"])

SubjectQuery = Annotated[
    str | None, Query(max_length=200, description="only what was done to this job, key or device"), BLANK
]

ActorQuery = Annotated[
    str | None, Query(max_length=200, description="only what this key, worker or command did"), BLANK
]
ActionQuery = Annotated[str | None, Query(max_length=200, description="only this action, as in job.cancel"), BLANK]


class AuditOut(FromAttributes):
    """Who did what. ``actor`` is an API key's id, ``worker``, or ``cli USER``; ``action`` a noun and a verb."""

    id: int
    at: str
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]


class AuditPage(PageOut[AuditOut]):
    """A part of the audit trail, newest first. ``cursor`` asks for the next part; null at the end."""


@router.get("", dependencies=[ADMIN])
def list_audit(
    storage: OperatorDep,
    cursor: Cursor = None,
    subject: SubjectQuery = None,
    actor: ActorQuery = None,
    action: ActionQuery = None,
    limit: Limit = 50,
) -> AuditPage:
    """Who did what, newest first."""
    return AuditPage.model_validate(storage.list_audit(cursor, subject, limit, actor, action))
