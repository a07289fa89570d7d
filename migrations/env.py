"""Run by Alembic: opens the database, or takes the connection it is given, and runs the migrations on it."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection

from tuner.errors import InvalidInput
from tuner.storage.sql.engine import connect
from tuner.storage.sql.schema import metadata

VARIABLE = "SHAPEWRIGHT_DATABASE_URL"


def run(connection: Connection) -> None:
    # SQLite alters little in place: later revisions copy a table instead (batch mode).
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    url = os.environ.get(VARIABLE)
    if context.is_offline_mode() or not url:
        raise InvalidInput(VARIABLE, "names no database", "name one, as in sqlite:///dev.db; --sql is not supported")
    with connect(url).write() as connection:
        run(connection)


main()
