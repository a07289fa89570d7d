"""Workloads by what they compute, records by the values of their symbols, and theory as a phase of its own.

``16*T``, ``8*S`` and ``T`` in the same place were workloads of their own and become one, called by the digest of its
canonical form; what referred to any of them refers to the oldest. A record's instance was the values of a job's shape
variables (``T=37``) and becomes those of the workload's symbols (``m=592``). Trials of round 0 were those of the
library of theory; they get the phase that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

from migrations.canonical_workloads import OldWorkload, parsed

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BATCH = 100
"""Workloads that are held at a time. Records are changed where they stand, a workload's in one statement."""

workloads = sa.table("workloads", sa.column("id"), sa.column("key"), sa.column("workload", sa.JSON))
records = sa.table(
    "tuning_records",
    *map(sa.column, ("id", "search_task_id", "workload_id", "kernel_id", "instance", "attempt", "round", "phase")),
)
instances = sa.table("renamed_instances", sa.column("old"), sa.column("new"))


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        # A worker that still runs must not add a record of the old form behind the statement that renames them.
        tables = "workloads, search_tasks, tuning_records, artifacts"
        connection.execute(sa.text(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE"))
    names = (sa.Column("old", sa.Text, primary_key=True), sa.Column("new", sa.Text, nullable=False))
    op.create_table("renamed_instances", *names, prefixes=["TEMPORARY"])
    oldest: dict[str, int] = {}
    # In the order of their ids: the one that is kept comes before those that become one with it.
    for row in _every_workload(connection):
        found = OldWorkload.of(row.workload)
        kept = oldest.setdefault(found.key, row.id)
        _move_records(connection, row.id, kept, _instances_of(connection, row.id, found))
        if kept == row.id:
            values = {"key": found.key, "workload": {**found.canonical, "label": found.label}}
            connection.execute(sa.update(workloads).where(workloads.c.id == row.id).values(values))
        else:
            _merge(connection, row.id, kept)
    op.drop_table("renamed_instances")


def _every_workload(connection: sa.Connection) -> Iterator[Any]:
    query = sa.select(workloads.c.id, workloads.c.workload).order_by(workloads.c.id).limit(BATCH)
    rows = connection.execute(query).all()
    while rows:
        yield from rows
        rows = connection.execute(query.where(workloads.c.id > rows[-1].id)).all()


def _instances_of(connection: sa.Connection, workload_id: int, workload: OldWorkload) -> dict[str, str]:
    """Of the workload's records: what each instance was called -> what it will be."""
    query = sa.select(records.c.instance).where(records.c.workload_id == workload_id).distinct()
    return {old: _renamed(workload, old) for old in connection.scalars(query)}


def _renamed(workload: OldWorkload, instance: str) -> str:
    """An instance that does not fit the workload's variables cannot be of its searches: it stays as it is."""
    try:
        return workload.instance(parsed(instance))
    except (KeyError, ValueError):
        return instance


def _move_records(connection: sa.Connection, workload_id: int, kept: int, names: Mapping[str, str]) -> None:
    """Rename the instances of a workload's records, and give them to the workload that is kept.

    Two instances may become one (of ``T//2``), or one take a name that another still has (``m=2`` becomes ``m=4``). The
    attempts of such a workload are counted anew, and are negative meanwhile: no two rows are ever alike.
    """
    if not names:
        return
    connection.execute(sa.delete(instances))
    connection.execute(sa.insert(instances), [{"old": old, "new": new} for old, new in names.items()])
    own = records.c.workload_id == workload_id
    new = sa.select(instances.c.new).where(instances.c.old == records.c.instance).scalar_subquery()
    theory = sa.and_(records.c.phase == "search", records.c.round == 0)
    values = {"instance": new, "phase": sa.case((theory, "theory"), else_=records.c.phase)}
    taken = any(new in names for old, new in names.items() if new != old)
    if not taken and len(set(names.values())) == len(names):
        connection.execute(sa.update(records).where(own).values({**values, "workload_id": kept}))
        return
    same = (records.c.search_task_id, records.c.kernel_id, instances.c.new)
    count = sa.func.row_number().over(partition_by=same, order_by=records.c.id)
    joined = records.join(instances, instances.c.old == records.c.instance)
    counted = sa.select(records.c.id, count.label("number")).select_from(joined).where(own).subquery()
    renamed = sa.update(records).where(own, records.c.id == counted.c.id)
    connection.execute(renamed.values({**values, "attempt": -counted.c.number}))
    connection.execute(sa.update(records).where(own).values(attempt=-1 - records.c.attempt, workload_id=kept))


def _merge(connection: sa.Connection, workload_id: int, kept: int) -> None:
    for name in ("search_tasks", "artifacts"):
        table = sa.table(name, sa.column("workload_id"))
        connection.execute(sa.update(table).where(table.c.workload_id == workload_id).values(workload_id=kept))
    connection.execute(sa.delete(workloads).where(workloads.c.id == workload_id))
