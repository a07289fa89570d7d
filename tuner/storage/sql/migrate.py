"""Bring a database to the schema of this version, from an installed package too: no alembic.ini is needed."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, column, select, table, text

import migrations as revisions
from tuner.storage.errors import StorageUnavailable
from tuner.storage.sql.engine import UPGRADE, Database, allow_long, connect

NEWER = "this version of Shapewright is older than its database: update it on this machine"
REVISION = select(column("version_num")).select_from(table("alembic_version")).scalar_subquery()
"""The revision that the database is at, in a statement."""
_REVISION = select(REVISION)
ADVISORY_LOCK = 0x73776D6967
"""The number of an advisory lock: upgrades of one PostgreSQL database run one after the other."""


def upgrade(url: str, revision: str = "head") -> str:
    """Migrate the database upwards, creating it if it is a SQLite file; the revision it is at afterwards.

    All or nothing, and safe to call from several processes at once. Raises StorageUnavailable, InvalidInput.
    """
    database = connect(url)
    try:
        _upgrade(database, revision)
        return current(database) or "base"
    finally:
        database.engine.dispose()


def current(database: Database) -> str | None:
    """The revision that the database is at; None if it has no tables yet. Raises StorageUnavailable."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def check_schema(database: Database) -> None:
    """Raise StorageUnavailable unless the database has the schema of this version."""
    refuse_other(current(database), database.engine.url)


def check_schema_in(connection: Connection) -> None:
    """``check_schema`` in a transaction that is open: a worker of an earlier version changes nothing."""
    refuse_other(connection.scalar(_REVISION), connection.engine.url)


def refuse_other(revision: str | None, url: URL) -> None:
    """Raise StorageUnavailable unless the database at ``url`` is at the revision of this version."""
    wanted = head()
    if revision != wanted:
        remedy = UPGRADE if revision is None or revision in known() else NEWER
        raise StorageUnavailable(f"database {url}: its schema is {revision or 'empty'}, not {wanted}; {remedy}")


@cache
def known() -> frozenset[str]:
    """The revisions that this version can upgrade from."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(config()).walk_revisions())


@cache
def head() -> str:
    """The revision that this version wants."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    if revision is None:
        raise RuntimeError("the package was installed without its migrations; install it again")
    return revision


def config() -> Config:
    """The configuration of Alembic. Put a connection into ``attributes`` before a command that opens the database."""
    made = Config()
    made.set_main_option("script_location", str(files(revisions)).replace("%", "%%"))
    return made


def _upgrade(database: Database, revision: str) -> None:
    result = current(database)
    if result is not None and result not in known():
        refuse_other(result, database.engine.url)
    with database.write() as connection:
        if connection.dialect.name == "postgresql":
            # A large table may take longer to change than any other statement may.
            allow_long(connection)
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": ADVISORY_LOCK})
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, revision)
