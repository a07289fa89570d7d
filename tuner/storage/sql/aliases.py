"""Names of libraries: given by hand or by a rule, with a history, and taken back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, insert, select, update

from tuner.errors import InvalidInput, shown
from tuner.library.choice import covers
from tuner.program.job.cache import Cache
from tuner.storage.errors import Conflict, NotFound
from tuner.storage.jobs import Page
from tuner.storage.libraries import Action, Alias, AliasQuery, Promotion, PromotionOrder
from tuner.storage.sql import cursors
from tuner.storage.sql._rows import AnyRow, Part, insert_new
from tuner.storage.sql.audit import WORKER, audit
from tuner.storage.sql.columns import now
from tuner.storage.sql.library_rows import ROWS, Known, known_rows, newest_of
from tuner.storage.sql.schema import alias_history, artifacts, library_aliases, targets, workloads

MAX_ALIASES = 64
"""Aliases of one workload on one target with one number of threads, for one state of the caches."""
MAX_REASON = 500
MAX_PERCENT = 10_000.0
MAX_CHAIN = 32
"""Comparisons that are followed from a new library to the one that an alias names."""
RULE = "rule"
"""Who promoted a library that a rule promoted."""

PLACE = ("workload_id", "target_id", "threads", "cache", "name")
"""The columns that tell an alias from others."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_alias = library_aliases.c
_entry = alias_history.c
_given, _before = artifacts.alias("given"), artifacts.alias("before")

_ALIASES = (
    select(library_aliases)
    .join(workloads, workloads.c.id == _alias.workload_id)
    .join(targets, targets.c.id == _alias.target_id)
)
_HISTORY = (
    select(alias_history, targets.c.fingerprint, _given.c.digest, _before.c.digest.label("previous"))
    .join(workloads, workloads.c.id == _entry.workload_id)
    .join(targets, targets.c.id == _entry.target_id)
    .outerjoin(_given, _given.c.id == _entry.artifact_id)
    .outerjoin(_before, _before.c.id == _entry.previous_id)
)


class Aliases(Part):
    def promote(self, query: AliasQuery, digest: str, order: PromotionOrder) -> Alias:
        """Give the name to the newest library of that digest. What is so already changes nothing but the rule.

        Raises NotFound, Conflict for a library that was withdrawn, and InvalidInput on fields ``alias``, ``reason``,
        ``at_least_percent``.
        """
        name = _checked(query.name, order)
        with self._database.write() as connection:
            library = _library(connection, query, digest)
            place = _place(library_aliases, {**_scope_of(library), "name": name})
            is_new = _claim(connection, library, name)
            present = connection.execute(select(library_aliases).where(place).with_for_update()).one()
            if is_new or _digest(connection, present.artifact_id) != digest:
                previous = None if is_new else present.artifact_id
                _move(connection, present, library.number, previous, Action.PROMOTED, order)
            else:
                rule = update(library_aliases).where(place)
                connection.execute(rule.values(at_least_percent=order.at_least_percent))
            return _aliases(connection, _ALIASES.where(place))[0]

    def roll_back(self, query: AliasQuery, order: PromotionOrder) -> Alias:
        """Give the name back to the library that had it before; again, to the one before that.

        The rule ends, so that what was taken back does not come again by itself. Raises NotFound, and Conflict where
        nothing stood before, or where the query fits aliases on several targets.
        """
        _checked(query.name, order)
        with self._database.write() as connection:
            result = _ALIASES.where(*_fits(library_aliases, query)).with_for_update(of=library_aliases)
            rows = connection.execute(result).all()
            if not rows:
                raise NotFound(f"no library for workload {query.workload_key!r} is called {query.name!r}")
            if len(rows) > 1:
                remedy = "give the target, the number of threads and the state of the caches"
                raise Conflict(f"{query.name!r} names {len(rows)} libraries: {remedy}")
            before = _stood_before(connection, rows[0])
            if before is None:
                raise Conflict(f"no other library of workload {query.workload_key!r} was called {query.name!r} before")
            _move(connection, rows[0], before, rows[0].artifact_id, Action.ROLLED_BACK, order)
            return _aliases(connection, _ALIASES.where(_same_place(library_aliases, rows[0])))[0]

    def list_aliases(self, query: AliasQuery) -> tuple[Alias, ...]:
        """Aliases in order of target, threads, caches and name."""
        with self._database.read() as connection:
            return tuple(_aliases(connection, _ALIASES.where(*_fits(library_aliases, query))))

    def list_promotions(self, query: AliasQuery, cursor: str | None = None, limit: int = 50) -> Page[Promotion]:
        """The history of aliases, newest first."""
        rows = _HISTORY.where(*_fits(alias_history, query)).order_by(_entry.id.desc())
        if (before := cursors.decode("promotions", cursor)) is not None:
            rows = rows.where(_entry.id < before)
        with self._database.read() as connection:
            result = connection.execute(rows.limit(cursors.checked(limit) + 1)).all()
        return cursors.page("promotions", result, limit, lambda row: int(row.id), _promotion_of)


