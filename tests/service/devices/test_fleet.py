"""What a fleet does, as the API tells it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.devices.fleet import Fleets, Status
from tests.contract.samples import job_spec, leased
from tests.fleets import at_work, fail, measured
from tests.serving import assert_problem
from tuner.storage import Lease
from tuner.storage.sql import Storage
from tuner.storage.sql.columns import later
from tuner.storage.sql.schema import devices


def device_of(api: TestClient, name: str = "local-0") -> dict[str, Any]:
    [found] = [each for each in api.get("/v1/devices/activity").json()["devices"] if each["id"] == name]
    return dict(found)


@pytest.fixture
def lease(storage: Storage) -> Lease:
    return leased(storage, job_spec(device="local", name="first"))


def test_a_device_that_paused_for_minutes_is_idle(api: TestClient, storage: Storage, lease: Lease) -> None:
    measured(storage, lease, [("local-0", 300.0)])
    assert (device_of(api)["status"], device_of(api)["job_id"]) == ("idle", None)


def test_a_device_that_measures_for_a_running_job_is_busy(api: TestClient, storage: Storage, lease: Lease) -> None:
    measured(storage, lease, [("local-0", 20.0), ("local-0", 10.0)], run_s=10.0)
    found = device_of(api)
    assert (found["status"], found["job_id"], found["trials"]) == ("busy", lease.job.id, 2)
    assert found["utilisation"] == pytest.approx(20 / 3600, abs=1e-4)
    [span] = found["spans"]
    assert span["end_s"] - span["start_s"] == pytest.approx(20.0, abs=0.1)
    assert (span["trials"], span["job_id"]) == (2, lease.job.id)
    whole = api.get("/v1/devices/activity").json()
    assert whole["jobs"] == [{"id": lease.job.id, "number": 1, "name": "first", "state": "RUNNING"}]
    assert whole["keys"] == [
        {"key": "local", "devices": 1, "statuses": {"busy": 1}, "waiting": 0, "running": 1, "utilisation": 0.0056}
    ]


def test_a_device_whose_job_ended_is_idle(api: TestClient, storage: Storage, lease: Lease) -> None:
    measured(storage, lease, [("local-0", 1.0)])
    storage.request_cancel(lease.job.id)
    storage.release_job(lease)
    assert device_of(api)["status"] == "idle"


def test_who_was_not_seen_is_away_unless_it_measured(api: TestClient, storage: Storage, lease: Lease) -> None:
    with storage._database.write() as connection:
        connection.execute(update(devices).values(seen_at=later(-100.0)))
    assert device_of(api)["status"] == "away"
    measured(storage, lease, [("local-0", 1.0)])
    assert Fleets(storage).get(900).groups[0].members[0].status is Status.BUSY


def test_a_quarantine_shows_at_once_though_activity_is_kept(api: TestClient) -> None:
    assert device_of(api)["status"] == "idle"
    assert api.post("/v1/devices/local-0/quarantine", json={"reason": "its fan is loud"}).status_code == 200
    found = device_of(api)
    assert (found["status"], found["reason"], found["quarantined_until"]) == ("quarantined", "its fan is loud", None)


def test_activity_is_read_again_when_what_was_kept_is_old(storage: Storage, lease: Lease) -> None:
    now_s = 0.0
    fleets = Fleets(storage, clock=lambda: now_s)

    def trials() -> int:
        return fleets.get(900).groups[0].members[0].use.trials

    assert trials() == 0
    measured(storage, lease, [("local-0", 1.0)])
    assert trials() == 0
    now_s = 3.5
    assert trials() == 1


def test_a_fleet_is_told_by_key_within_bounds(api: TestClient, storage: Storage) -> None:
    at_work(storage, 60)
    whole, edge = (api.get("/v1/devices/activity", params=params).json() for params in ({}, {"key": "edge"}))
    assert [(each["key"], each["devices"]) for each in whole["keys"]] == [("edge", 20), ("local", 1), ("rack", 40)]
    assert {each["key"] for each in edge["devices"]} == {"edge"}
    assert [each["key"] for each in edge["keys"]] == ["edge"]
    assert edge["keys"][0]["waiting"] == 2
    statuses = {each["status"] for each in whole["devices"]}
    assert statuses == {"busy", "idle", "probation", "quarantined", "away"}
    for device in whole["devices"]:
        for first, second in pairwise(device["spans"]):
            assert first["end_s"] <= second["start_s"]
        assert all(0 <= span["start_s"] <= span["end_s"] <= 900 for span in device["spans"])


def test_too_many_spans_are_cut_and_it_is_said(
    api: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.devices.fleet.MAX_SPANS", 10)
    at_work(storage, 12)
    answer = api.get("/v1/devices/activity").json()
    assert 0 < sum(len(each["spans"]) for each in answer["devices"]) <= 10
    assert answer["complete_from_s"] > 0


def test_an_answer_is_not_sent_twice(api: TestClient) -> None:
    # One of the two follows the other within a slot of its minute.
    path = "/v1/devices/activity?seconds=3600"
    answers = [api.get(path) for _ in range(2)]
    assert answers[0].headers["ETag"]
    again = api.get(path, headers={"If-None-Match": answers[1].headers["ETag"]})
    assert again.status_code == 304 or again.json()["start"] != answers[1].json()["start"]


def test_one_device_has_its_history(api: TestClient, storage: Storage, lease: Lease) -> None:
    measured(storage, lease, [("local-0", 4000.0), ("local-0", 30.0)])
    fail(storage, lease, "local-0", 0)
    answer = api.get("/v1/devices/local-0", params={"seconds": 7200}).json()
    assert answer["device"]["id"] == answer["activity"]["id"] == "local-0"
    first, second = answer["activity"]["spans"]
    assert (first["trials"], second["trials"], second["failed"]) == (1, 2, 1)
    assert second["start_s"] - first["start_s"] == pytest.approx(3970.0, abs=1.0)
    assert (answer["stored_trials"], len(answer["latest_trials"])) == (3, 3)
    assert [each["error_kind"] for each in answer["latest_failures"]] == ["crash"]
    assert answer["activity"]["trials"] == 2
    assert answer["jobs"][0]["id"] == lease.job.id


def test_what_is_not_there_or_out_of_bounds_is_a_problem(api: TestClient) -> None:
    assert_problem(api.get("/v1/devices/none"), 404)
    assert_problem(api.get("/v1/devices/activity?seconds=59"), 422)
    assert_problem(api.get("/v1/devices/activity?seconds=3601"), 422)
    assert_problem(api.get("/v1/devices/local-0?seconds=86401"), 422)
    assert api.get("/v1/devices/activity?key=none").json()["devices"] == []


def test_reading_needs_a_key_of_scope_read_alone(api: TestClient, storage: Storage) -> None:
    document = api.get("/v1/openapi.json").json()["paths"]
    for path in ("/v1/devices/activity", "/v1/devices/{device_id}"):
        assert document[path]["get"]["security"] == [{"ApiKey": ["read"]}]
        assert "304" in document[path]["get"]["responses"]
