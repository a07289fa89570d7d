"""Connections: the supported databases, how each is set up, and what their errors mean."""

from __future__ import annotations

import select
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    InternalError,
    InvalidatePoolError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tuner.errors import InvalidInput
from tuner.storage.errors import StorageUnavailable
from tuner.storage.sql.columns import decoded, to_json

BUSY_S = 30
"""How long a SQLite connection waits for another's write to end, unless its URL says ``?timeout=``."""
LOCKED_S = 0.01
"""The pause before a file is tried again whose lock SQLite does not wait for."""
SQLITE_OPTIONS = frozenset({"timeout", "cached_statements", "check_same_thread", "detect_types", "isolation_level"})
"""What the URL of a SQLite file may have behind ``?``."""
CONNECT_S = 5
POOL_S = 10
"""How long a thread waits for a connection when all are in use."""
SQLITE_CONNECTIONS, POSTGRESQL_CONNECTIONS = 50, 10
"""Connections that one process keeps, opened as they are needed. A new one has to read the schema and fill its page
cache: one for each request takes several times as long as the request. A PostgreSQL server has a hundred for all, so
there some more are opened for as long as they are needed."""
POSTGRESQL_LIMITS = (
    "-c statement_timeout=30s -c lock_timeout=20s -c idle_in_transaction_session_timeout=60s -c timezone=UTC"
)
LONG = "15min"
"""What a statement may take that reads, or changes, a whole table."""
UPGRADE = "run `shapewright db upgrade`"

_FORM = "sqlite:///path/to/file.db or postgresql://user@host:5432/name"


class Database:
    """An engine and its two ways in: a transaction that reads, and one that writes.

    Both raise StorageUnavailable for errors of the database itself; all others pass through.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writing = engine.execution_options(immediate=True)
        # Each statement has a view of its own there in any case: without BEGIN and ROLLBACK a read is one round trip.
        postgresql = engine.dialect.name == "postgresql"
        self._reading = engine.execution_options(isolation_level="AUTOCOMMIT") if postgresql else engine
        self._thread = threading.local()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view on SQLite; on PostgreSQL each statement sees what was committed before it."""
        shared: Connection | None = getattr(self._thread, "connection", None)
        with self.translated():
            if shared is not None:
                yield shared
            else:
                with self._reading.connect() as connection:
                    yield connection

    @contextmanager
    def long_read(self) -> Iterator[Connection]:
        """``read`` for statements that look at every record."""
        # A transaction also on PostgreSQL, whose setting lasts no longer than one.
        with self.translated(), self.engine.connect() as connection:
            allow_long(connection)
            yield connection

    @contextmanager
    def one_view(self) -> Iterator[None]:
        """Whatever this thread reads inside is read on one connection, as by one ``read``."""
        with self.read() as connection:
            outer = getattr(self._thread, "connection", None)
            self._thread.connection = connection
            try:
                yield
            finally:
                self._thread.connection = outer

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Committed at the end, rolled back if the body raises. On SQLite the only writer, from the first statement."""
        with self.translated(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raises StorageUnavailable for errors of the database itself."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            reason = _outage(error, self.engine.url)
            if reason is None:
                raise
            raise StorageUnavailable(f"database {self.engine.url}: {reason}") from error


def allow_long(connection: Connection) -> None:
    """Let each statement of this transaction take LONG, where there is a limit."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{LONG}'")


def connect(text: str) -> Database:
    """A database by its URL; nothing is opened yet. Raises InvalidInput on field ``database_url``."""
    url = parse_url(text)
    try:
        engine = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)
    except ValueError as error:
        raise InvalidInput("database_url", f"has an option that will not do: {error}", _FORM) from None
    return Database(engine)


