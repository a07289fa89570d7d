"""How often a key may ask, and an address may be wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.serving import JOB, assert_problem
from tuner.storage import Storage

SETTINGS = Settings(request_rate="6 per day", change_rate="2 per day", attempt_rate="3 per day")
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def client(storage: Storage) -> Iterator[TestClient]:
    with TestClient(create_app(storage, settings=SETTINGS), follow_redirects=False) as result:
        yield result


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_key_that_asks_too_often_is_told_when_to_come_back(client: TestClient, storage: Storage) -> None:
    one, other = (bearer(storage.create_key("ci")[1]) for _ in range(2))
    assert [client.get("/v1/jobs", headers=one).status_code for _ in range(7)] == [200] * 6 + [429]

    refused = client.get("/v1/jobs", headers=one)

    assert_problem(refused, 429)
    assert 0 < int(refused.headers["Retry-After"]) <= 24 * 3600 + 1
    assert "6 per 1 day" in refused.json()["detail"]
    assert client.get("/v1/jobs", headers=other).status_code == 200


def test_changes_have_a_limit_of_their_own(client: TestClient, storage: Storage) -> None:
    headers = bearer(storage.create_key("ci")[1])
    assert [client.post("/v1/jobs", json=JOB, headers=headers).status_code for _ in range(3)] == [201, 201, 429]
    assert client.get("/v1/jobs", headers=headers).status_code == 200
    assert len(storage.list_jobs().items) == 2


def test_wrong_keys_are_not_looked_up_without_end(client: TestClient, storage: Storage) -> None:
    good = bearer(storage.create_key("ci")[1])
    assert client.get("/v1/jobs", headers=good).status_code == 200
    wrong = [client.get("/v1/jobs", headers=bearer(f"wrong-{n}")) for n in range(5)]

    assert [answer.status_code for answer in wrong] == [401, 401, 401, 429, 429]
    assert int(wrong[-1].headers["Retry-After"]) > 0
    assert client.get("/v1/jobs", headers=good).status_code == 200, "who was let in stays in"


def test_attempts_to_log_in_are_limited(client: TestClient, storage: Storage) -> None:
    secret = storage.create_key("ci")[1]
    forms = [client.post("/login", data={"key": f"wrong-{n}"}, headers=OWN).status_code for n in range(2)]
    link = client.get("/login", params={"token": "wrong"}).status_code

    assert [*forms, link] == [401, 401, 401]
    assert_problem(client.post("/login", data={"key": secret}, headers=OWN), 429)
    assert client.get("/login", params={"token": storage.create_login("browser", 60.0)}).status_code == 429
    assert client.get("/login").status_code == 200, "the page itself can be looked at"


def test_no_limit_is_no_limit(storage: Storage) -> None:
    settings = Settings(request_rate="", change_rate="", attempt_rate="")
    with TestClient(create_app(storage, settings=settings)) as client:
        assert {client.get("/v1/jobs", headers=bearer("wrong")).status_code for _ in range(100)} == {401}
