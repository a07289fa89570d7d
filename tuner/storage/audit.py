"""The audit trail: who did what, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner.program.language.workload import JsonObject
from tuner.storage.paging import Page


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One action, stored in the transaction that carried it out.

    ``actor`` is the id of an API key, ``worker``, or ``cli USER`` for a command with the database at hand; empty is not
    known. ``action`` is a noun and a verb, ``job.cancel``; ``subject`` is the id of what was changed.
    """

    id: int
    at: str
    actor: str
    action: str
    subject: str
    detail: JsonObject


class AuditStorage(Protocol):
    """The audit trail. What changes something in one transaction writes to it by itself."""

    def note(self, actor: str, action: str, subject: str, detail: JsonObject) -> None:
        """Add an entry about what took many transactions, such as an import."""

    def list_audit(self, cursor: str | None = None, subject: str | None = None, limit: int = 50) -> Page[AuditEntry]:
        """Newest first; of one subject, if given. A cursor that is not ours raises InvalidInput on ``cursor``."""
