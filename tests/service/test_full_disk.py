"""A disk that is full: what cannot be stored is refused, what can be read is answered, and all goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event

from service.app import create_app
from tests.contract.samples import results
from tests.serving import JOB, assert_problem, lease
from tuner.storage import StorageUnavailable
from tuner.storage.sql import Storage

ROOM = 20
"""Pages of the file beyond those that it has."""


class Disk:
    """Says how large the database file of a storage may become."""

    def __init__(self, storage: Storage) -> None:
        self._engine = storage._database.engine
        self.pages: int | None = None
        event.listen(self._engine, "checkout", self._limit)

    def fill(self) -> None:
        with self._engine.connect() as connection:
            self.pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one() + ROOM

    def _limit(self, connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {self.pages or 2**30}")


@pytest.fixture
def full(storage: Storage) -> Iterator[tuple[TestClient, Storage, Disk]]:
    disk = Disk(storage)
    headers = {"Authorization": f"Bearer {storage.create_key('tests')[1]}"}
    with TestClient(create_app(storage), headers=headers, raise_server_exceptions=False) as client:
        yield client, storage, disk


def test_jobs_are_refused_until_there_is_room_again(full: tuple[TestClient, Storage, Disk]) -> None:
    api, storage, disk = full
    kept = [api.post("/v1/jobs", json=JOB).json()["id"]]
    disk.fill()
    while (answer := api.post("/v1/jobs", json=JOB)).status_code == 201:
        kept.append(answer.json()["id"])
        assert len(kept) < 1000
    assert_problem(answer, 503)
    assert int(answer.headers["Retry-After"]) > 0
    assert "disk" in answer.json()["detail"]
    assert api.get("/readyz").status_code == 200, "it can still be read"
    assert {job["id"] for job in api.get("/v1/jobs?limit=200").json()["items"]} == set(kept)

    disk.pages = None

    kept.append(api.post("/v1/jobs", json=JOB).json()["id"])
    assert [job.id for job in storage.list_jobs(limit=1000).items] == kept[::-1], "nothing half-written"


def test_results_are_stored_once_there_is_room(full: tuple[TestClient, Storage, Disk]) -> None:
    api, storage, disk = full
    api.post("/v1/jobs", json=JOB)
    held = lease(storage)
    disk.fill()
    with pytest.raises(StorageUnavailable, match="full"):
        for number in range(100):
            storage.append_results(held, held.tasks[0].id, results(50, 50 * number))
    before = storage.get_job(held.job.id).trials
    assert before == len(storage.list_trials(held.job.id, limit=10_000)) < 5000
    disk.pages = None
    storage.append_results(held, held.tasks[0].id, results(50, before))
    assert storage.get_job(held.job.id).trials == before + 50
