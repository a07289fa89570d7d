"""Rows of libraries without their content, as lists, choices and aliases read them, and which takes whose place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, Text, and_, case, cast, or_, select, update

from tuner.library.choice import covers
from tuner.library.dispatcher import symbol_bounds
from tuner.program.job.cache import Cache
from tuner.program.job.range_text import Ranges
from tuner.program.language.spans import span_from_json
from tuner.storage.errors import Unreadable, reading
from tuner.storage.libraries import Comparison, LibraryRow, Verdict
from tuner.storage.sql._rows import AnyRow, readable
from tuner.storage.sql.identity import stored_task
from tuner.storage.sql.schema import (
    artifacts,
    disqualified_kernels,
    library_aliases,
    library_kernels,
    search_tasks,
    targets,
    workloads,
)

_superseding = artifacts.alias("superseding")


def _wrong_kernel(library: FromClause) -> Select[tuple[str]]:
    """A kernel of a row of artifacts that was found wrong, or crashed, on the library's target."""
    its, bad = library_kernels.c, disqualified_kernels.c
    same = and_(
        bad.kernel_id == its.kernel_id,
        bad.workload_id == library.c.workload_id,
        bad.target_id == library.c.target_id,
    )
    wrong = (
        select(its.kernel_id)
        .select_from(library_kernels.join(disqualified_kernels, same))
        .where(its.artifact_id == library.c.id)
    )
    return wrong.order_by(its.kernel_id).limit(1).correlate(library)


def is_sound() -> ColumnElement[bool]:
    """Whether no kernel of a row of artifacts was found wrong, or crashed, on its target."""
    return ~_wrong_kernel(artifacts).exists()


def may_be_chosen() -> ColumnElement[bool]:
    """Whether a row of artifacts takes part in the choice of what is served: it is sound, and was not kept.

    One that a newer library replaced in turns takes part: it says what that one is better than. Others that are
    superseded do if what supersedes them is not sound.
    """
    other = artifacts.alias("other_library")
    replaced = and_(other.c.id > artifacts.c.id, other.c.comparison.is_not(None))
    superseding = select(other.c.id).where(
        other.c.id == artifacts.c.superseded_by, or_(replaced, _wrong_kernel(other).exists())
    )
    return and_(is_sound(), or_(artifacts.c.superseded_by.is_(None), superseding.correlate(artifacts).exists()))


ROWS = (
    select(
        *(artifacts.c[name] for name in ("id", "digest", "workload_id", "target_id", "threads", "created_at")),
        *(artifacts.c[name] for name in ("cache", "ranges", "protocol", "comparison")),
        _superseding.c.digest.label("superseding"),
        workloads.c.key,
        targets.c.fingerprint,
        search_tasks.c.job_id,
        search_tasks.c.position,
        _wrong_kernel(artifacts).scalar_subquery().label("wrong_kernel"),
        case((artifacts.c.ranges.is_(None), cast(search_tasks.c.task, Text))).label("task"),
    )
    .join(workloads, workloads.c.id == artifacts.c.workload_id)
    .join(targets, targets.c.id == artifacts.c.target_id)
    .join(search_tasks, search_tasks.c.id == artifacts.c.search_task_id)
    .outerjoin(_superseding, _superseding.c.id == artifacts.c.superseded_by)
)


@dataclass(frozen=True, slots=True)
class Known:
    """A library's row, with the numbers of what it refers to."""

    number: int
    workload_id: int
    target_id: int
    position: int
    library: LibraryRow

    @property
    def comparison(self) -> Comparison | None:
        data = self.library.comparison
        with reading(f"the comparison of library {self.library.digest}"):
            return None if data is None else Comparison.from_json(data)


def known_rows(connection: Connection, query: Select[tuple[object, ...]]) -> list[Known]:
    """What ``query``, made from ROWS, finds, in its order."""
    return known_of(connection, connection.execute(query).all())


def known_of(connection: Connection, rows: Sequence[Any]) -> list[Known]:
    """The libraries that can be read, with their aliases."""
    names = _aliases(connection, [row.id for row in rows])
    return list(readable("library", lambda row: _known(row, names.get(row.id, ())), rows))


def _known(row: AnyRow, aliases: Sequence[str]) -> Known:
    library = LibraryRow(
        digest=row.digest,
        workload_key=row.key,
        target_fingerprint=row.fingerprint,
        threads=row.threads,
        cache=Cache(row.cache),
        job_id=row.job_id,
        created_at=row.created_at,
        ranges=_ranges(row),
        protocol=row.protocol,
        superseded_by=row.superseding,
        comparison=None if isinstance(row.comparison, Unreadable) else row.comparison,
        wrong_kernel=row.wrong_kernel,
        aliases=tuple(aliases),
    )
    return Known(row.id, row.workload_id, row.target_id, row.position, library)


def _ranges(row: AnyRow) -> Ranges:
    with reading(f"the ranges of library {row.digest}", row.ranges):
        if row.ranges is None:
            return symbol_bounds(stored_task(row.task))
        return {name: span_from_json(span) for name, span in row.ranges.items()}


def _aliases(connection: Connection, numbers: Sequence[int]) -> Mapping[int, Sequence[str]]:
    alias = library_aliases.c
    named = select(alias.artifact_id, alias.name).where(alias.artifact_id.in_(numbers)).order_by(alias.name)
    result: dict[int, list[str]] = defaultdict(list)
    for row in connection.execute(named) if numbers else ():
        result[row.artifact_id].append(row.name)
    return result


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
    """The newest other library of that digest for the same workload, target, number of threads and caches."""
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
        artifacts.c.cache == like.library.cache,
        artifacts.c.digest == digest,
        artifacts.c.id != like.number,
    )


def _change(connection: Connection, saved: Known, **values: object) -> None:
    connection.execute(update(artifacts).where(artifacts.c.id == saved.number).values(**values))
