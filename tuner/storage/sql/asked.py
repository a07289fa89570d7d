"""Questions as a table: one statement answers all of them, and is the same text for any number.

Lookups are what a service is asked most, so their statements are compiled to text once and run as they are.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from itertools import starmap
from typing import Any

from sqlalchemy import Connection, Integer, Select, Subquery, Text, column, text

from tuner.storage.sql._rows import AnyRow
from tuner.storage.sql.columns import safe_text

COLUMNS = ("workload", "target", "threads", "job", "instance", "kernel")
PARAMETER = "__asked__"
"""Stands for the questions until the statement is compiled."""

_SQLITE = f"""
SELECT CAST(each.key AS INTEGER) AS n, json_extract(each.value, '$[0]') AS workload,
  json_extract(each.value, '$[1]') AS target, json_extract(each.value, '$[2]') AS threads,
  json_extract(each.value, '$[3]') AS job, json_extract(each.value, '$[4]') AS instance,
  json_extract(each.value, '$[5]') AS kernel
FROM json_each({PARAMETER}) AS each
"""
_POSTGRESQL = f"""
SELECT CAST(each.place - 1 AS integer) AS n, each.value ->> 0 AS workload, each.value ->> 1 AS target,
  CAST(each.value ->> 2 AS integer) AS threads, each.value ->> 3 AS job, each.value ->> 4 AS instance,
  each.value ->> 5 AS kernel
FROM jsonb_array_elements(CAST({PARAMETER} AS jsonb)) WITH ORDINALITY AS each(value, place)
"""


class Asking:
    """A statement over a table of questions, whose columns are ``n``, their number from 0, and COLUMNS.

    ``build`` makes it. Its results are plain numbers and texts: no column is translated.
    """

    def __init__(self, build: Callable[[Subquery], Select[Any]]) -> None:
        self._build = build
        self._compiled: dict[str, str] = {}

    def rows(self, connection: Connection, questions: Sequence[Sequence[str | int | None]]) -> Sequence[AnyRow]:
        """What the statement finds for the questions: COLUMNS of each, those at the end may be left out."""
        kind = connection.dialect.name
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(connection)
        asked = json.dumps([[safe_text(each) if isinstance(each, str) else each for each in row] for row in questions])
        parameters: Any = (asked,) if kind == "sqlite" else {"asked": asked}
        try:
            return _rows(connection, self._compiled[kind], parameters)
        except Exception:
            # Once more by the longer way, which says what the database's own errors mean.
            return connection.exec_driver_sql(self._compiled[kind], parameters).all()

    def _compile(self, connection: Connection) -> str:
        is_sqlite = connection.dialect.name == "sqlite"
        kinds = {"n": Integer(), "threads": Integer()}
        columns = [column(name, kinds.get(name, Text())) for name in ("n", *COLUMNS)]
        asked = text(_SQLITE if is_sqlite else _POSTGRESQL).columns(*columns).subquery("asked")
        statement = self._build(asked).compile(connection, compile_kwargs={"literal_binds": True})
        return str(statement).replace(PARAMETER, "?" if is_sqlite else "%(asked)s")


def _rows(connection: Connection, statement: str, parameters: Any) -> list[Any]:
    """By the driver itself: what SQLAlchemy does beyond that takes longer than these statements."""
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(statement, parameters)
        return list(starmap(_row_type(tuple(column[0] for column in cursor.description)), cursor.fetchall()))


@cache
def _row_type(names: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple("Row", names)