def promote_by_rule(connection: Connection, saved: Known) -> list[str]:
    """Give a new library, compared and better than what was served, the names whose rule it fulfils; these names.

    A rule asks how much faster it is than the library that the name stands for, as far as comparisons lead there.
    """
    ruled = select(library_aliases).where(
        _alias.workload_id == saved.workload_id,
        _alias.target_id == saved.target_id,
        _alias.threads == saved.library.threads,
        _alias.cache == saved.library.cache,
        _alias.at_least_percent.is_not(None),
    )
    promoted = []
    for row in connection.execute(ruled.order_by(_alias.name).with_for_update()).all():
        present = next(iter(known_rows(connection, ROWS.where(artifacts.c.id == row.artifact_id))), None)
        gain = _verified_gain(connection, saved, present) if present else None
        if present is None or gain is None or not covers(saved.library.ranges, present.library.ranges):
            continue
        percent = 100 * (gain - 1)
        if percent >= row.at_least_percent:
            reason = f"{percent:.1f} % faster, verified; the rule asks for {row.at_least_percent:g} %"
            order = PromotionOrder(RULE, reason, row.at_least_percent, WORKER)
            _move(connection, row, saved.number, present.number, Action.BY_RULE, order)
            promoted.append(str(row.name))
    return promoted


def _verified_gain(connection: Connection, saved: Known, present: Known) -> float | None:
    """How many times as fast as the present library a new one is, by comparisons that were verified and hold together.

    None where they do not lead there, or where what they add up to is within their noise.
    """
    gain, noise, current = 1.0, 0.0, saved
    for _ in range(MAX_CHAIN):
        comparison = current.comparison
        if comparison is None or not comparison.verified:
            return None
        gain, noise = gain * comparison.ratio, noise + comparison.noise
        if comparison.against == present.library.digest:
            return gain if gain > 1 + noise else None
        earlier = newest_of(connection, current, comparison.against)
        if earlier is None:
            return None
        current = earlier
    return None


def _checked(name: str | None, order: PromotionOrder) -> str:
    """The name. Raises InvalidInput."""
    if name is None or not _NAME.fullmatch(name):
        remedy = "1 to 64 of a-z, 0-9, - . and _, a letter or a digit first, as in production"
        raise InvalidInput("alias", f"{shown(name)} is not a name", remedy)
    if len(order.reason) > MAX_REASON:
        raise InvalidInput("reason", f"{len(order.reason)} characters", f"at most {MAX_REASON}")
    percent = order.at_least_percent
    if percent is not None and not 0 <= percent <= MAX_PERCENT:
        raise InvalidInput("at_least_percent", f"{shown(percent)} is no gain", f"from 0 to {MAX_PERCENT:g}")
    return name


def _library(connection: Connection, query: AliasQuery, digest: str) -> Known:
    wanted = (workloads.c.key == query.workload_key, artifacts.c.digest == digest)
    place = _on(artifacts, query)
    rows = known_rows(connection, ROWS.where(*wanted, *place).order_by(artifacts.c.id.desc()).limit(1))
    if not rows:
        raise NotFound(f"no library for workload {query.workload_key!r}, digest {digest!r}")
    if (wrong := rows[0].library.wrong_kernel) is not None:
        raise Conflict(f"library {digest!r} was withdrawn: its kernel {wrong} was found wrong or crashed")
    return rows[0]


