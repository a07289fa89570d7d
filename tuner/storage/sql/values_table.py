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

COLUMNS = ("workload", "target", "threads", "cache", "protocol", "job", "instance", "kernel")
INTEGERS = ("threads", "number")
PARAMETER = "__asked__"
"""Stands for the questions until the statement is compiled."""


class Asking:
    """A statement over a table of questions, whose columns are ``n``, their number from 0, and ``columns``.

    ``build`` makes it. Its results are plain numbers and texts: no column is translated.
    """

    def __init__(self, build: Callable[[Subquery], Select[Any]], columns: Sequence[str] = COLUMNS) -> None:
        self._build = build
        self._columns = columns
        self._compiled: dict[str, str] = {}

    def rows(self, connection: Connection, questions: Sequence[Sequence[str | int | None]]) -> Sequence[AnyRow]:
        """The rows that the statement finds for the queries: the columns of each, those at the end may be left out."""
        kind = connection.dialect.name
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(connection)
        asked = json.dumps([[safe_text(each) if isinstance(each, str) else each for each in row] for row in questions])
        parameters: Any = (asked,) if kind == "sqlite" else {"asked": asked}
        if not connection.in_transaction():
            # What SQLAlchemy does before its own statements: on SQLite several of them have one view.
            connection.begin()
        try:
            return _rows(connection, self._compiled[kind], parameters)
        except connection.dialect.loaded_dbapi.Error:
            # Once more by the longer way, which says what the database's own errors mean.
            return connection.exec_driver_sql(self._compiled[kind], parameters).all()

    def _compile(self, connection: Connection) -> str:
        is_sqlite = connection.dialect.name == "sqlite"
        kinds = dict.fromkeys(("n", *INTEGERS), Integer())
        columns = [column(name, kinds.get(name, Text())) for name in ("n", *self._columns)]
        table = (_sqlite if is_sqlite else _postgresql)(self._columns)
        asked = text(table).columns(*columns).subquery("asked")
        statement = self._build(asked).compile(connection, compile_kwargs={"literal_binds": True})
        return str(statement).replace(PARAMETER, "?" if is_sqlite else "%(asked)s")


def _sqlite(columns: Sequence[str]) -> str:
    values = [f"json_extract(each.value, '$[{i}]') AS {name}" for i, name in enumerate(columns)]
    return f"SELECT CAST(each.key AS INTEGER) AS n, {', '.join(values)} FROM json_each({PARAMETER}) AS each"


def _postgresql(columns: Sequence[str]) -> str:
    numbered = enumerate(columns)
    texts = [(f"each.value ->> {i}", name) for i, name in numbered]
    values = [f"CAST({text} AS integer) AS {name}" if name in INTEGERS else f"{text} AS {name}" for text, name in texts]
    table = f"jsonb_array_elements(CAST({PARAMETER} AS jsonb)) WITH ORDINALITY AS each(value, place)"
    return f"SELECT CAST(each.place - 1 AS integer) AS n, {', '.join(values)} FROM {table}"


def _rows(connection: Connection, statement: str, parameters: Any) -> list[Any]:
    """The rows as the driver itself gives them: what SQLAlchemy does beyond that takes longer than these statements."""
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(statement, parameters)
        return list(starmap(_row_type(tuple(column[0] for column in cursor.description)), cursor.fetchall()))


@cache
def _row_type(names: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple("Row", names)
