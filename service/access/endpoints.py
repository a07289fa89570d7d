"""The audit trail over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from service.access.scopes import ADMIN
from service.dependencies import AuditDep, Cursor, Limit
from tuner.storage import AuditEntry, Page

router = APIRouter(prefix="/audit", tags=["access"])

SubjectQuery = Annotated[str | None, Query(max_length=200, description="only what was done to this job, key or device")]


class AuditOut(BaseModel):
    """Who did what. ``actor`` is an API key's id, ``worker``, or ``cli USER``; ``action`` a noun and a verb."""

    id: int
    at: str
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]

    @staticmethod
    def of(entry: AuditEntry) -> AuditOut:
        return AuditOut(
            id=entry.id,
            at=entry.at,
            actor=entry.actor,
            action=entry.action,
            subject=entry.subject,
            detail=entry.detail,
        )


class AuditPage(BaseModel):
    """A part of the audit trail, newest first. ``cursor`` asks for the next part; null at the end."""

    items: list[AuditOut]
    cursor: str | None

    @staticmethod
    def of(page: Page[AuditEntry]) -> AuditPage:
        return AuditPage(items=[AuditOut.of(entry) for entry in page.items], cursor=page.cursor)


@router.get("", dependencies=[ADMIN])
def list_audit(storage: AuditDep, cursor: Cursor = None, subject: SubjectQuery = None, limit: Limit = 50) -> AuditPage:
    """Who did what, newest first."""
    return AuditPage.of(storage.list_audit(cursor, subject, limit))
