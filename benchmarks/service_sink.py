"""A database that rows are written to in bulk: by COPY, or in one transaction of SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg


class Sink(Protocol):
    """Takes rows in bulk."""

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None: ...

    def run(self, statement: str) -> list[tuple[Any, ...]]: ...


def is_postgresql(url: str) -> bool:
    return url.startswith("postgres")


@contextmanager
def opened(url: str) -> Iterator[Sink]:
    """One transaction."""
    if url.startswith("sqlite:///"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        try:
            with connection:
                yield _Sqlite(connection)
        finally:
            connection.close()
    else:
        with psycopg.connect(url) as server:
            yield _Postgresql(server)


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement).fetchall()


class _Postgresql:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def copy(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with self._connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement)
        return cursor.fetchall() if cursor.description else []
