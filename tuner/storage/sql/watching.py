"""Whether anything was committed: polled often by those who wait for news."""

from __future__ import annotations

from typing import Any

from tuner.storage.errors import StorageUnavailable
from tuner.storage.sql.engine import Database

# SQLite counts the commits of other connections. PostgreSQL's snapshot names the transactions that are visible: it is
# the same only while none has ended. Neither reads a table.
QUESTIONS = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_snapshot()::text"}


class Watch:
    """Implements ``tuner.storage.CommitWatch`` on a connection of its own, outside of the pool and any transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._question = QUESTIONS[database.engine.dialect.name]
        self._connection: Any = None
        self._seen: object = None

    def changed(self) -> bool:
        try:
            with self._database.translated():
                result = self._ask()
        except StorageUnavailable:
            self.close()
            raise
        before, self._seen = self._seen, result
        return result != before

    def close(self) -> None:
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            connection.close()

    def _ask(self) -> object:
        if self._connection is None:
            # Detached: it stays open as long as anyone waits, and must not be one of the few that requests share.
            connection: Any = self._database.engine.connect()
            connection.detach()
            self._connection = connection
            if connection.dialect.name == "postgresql":
                connection.connection.dbapi_connection.autocommit = True
        # The driver's own cursor: a transaction of SQLAlchemy's would see the same for as long as it lasts.
        cursor = self._connection.connection.cursor()
        try:
            cursor.execute(self._question)
            return cursor.fetchone()[0]
        except self._database.engine.dialect.loaded_dbapi.Error as error:
            raise StorageUnavailable(f"database {self._database.engine.url}: {error}") from error
        finally:
            cursor.close()
