"""SQL that is compiled once in a process, for all databases of a kind: most of what a test of the storage does is that.

Each opened storage has a cache of its own, which is empty for each test. In a service it lives as long as the process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Dialect, Engine, Table, create_engine

from tuner.storage.sql import _rows, engine

MOST = 3_000
"""Of one kind of database. The statements of the storage are some hundreds; those with lists of values are more."""
_Key = tuple[Any, ...]


class Statements(dict[_Key, Any]):
    """A cache for SQLAlchemy's option ``compiled_cache``, in which dialects of one name are one: all of them are made
    with the same options."""

    def get(self, key: _Key, default: Any = None) -> Any:
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: _Key, compiled: Any) -> None:
        if len(self) >= MOST:
            self.clear()
        super().__setitem__(_of_kind(key), compiled)


def _of_kind(key: _Key) -> _Key:
    dialect, *rest = key
    assert isinstance(dialect, Dialect)
    return (dialect.name, *rest)


_STATEMENTS = Statements()


def engine_that_shares(url: Any, **options: Any) -> Engine:
    """``create_engine``, for engines that share what they have compiled."""
    return create_engine(url, execution_options={"compiled_cache": _STATEMENTS}, **options)


set_up_as_served = engine._set_up_sqlite


def set_up_unhurriedly(connection: Any, record: object) -> None:
    """What the storage sets up on each connection of SQLite, but for the wait for the disk at each commit: the files of
    a test outlive no power cut."""
    set_up_as_served(connection, record)
    connection.execute("PRAGMA synchronous = OFF")


_dialects: dict[str, Dialect] = {}


@cache
def _insertion(kind: str, table: Table, names: tuple[str, ...]) -> Any:
    return _rows._Insertion(_dialects[kind], table, names)


def insertion_that_shares(dialect: Dialect, table: Table, names: tuple[str, ...]) -> Any:
    """What the storage keeps for each dialect, for each name of one."""
    _dialects.setdefault(dialect.name, dialect)
    return _insertion(dialect.name, table, names)
