"""Which library is served: ranges, comparisons, aliases and their history.

Until now the newest library was served. It stays so for what is stored: of each workload, target and number of threads
every library whose range a newer one covers is superseded by that one. None is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.canonical_workloads import OldWorkload
from migrations.extent_bounds import bounds

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

BATCH = 100
"""Dispatch tables that are held at a time."""
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")

artifacts = sa.table(
    "artifacts",
    *map(sa.column, ("id", "search_task_id", "workload_id", "target_id", "threads", "protocol", "superseded_by")),
    sa.column("ranges", sa.JSON),
)
dispatchers = sa.table("dispatchers", sa.column("artifact_id"), sa.column("dispatch", sa.JSON))
search_tasks = sa.table("search_tasks", sa.column("id"), sa.column("task", sa.JSON))
library_kernels = sa.table("library_kernels", sa.column("artifact_id"), sa.column("kernel_id"))
records = sa.table("tuning_records", *map(sa.column, ("id", "search_task_id", "protocol")))

Ranges = Mapping[str, tuple[int, int]]


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        # A worker that still runs must not add a library behind the statements that compare them.
        connection.execute(sa.text("LOCK TABLE artifacts IN SHARE ROW EXCLUSIVE MODE"))
    op.add_column("artifacts", sa.Column("ranges", sa.JSON))
    op.add_column("artifacts", sa.Column("protocol", sa.Text))
    op.add_column("artifacts", sa.Column("comparison", sa.JSON))
    # SQLite adds a column together with its reference, but no constraint afterwards.
    superseded = sa.Column("superseded_by", BIG, sa.ForeignKey("artifacts.id", name="fk_artifacts_superseded_by"))
    op.add_column("artifacts", superseded, inline_references=True)
    op.create_index("ix_artifacts_superseded_by", "artifacts", ["superseded_by"])
    op.create_table(
        "library_kernels",
        sa.Column("artifact_id", BIG, nullable=False, autoincrement=False),
        sa.Column("kernel_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("artifact_id", "kernel_id", name="pk_library_kernels"),
        _foreign("library_kernels", "artifact_id", "artifacts.id"),
    )
    _create_aliases()
    _create_history()
    _fill(connection)


def _create_aliases() -> None:
    op.create_table(
        "library_aliases",
        sa.Column("workload_id", BIG, nullable=False, autoincrement=False),
        sa.Column("target_id", BIG, nullable=False, autoincrement=False),
        sa.Column("threads", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("artifact_id", BIG, nullable=False),
        sa.Column("promoted_at", INSTANT, nullable=False),
        sa.Column("promoted_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at_least_percent", sa.Double),
        sa.PrimaryKeyConstraint("workload_id", "target_id", "threads", "name", name="pk_library_aliases"),
        _foreign("library_aliases", "workload_id", "workloads.id"),
        _foreign("library_aliases", "target_id", "targets.id"),
        _foreign("library_aliases", "artifact_id", "artifacts.id"),
    )
    op.create_index("ix_library_aliases_artifact_id", "library_aliases", ["artifact_id"])


def _create_history() -> None:
    op.create_table(
        "alias_history",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("workload_id", BIG, nullable=False),
        sa.Column("target_id", BIG, nullable=False),
        sa.Column("threads", sa.Integer, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("artifact_id", BIG),
        sa.Column("previous_id", BIG),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alias_history"),
        _foreign("alias_history", "workload_id", "workloads.id"),
        _foreign("alias_history", "target_id", "targets.id"),
        _foreign("alias_history", "artifact_id", "artifacts.id"),
        _foreign("alias_history", "previous_id", "artifacts.id"),
    )
    for columns in (["artifact_id"], ["previous_id"], ["workload_id", "target_id", "threads", "name", "id"]):
        op.create_index(f"ix_alias_history_{'_'.join(columns)}", "alias_history", columns)


def _foreign(table: str, column: str, to: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [to], name=f"fk_{table}_{column}")


def _fill(connection: sa.Connection) -> None:
    """Newest first, so that what covers a library is known before it."""
    served: dict[tuple[int, int, int], list[tuple[int, Ranges]]] = {}
    for row in _newest_first(connection):
        ranges = _ranges(row.dispatch, row.task)
        newer = served.setdefault((row.workload_id, row.target_id, row.threads), [])
        covering = next((number for number, known in newer if ranges is not None and _covers(known, ranges)), None)
        if covering is None and ranges is not None:
            newer.append((row.id, ranges))
        values = {"ranges": ranges, "protocol": row.protocol, "superseded_by": covering}
        _name_kernels(connection, row.id, row.dispatch)
        known = {name: value for name, value in values.items() if value is not None}
        if known:
            connection.execute(sa.update(artifacts).where(artifacts.c.id == row.id).values(known))


def _name_kernels(connection: sa.Connection, number: int, dispatch: Mapping[str, Any]) -> None:
    """Which kernels a library has, where its table names them by the ids of today."""
    if dispatch.get("format") == 2:
        ids = {kernel["id"] for kernel in dispatch["kernels"]}
        if ids:
            rows = [{"artifact_id": number, "kernel_id": name} for name in sorted(ids)]
            connection.execute(sa.insert(library_kernels), rows)


def _newest_first(connection: sa.Connection) -> Iterator[Any]:
    newest = (
        sa.select(records.c.protocol)
        .where(records.c.search_task_id == artifacts.c.search_task_id)
        .order_by(records.c.id.desc())
        .limit(1)
    )
    chosen = [artifacts.c[name] for name in ("id", "workload_id", "target_id", "threads")]
    query = (
        sa.select(*chosen, dispatchers.c.dispatch, search_tasks.c.task, newest.scalar_subquery().label("protocol"))
        .join(dispatchers, dispatchers.c.artifact_id == artifacts.c.id)
        .join(search_tasks, search_tasks.c.id == artifacts.c.search_task_id)
        .order_by(artifacts.c.id.desc())
        .limit(BATCH)
    )
    rows = connection.execute(query).all()
    while rows:
        yield from rows
        rows = connection.execute(query.where(artifacts.c.id < rows[-1].id)).all()


def _ranges(dispatch: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, tuple[int, int]] | None:
    """From the dispatch table, which tells them by symbol; from the task where it is of release 0.1.

    None where neither tells: a library is never superseded for want of knowing.
    """
    try:
        if dispatch.get("format") == 2:
            return {name: (int(low), int(high)) for name, (low, high) in dispatch["bounds"].items()}
        symbols = OldWorkload.of(task["workload"]).symbols
        values = {name: _ends(given) for name, given in task["shape_vars"].items()}
        return {name: bounds(extent, values) for extent, name in symbols.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _ends(given: Mapping[str, Any]) -> tuple[int, int]:
    """Of a shape variable: ``{min, max}`` or ``{values}``."""
    values = given.get("values") or (given["min"], given["max"])
    return min(values), max(values)


def _covers(ranges: Ranges, other: Ranges) -> bool:
    return set(ranges) == set(other) and all(
        ranges[name][0] <= low and high <= ranges[name][1] for name, (low, high) in other.items()
    )
