"""The migrations make the tables that the code wants, from every schema that was ever released."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

import tuner
from tests.contract.samples import job_spec
from tests.shares import chosen, diagonal
from tuner.storage import StorageUnavailable
from tuner.storage.sql import open_storage, upgrade
from tuner.storage.sql.engine import Database, connect
from tuner.storage.sql.migrate import config, head
from tuner.storage.sql.schema import metadata

ROOT = Path(tuner.__file__).parents[1]
REVISIONS = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()][::-1]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    result = connect(database_url)
    yield result
    result.engine.dispose()


def test_the_migrated_schema_is_the_one_the_code_has(database: Database) -> None:
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        # What the comparison does not look at.
        for table in metadata.sorted_tables:
            result = inspect(connection)
            primary = result.get_pk_constraint(table.name)["constrained_columns"]
            assert sorted(primary) == sorted(column.name for column in table.primary_key)
            keys = result.get_foreign_keys(table.name)
            foreign = {(key["constrained_columns"][0], key["referred_table"]) for key in keys}
            assert foreign == {(key.parent.name, key.column.table.name) for key in table.foreign_keys}


def test_what_is_looked_up_has_an_index(database: Database) -> None:
    with database.read() as connection:
        inspector = inspect(connection)
        for table in metadata.sorted_tables:
            names = {index["name"] for index in inspector.get_indexes(table.name)}
            assert {index.name for index in table.indexes} <= names


@pytest.mark.parametrize(
    ("bare_url", "revision"), diagonal(["sqlite", "postgresql"], REVISIONS, every=4), indirect=["bare_url"]
)
def test_every_released_schema_can_be_upgraded_and_used(bare_url: str, revision: str) -> None:
    assert upgrade(bare_url, revision) == revision

    assert upgrade(bare_url) == head()

    storage = open_storage(bare_url)
    storage.check()
    storage.create_job(job_spec())
    storage.close()


def test_upgrading_twice_changes_nothing(database_url: str) -> None:
    storage = open_storage(database_url)
    job, _ = storage.create_job(job_spec())

    assert upgrade(database_url) == head()

    assert storage.get_job(job.id) == job
    storage.close()


def test_a_database_without_tables_says_what_to_run(bare_url: str) -> None:
    storage = open_storage(bare_url)

    for ask in (storage.check, storage.list_jobs, lambda: storage.create_job(job_spec())):
        with pytest.raises(StorageUnavailable, match="shapewright db upgrade"):
            ask()
    storage.close()


def test_a_database_of_another_version_says_what_to_run(database_url: str, database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    storage = open_storage(database_url)

    newer = f"9999, not {head()}; this version of Shapewright is older than its database: update it"
    for ask in (storage.check, lambda: upgrade(database_url)):
        with pytest.raises(StorageUnavailable, match=newer):
            ask()
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0004'")
    with pytest.raises(StorageUnavailable, match=f"0004, not {head()}; run `shapewright db upgrade`"):
        storage.check()
    storage.close()


def test_upgrading_a_database_that_is_away_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="directory"):
        upgrade(f"sqlite:///{tmp_path / 'missing' / 'tuning.db'}")


@pytest.mark.parametrize("bare_url", chosen(["sqlite"], ["sqlite", "postgresql"]), indirect=True)
def test_alembics_own_command_finds_the_migrations(bare_url: str) -> None:
    environment = os.environ | {"SHAPEWRIGHT_DATABASE_URL": bare_url}
    command = [sys.executable, "-m", "alembic", "upgrade", "head"]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    storage = open_storage(bare_url)
    storage.check()
    storage.close()
