"""The worker's main loop while the database is not the one that it wants."""

from __future__ import annotations

import logging
import threading

import pytest
from sqlalchemy import text

from tests.contract.samples import job_spec
from tests.measuring import wait_for
from tuner.storage import Lease
from tuner.storage.sql import SqlStorage, open_storage
from tuner.storage.sql.migrate import head
from worker.lease_loop import LeaseLoop


class NoList:
    """A list of devices that never changes."""

    def refresh(self, force: bool = False) -> tuple[str, ...]:
        return ("local",)


def set_revision(storage: SqlStorage, revision: str) -> None:
    with storage._database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def test_a_worker_of_an_earlier_version_waits_and_says_what_to_do(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.lease_loop.OUTAGE_WAIT_S", 0.05)
    storage = open_storage(sqlite_url)
    storage.create_job(job_spec())
    set_revision(storage, "9999")
    stop = threading.Event()
    taken: list[Lease] = []
    loop = LeaseLoop(storage, NoList(), taken.append, "old", stop)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_forever)
    with caplog.at_level(logging.WARNING):
        thread.start()
        try:
            wait_for(lambda: "older than its database: update it on this machine" in caplog.text)
            assert taken == []
            set_revision(storage, head())
            wait_for(lambda: len(taken) == 1)
        finally:
            stop.set()
            thread.join(20)
    storage.close()
