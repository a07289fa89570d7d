"""What people note about jobs: tags, a note, and searches that they save."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Executable, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from tuner.errors import InvalidInput
from tuner.program.language.workload import JsonObject
from tuner.storage.errors import NotFound
from tuner.storage.filters import MAX_NOTE, checked_tags, parse_filter
from tuner.storage.jobs import Job, SavedFilter
from tuner.storage.sql._rows import Part, find_job, lock_job
from tuner.storage.sql.audit import audit
from tuner.storage.sql.columns import now
from tuner.storage.sql.schema import jobs, saved_filters

MAX_FILTERS = 50
"""Saved by one owner."""
AUDITED = 200
"""Characters of a note in the audit trail."""


class Notes(Part):
    def annotate_job(
        self, job_id: str, tags: Sequence[str] | None = None, note: str | None = None, actor: str = ""
    ) -> Job:
        """Give a job other tags and another note; None leaves them as they are.

        Raises InvalidInput on ``tags`` or ``note``, NotFound.
        """
        values: dict[str, str] = {}
        told: JsonObject = {}
        if tags is not None:
            kept = checked_tags(list(tags))
            values["tags"], told["tags"] = f",{','.join(kept)}," if kept else "", list(kept)
        if note is not None:
            if len(note) > MAX_NOTE:
                raise InvalidInput("note", f"it has {len(note):,} characters", f"{MAX_NOTE:,} at most")
            values["note"], told["note"] = note, note[:AUDITED]
        with self._database.write() as connection:
            job = lock_job(connection, job_id)
            if values:
                connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
                audit(connection, actor, "job.annotate", job_id, {"name": job.name, **told})
            return find_job(connection, job_id)

    def list_filters(self, owner: str) -> tuple[SavedFilter, ...]:
        """The searches that an owner saved, by name."""
        query = select(saved_filters).where(saved_filters.c.owner == owner).order_by(saved_filters.c.name)
        with self._database.read() as connection:
            return tuple(SavedFilter(row.name, row.query, row.created_at) for row in connection.execute(query))

    def save_filter(self, owner: str, name: str, query: str, actor: str = "") -> SavedFilter:
        """Keep a search under a name, in place of the one of that name. Raises InvalidInput."""
        try:
            parse_filter(query)
        except InvalidInput as error:
            # By the name that it has here.
            raise InvalidInput("query", error.problem, error.remedy) from None
        mine = saved_filters.c.owner == owner
        with self._database.write() as connection:
            others = select(func.count()).select_from(saved_filters).where(mine, saved_filters.c.name != name)
            count = connection.scalar(others) or 0
            if count >= MAX_FILTERS:
                raise InvalidInput("name", f"{count} searches are saved", f"{MAX_FILTERS} at most: delete one")
            # In one statement: who saves it at the same time waits, and is not refused.
            connection.execute(_saving(connection.dialect.name), {"owner": owner, "name": name, "query": query})
            audit(connection, actor, "filter.save", name, {"query": query})
            row = connection.execute(select(saved_filters).where(mine, saved_filters.c.name == name)).one()
            return SavedFilter(row.name, row.query, row.created_at)

    def delete_filter(self, owner: str, name: str, actor: str = "") -> None:
        """Raises NotFound."""
        with self._database.write() as connection:
            gone = delete(saved_filters).where(saved_filters.c.owner == owner, saved_filters.c.name == name)
            if connection.execute(gone).rowcount == 0:
                raise NotFound(f"no search is saved as {name!r}")
            audit(connection, actor, "filter.delete", name, {})


def _saving(dialect: str) -> Executable:
    first = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(saved_filters)
    return first.on_conflict_do_update(
        index_elements=[saved_filters.c.owner, saved_filters.c.name],
        set_={"query": first.excluded.query, "created_at": now()},
    )
