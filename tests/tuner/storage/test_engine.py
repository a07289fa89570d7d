"""Which databases are taken, and what becomes of one that cannot be reached, is held by another, or is too old."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from tests.contract.samples import LONG_S, job_spec, leased
from tests.statements import set_up_as_served
from tuner.errors import InvalidInput
from tuner.storage import NewEvent, StorageUnavailable
from tuner.storage.sql import Storage, engine, open_storage, upgrade
from tuner.storage.sql.engine import Database, connect, parse_url
from tuner.storage.sql.schema import api_keys


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_means_psycopg(scheme: str) -> None:
    url = parse_url(f"{scheme}://ada:pw@db:5433/tuning?sslmode=require")

    assert url.render_as_string(hide_password=False) == "postgresql+psycopg://ada:pw@db:5433/tuning?sslmode=require"


@pytest.mark.parametrize(
    "text",
    [
        *("", "tuning.db", "mysql://db/x", "sqlite://", "sqlite:///:memory:", "postgresql+asyncpg://x"),
        *("postgresql://ada@db:port/x", "sqlite:///tuning.db?timeout=soon"),
    ],
)
def test_other_databases_are_refused_with_the_form_that_would_do(text: str) -> None:
    with pytest.raises(InvalidInput, match="sqlite:///path") as caught:
        open_storage(text)
    assert caught.value.field == "database_url"


def test_an_option_that_a_file_has_not_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"'wait'.*timeout"):
        open_storage("sqlite:///tuning.db?wait=5")


@pytest.mark.parametrize("option", ["wait=5", "connect_timeout=soon", "sslmode=maybe"])
def test_an_option_that_a_server_has_not_is_told_as_such(option: str) -> None:
    storage = open_storage(f"postgresql://ada@127.0.0.1:1/tuning?{option}")
    with pytest.raises(StorageUnavailable, match=f"{option.partition('=')[0]}.*make sure"):
        storage.check()
    storage.close()


def test_opening_reaches_for_nothing(tmp_path: Path) -> None:
    open_storage(f"sqlite:///{tmp_path / 'missing' / 'tuning.db'}").close()
    open_storage("postgresql://nobody@127.0.0.1:1/none").close()


def test_errors_hide_the_password() -> None:
    storage = open_storage("postgresql://ada:hunter2@127.0.0.1:1/none")

    with pytest.raises(StorageUnavailable) as caught:
        storage.check()

    assert "hunter2" not in str(caught.value)
    assert "ada" in str(caught.value)


def test_a_fault_of_the_statement_is_not_the_databases(sqlite_url: str) -> None:
    database = connect(sqlite_url)

    with pytest.raises(IntegrityError), database.write() as connection:
        connection.execute(api_keys.insert().values(id="k", name="n", secret_sha256=None))
    database.engine.dispose()


def test_a_transaction_that_raises_leaves_nothing(database_url: str) -> None:
    database = connect(database_url)
    storage = Storage(database)

    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute(api_keys.insert().values(id="k", name="n", secret_sha256="s"))
        raise ZeroDivisionError

    assert storage.list_keys() == ()
    storage.close()


# -- SQLite -----------------------------------------------------------------------------------------------------------
def test_sqlite_is_set_up_for_many_users(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests do not wait for the disk.
    monkeypatch.setattr(engine, "_set_up_sqlite", set_up_as_served)
    with _database(sqlite_url).read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }

    assert pragmas == {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 30_000}


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path / 'missing' / 'tuning.db'}")

    for ask in (storage.check, storage.list_jobs, lambda: storage.create_job(job_spec())):
        with pytest.raises(StorageUnavailable, match=f"directory {tmp_path / 'missing'} exists"):
            ask()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "tuning.db").write_text("these are not the tables you are looking for" * 100)

    with pytest.raises(StorageUnavailable, match="make sure that the file is a database"):
        open_storage(f"sqlite:///{tmp_path / 'tuning.db'}").check()


def test_a_write_lock_held_too_long_is_unavailable_and_readers_go_on(sqlite_url: str) -> None:
    storage = open_storage(f"{sqlite_url}?timeout=0.1")
    storage.create_key("before")
    holder = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(StorageUnavailable, match="another connection holds it; try again"):
        storage.create_key("during")
    assert [key.name for key in storage.list_keys()] == ["before"]

    holder.execute("ROLLBACK")
    holder.close()
    storage.create_key("after")
    assert [key.name for key in storage.list_keys()] == ["before", "after"]
    storage.close()


def test_threads_share_one_sqlite_storage(sqlite_url: str) -> None:
    """More writers than pooled connections, all on one file: each waits its turn, none is told that it is locked."""
    storage = open_storage(sqlite_url)
    lease = leased(storage)
    failures: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(5):
                storage.append_events(lease, [NewEvent("log", {})])
                storage.heartbeat(lease, LONG_S)
        except StorageUnavailable as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert len(storage.list_events(lease.job.id)) == 2 + 12 * 5
    storage.close()


def test_many_may_open_a_new_sqlite_file_at_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def start(url: str) -> None:
        try:
            upgrade(url)
            storage = open_storage(url)
            storage.check()
            storage.close()
        except StorageUnavailable as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(f"sqlite:///{tmp_path / 'tuning.db'}",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []


class Refusing:
    """A cursor whose file is changed by others at the first changes of its journal."""

    def __init__(self, file: Path, refused: int, code: int) -> None:
        self.cursor = sqlite3.connect(file, timeout=0.2).cursor()
        self.refused, self.code = refused, code

    def execute(self, statement: str) -> sqlite3.Cursor:
        if "= WAL" in statement and self.refused:
            self.refused -= 1
            error = sqlite3.OperationalError("as was asked for")
            error.sqlite_errorcode = self.code
            raise error
        return self.cursor.execute(statement)


def test_a_new_sqlite_file_that_another_changes_is_tried_again(tmp_path: Path) -> None:
    """SQLite itself does not wait there, whatever its timeout."""
    cursor = Refusing(tmp_path / "tuning.db", 3, sqlite3.SQLITE_BUSY_RECOVERY)
    engine._write_ahead(cursor)
    assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(("refused", "code"), [(10**6, sqlite3.SQLITE_BUSY), (1, sqlite3.SQLITE_READONLY)])
def test_no_longer_than_its_timeout_and_for_no_other_reason(tmp_path: Path, refused: int, code: int) -> None:
    cursor = Refusing(tmp_path / "tuning.db", refused, code)
    with pytest.raises(sqlite3.OperationalError, match="as was asked for"):
        engine._write_ahead(cursor)


def _database(url: str) -> Database:
    return connect(url)
