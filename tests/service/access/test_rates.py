"""How often a key may ask, and an address may be wrong."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from service.access.rates import network_of
from service.app import create_app
from service.settings import Settings
from tests.serving import JOB, assert_problem, serving
from tuner.storage.access import fresh_secret
from tuner.storage.sql import Storage

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


def test_attempts_to_log_in_are_limited(client: TestClient) -> None:
    forms = [client.post("/login", data={"key": f"wrong-{n}"}, headers=OWN).status_code for n in range(4)]
    links = [client.get("/login", params={"token": f"wrong-{n}"}).status_code for n in range(4)]

    assert forms == links == [401, 401, 401, 429], "each kind is counted by itself"
    assert client.get("/login").status_code == 200, "the page itself can be looked at"


@pytest.mark.parametrize("wrong", ["wrong", fresh_secret()], ids=["a short one", "one of the right form"])
def test_wrong_attempts_keep_no_good_key_out(client: TestClient, storage: Storage, wrong: str) -> None:
    """Pages elsewhere can make the browser of a key's owner send wrong ones, from the owner's address."""
    key, link = storage.create_key("ci")[1], storage.create_login("browser", 60.0)
    assert [client.get("/v1/jobs", headers=bearer(wrong)).status_code for _ in range(6)] == [401] * 3 + [429] * 3
    assert {client.get("/login", params={"token": wrong}).status_code for _ in range(6)} == {401, 429}
    assert {client.post("/login", data={"key": wrong}, headers=OWN).status_code for _ in range(6)} == {429}

    assert client.get("/v1/jobs", headers=bearer(key)).status_code == 200
    assert client.post("/login", data={"key": storage.create_key("other")[1]}, headers=OWN).status_code == 303
    assert client.get("/login", params={"token": link}).status_code == 303


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_link_that_another_site_opens_is_refused_and_not_counted(
    client: TestClient, storage: Storage, site: str
) -> None:
    link = storage.create_login("browser", 60.0)
    for token in (*(f"wrong-{n}" for n in range(62)), link):
        answer = client.get("/login", params={"token": token}, headers={"Sec-Fetch-Site": site})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
    assert client.get("/login", params={"token": "wrong"}).status_code == 401
    assert client.get("/login", params={"token": link}, headers={"Sec-Fetch-Site": "none"}).status_code == 303


def test_all_addresses_of_one_client_count_together() -> None:
    networks = {network_of({"client": (f"2001:db8:1:2:{n:x}::1", 1)}) for n in range(9)}
    assert networks == {"2001:db8:1:2::/64"}
    assert network_of({"client": ("192.0.2.7", 1)}) == "192.0.2.7"
    assert network_of({"client": ("::ffff:192.0.2.7", 1)}) == "192.0.2.7", "as a socket of both kinds tells it"
    assert network_of({}) == network_of({"client": None}) == "-"


@pytest.mark.parametrize(("trusted", "limited"), [("", True), ("127.0.0.1", False), ("192.0.2.1", True)])
def test_a_client_gives_itself_no_address(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, trusted: str, limited: bool
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    with serving(storage, SETTINGS) as url, httpx.Client(base_url=url) as client:
        answers = [
            client.get("/v1/jobs", headers=bearer("wrong") | {"X-Forwarded-For": f"198.51.100.{n}"}) for n in range(5)
        ]
    assert (429 in [answer.status_code for answer in answers]) is limited


def test_no_limit_is_no_limit(storage: Storage) -> None:
    settings = Settings(request_rate="", change_rate="", attempt_rate="")
    with TestClient(create_app(storage, settings=settings)) as client:
        assert {client.get("/v1/jobs", headers=bearer("wrong")).status_code for _ in range(100)} == {401}
