"""How many records there are of a workload on a target: counted as they are stored, never by reading them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Executable, bindparam
from sqlalchemy.dialects import postgresql, sqlite

from tuner.storage.sql.schema import record_counts


def count_records(connection: Connection, workload_id: int, target_id: int, added: int) -> None:
    """Note that this transaction has added as many records (removed them, if negative).

    Whatever inserts or deletes rows of tuning_records calls this in the same transaction.
    """
    if added:
        values = {"workload": workload_id, "target": target_id, "added": added}
        connection.execute(_counting(connection.dialect.name), values)


def count_each(connection: Connection, rows: Iterable[Any], each: int = 1) -> None:
    """``count_records`` for rows with a ``workload_id`` and a ``target_id``, of any number of workloads and targets."""
    counted = Counter((row.workload_id, row.target_id) for row in rows)
    # In one order, as whatever several transactions update.
    for (workload_id, target_id), count in sorted(counted.items()):
        count_records(connection, workload_id, target_id, each * count)


@cache
def _counting(dialect: str) -> Executable:
    make = sqlite.insert if dialect == "sqlite" else postgresql.insert
    table = record_counts
    first = make(table).values(
        workload_id=bindparam("workload"), target_id=bindparam("target"), records=bindparam("added", type_=BigInteger)
    )
    return first.inline().on_conflict_do_update(
        index_elements=[table.c.workload_id, table.c.target_id],
        set_={"records": table.c.records + first.excluded.records},
    )