def _claim(connection: Connection, library: Known, name: str) -> bool:
    """Make sure that there is a row of that name; whether it is new. Raises InvalidInput."""
    row = _scope_of(library)
    taken = select(_alias.name).where(*(library_aliases.c[column] == value for column, value in row.items()))
    names = set(connection.scalars(taken))
    if name not in names and len(names) >= MAX_ALIASES:
        raise InvalidInput("alias", f"there are {len(names)} names already", f"at most {MAX_ALIASES}: use one of them")
    facts = {"name": name, "artifact_id": library.number, "promoted_by": "", "reason": ""}
    return insert_new(connection, library_aliases, [row | facts]) == 1


def _move(
    connection: Connection, row: AnyRow, number: int, previous: int | None, action: Action, order: PromotionOrder
) -> None:
    """Let an alias (its row, locked) name the library ``number``, and write it down. A roll-back ends the rule."""
    percent = None if action is Action.ROLLED_BACK else order.at_least_percent
    facts = {"artifact_id": number, "promoted_by": order.by, "reason": order.reason, "at_least_percent": percent}
    connection.execute(
        update(library_aliases).where(_same_place(library_aliases, row)).values(promoted_at=now(), **facts)
    )
    place = {name: getattr(row, name) for name in PLACE}
    said = {"action": action.value, "by": order.by, "reason": order.reason}
    connection.execute(insert(alias_history).values(artifact_id=number, previous_id=previous, **place, **said))
    digest = _digest(connection, number)
    audit(connection, order.actor, f"alias.{action.value}", row.name, {"digest": digest, "reason": order.reason})


def _stood_before(connection: Connection, row: AnyRow) -> int | None:
    """The library that an alias named before the present one, by its history; deleted ones are passed over."""
    entries = select(_entry.action, _entry.artifact_id).where(_same_place(alias_history, row)).order_by(_entry.id)
    stood: list[int] = []
    for action, number in connection.execute(entries):
        if action == Action.ROLLED_BACK:
            while stood and stood[-1] != number:
                stood.pop()
        elif number is not None:
            stood.append(number)
    while stood and stood[-1] == row.artifact_id:
        stood.pop()
    return stood[-1] if stood else None


def _digest(connection: Connection, number: int) -> str | None:
    return connection.scalar(select(artifacts.c.digest).where(artifacts.c.id == number))


def _aliases(connection: Connection, query: Select[Any]) -> list[Alias]:
    rows = connection.execute(query.order_by(_alias.target_id, _alias.threads, _alias.cache, _alias.name)).all()
    numbers = {row.artifact_id for row in rows}
    result = known_rows(connection, ROWS.where(artifacts.c.id.in_(numbers)))
    libraries = {known.number: known.library for known in result}
    return [
        Alias(
            name=row.name,
            library=libraries[row.artifact_id],
            promoted_at=row.promoted_at,
            promoted_by=row.promoted_by,
            reason=row.reason,
            at_least_percent=row.at_least_percent,
        )
        for row in rows
        if row.artifact_id in libraries
    ]


def _promotion_of(row: AnyRow) -> Promotion:
    return Promotion(
        name=row.name,
        target_fingerprint=row.fingerprint,
        threads=row.threads,
        cache=Cache(row.cache),
        action=Action(row.action),
        digest=row.digest,
        previous=row.previous,
        at=row.at,
        by=row.by,
        reason=row.reason,
    )


def _fits(table: FromClause, query: AliasQuery) -> list[ColumnElement[bool]]:
    """Conditions on a table with names, joined with workloads and targets."""
    conditions = [workloads.c.key == query.workload_key, *_on(table, query)]
    return conditions if query.name is None else [*conditions, table.c.name == query.name]


def _on(table: FromClause, query: AliasQuery) -> list[ColumnElement[bool]]:
    wanted = {
        targets.c.fingerprint: query.target_fingerprint,
        table.c.threads: query.threads,
        table.c.cache: query.cache,
    }
    return [column == value for column, value in wanted.items() if value is not None]


def _same_place(table: FromClause, row: AnyRow) -> ColumnElement[bool]:
    return _place(table, {column: getattr(row, column) for column in PLACE})


def _place(table: FromClause, same: Mapping[str, object]) -> ColumnElement[bool]:
    return and_(*(table.c[column] == value for column, value in same.items()))


def _scope_of(library: Known) -> dict[str, object]:
    row = library.library
    return {
        "workload_id": library.workload_id,
        "target_id": library.target_id,
        "threads": row.threads,
        "cache": row.cache.value,
    }