def parse_url(text: str) -> URL:
    """``text`` as a URL with the driver filled in."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # The latter for a port that is no number.
        raise InvalidInput("database_url", "is not a URL", _FORM) from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidInput("database_url", f"{url.drivername} is not supported", _FORM)
    if url.database in (None, "", ":memory:") or "mode" in url.query:
        raise InvalidInput("database_url", "names no file; several processes share the database", _FORM)
    if unknown := sorted(set(url.query) - SQLITE_OPTIONS):
        known = ", ".join(sorted(SQLITE_OPTIONS))
        raise InvalidInput("database_url", f"has an option {unknown[0]!r}", f"one of: {known}")
    return url


def _sqlite(url: URL) -> Engine:
    engine = create_engine(
        url,
        json_serializer=to_json,
        json_deserializer=decoded,
        connect_args={} if "timeout" in url.query else {"timeout": BUSY_S},
        pool_size=SQLITE_CONNECTIONS,
        max_overflow=0,
        pool_timeout=POOL_S,
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(dbapi_connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself: _begin_sqlite does, and says which kind.
    dbapi_connection.isolation_level = None
    # The driver's own decoding raises for a byte that is no UTF-8, and with it all rows of the statement are lost.
    dbapi_connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    cursor = dbapi_connection.cursor()
    _write_ahead(cursor)
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _write_ahead(cursor: Any) -> None:
    """Have the file's journal be a log that is written ahead, so that readers and a writer do not wait for one another.

    Of several connections that open a new file at once one changes it. SQLite tells the others at once that the file is
    locked, whatever timeout they have.
    """
    until_s = time.monotonic() + cursor.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    while True:
        try:
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(LOCKED_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once if another has written in between, however long
    # its timeout; with the write lock taken at the start it waits.
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _postgresql(url: URL) -> Engine:
    # The URL's own settings come last, and so win.
    options = " ".join([POSTGRESQL_LIMITS, *url.normalized_query.get("options", ())])
    limits = {"connect_timeout": CONNECT_S, "tcp_user_timeout": 20_000, "application_name": "shapewright"}
    engine = create_engine(
        url,
        json_serializer=to_json,
        json_deserializer=decoded,
        connect_args={**{k: v for k, v in limits.items() if k not in url.query}, "options": options},
        pool_size=POSTGRESQL_CONNECTIONS,
        max_overflow=POSTGRESQL_CONNECTIONS,
        pool_timeout=POOL_S,
    )
    event.listen(engine, "checkout", partial(_check_open, engine.dialect))
    return engine


def _check_open(dialect: Dialect, dbapi_connection: Any, _record: object, _proxy: object) -> None:
    """Have a connection replaced that the server has closed since its last use, and all older ones with it.

    A server has nothing to say to a connection without a statement, except that it is closed: only then is it asked.
    The pool's own check asks every time, which costs a round trip.
    """
    said = select.poll()
    try:
        said.register(dbapi_connection.fileno(), select.POLLIN)
        if said.poll(0):
            dialect.do_ping(dbapi_connection)
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


def _outage(error: DBAPIError | PoolTimeout, url: URL) -> str | None:
    """Why the database is unavailable and what to do about it; None if the statement itself was wrong."""
    if isinstance(error, PoolTimeout):
        return f"no free connection within {POOL_S} s; try again later"
    text = str(error.orig).strip().split("\n")[0]
    if _is_out_of_step(error, text):
        return f"its schema is not the one this version wants ({text}); {UPGRADE}"
    if isinstance(error, ProgrammingError) and error.statement is None:
        # Before there was any statement: the driver refuses an option of the URL.
        return f"{text}; make sure that the URL is right"
    passing = type(error) is DatabaseError or isinstance(error, OperationalError | InterfaceError | InternalError)
    return f"{text}; {_remedy(text, url)}" if passing else None


def _is_out_of_step(error: DBAPIError, text: str) -> bool:
    # psycopg: UndefinedTable, UndefinedColumn. SQLite has no codes for these.
    state = getattr(error.orig, "sqlstate", None)
    missing = state in ("42P01", "42703") and isinstance(error, ProgrammingError)
    return missing or text.startswith(("no such table", "no such column")) or "has no column named" in text


def _remedy(text: str, url: URL) -> str:
    if text == "unable to open database file":
        return f"make sure that the directory {Path(url.database or '.').absolute().parent} exists and is writable"
    if "locked" in text or "timeout" in text:
        return "another connection holds it; try again later"
    if url.get_backend_name() == "sqlite":
        return "make sure that the file is a database, can be written to, and that the disk has room"
    return "make sure that the server runs and that the URL is right, then try again"
