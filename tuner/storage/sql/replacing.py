"""Whether a new library, timed in turns with the served one, takes its place."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, update

from tuner.library.choice import covers
from tuner.storage.libraries import Comparison, Verdict
from tuner.storage.sql.library_rows import ROWS, Known, known_rows
from tuner.storage.sql.schema import artifacts


def settle(connection: Connection, saved: Known, comparison: Comparison) -> Verdict:
    """Store the comparison of a new library and what follows from it.

    It replaces the other if it covers as much and wins, unless another library has done so meanwhile: these two were
    never compared, and stand beside each other. If it covers no more and does not win, the other stays in its place.
    """
    verdict = Verdict.KEPT
    other = newest_of(connection, saved, comparison.against)
    if other is not None:
        mine, theirs = saved.library.ranges, other.library.ranges
        if comparison.wins and covers(mine, theirs):
            verdict = Verdict.REPLACES if _supersede(connection, saved, comparison.against) else Verdict.KEPT
        elif not comparison.wins and covers(theirs, mine):
            _change(connection, saved, superseded_by=other.number)
    _change(connection, saved, comparison=comparison.to_json(verdict))
    return verdict


def newest_of(connection: Connection, like: Known, digest: str) -> Known | None:
    """The newest other library of that digest for the same workload, target and number of threads."""
    same = _beside(like, digest)
    rows = known_rows(connection, ROWS.where(*same).order_by(artifacts.c.id.desc()).limit(1))
    return rows[0] if rows else None


def _supersede(connection: Connection, saved: Known, digest: str) -> bool:
    """Whether a library of that digest was still served: the same one may be stored by several jobs."""
    changed = update(artifacts).where(*_beside(saved, digest), artifacts.c.superseded_by.is_(None))
    return connection.execute(changed.values(superseded_by=saved.number)).rowcount > 0


def _beside(like: Known, digest: str) -> tuple[ColumnElement[bool], ...]:
    return (
        artifacts.c.workload_id == like.workload_id,
        artifacts.c.target_id == like.target_id,
        artifacts.c.threads == like.library.threads,
        artifacts.c.digest == digest,
        artifacts.c.id != like.number,
    )


def _change(connection: Connection, saved: Known, **values: object) -> None:
    connection.execute(update(artifacts).where(artifacts.c.id == saved.number).values(**values))
