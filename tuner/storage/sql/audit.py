"""The audit trail. Whatever changes something calls ``audit`` in its own transaction."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from tuner.program.language.workload import JsonObject
from tuner.storage.access import AuditEntry
from tuner.storage.jobs import Page
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part
from tuner.storage.sql.schema import audit_log

LISTING = "audit"
WORKER = "worker"
"""The actor of what a worker does."""
_INSERT = insert(audit_log)


class Audit(Part):
    def list_audit(
        self,
        cursor: str | None = None,
        subject: str | None = None,
        limit: int = 50,
        actor: str | None = None,
        action: str | None = None,
    ) -> Page[AuditEntry]:
        """Newest first; of one subject, by one actor, of one action, as far as these are given. A cursor that is not
        ours raises InvalidInput on ``cursor``."""
        query = select(audit_log).order_by(audit_log.c.id.desc()).limit(cursors.checked(limit) + 1)
        if (before := cursors.decode(LISTING, cursor)) is not None:
            query = query.where(audit_log.c.id < before)
        given = {"subject": subject, "actor": actor, "action": action}
        query = query.where(*(audit_log.c[name] == value for name, value in given.items() if value is not None))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return cursors.page(LISTING, rows, limit, lambda row: int(row.id), _entry_of)

    def note(self, actor: str, action: str, subject: str, detail: JsonObject) -> None:
        """Add an entry about what took many transactions, such as an import."""
        with self._database.write() as connection:
            audit(connection, actor, action, subject, detail)


def audit(connection: Connection, actor: str, action: str, subject: str, detail: JsonObject) -> None:
    """Note who did what. ``action`` is a noun and a verb: ``job.cancel``."""
    row = {"actor": actor, "action": action, "subject": subject, "detail": detail}
    connection.execute(_INSERT, row)


def _entry_of(row: AnyRow) -> AuditEntry:
    return AuditEntry(id=row.id, at=row.at, actor=row.actor, action=row.action, subject=row.subject, detail=row.detail)
