"""Which requests a cookie counts for, and what becomes of a browser that has none."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.session import COOKIE
from tests.serving import JOB, assert_problem
from tuner.storage.sql import Storage

PAGE = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def browser(storage: Storage, key: str) -> Iterator[TestClient]:
    """A browser that holds the cookie, on a page of http://testserver."""
    cookie = {"Cookie": f"other=1; {COOKIE}={key}"}
    with TestClient(create_app(storage), headers=cookie, follow_redirects=False) as client:
        yield client


@pytest.fixture
def stranger(storage: Storage) -> Iterator[TestClient]:
    with TestClient(create_app(storage), follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


def test_the_cookie_is_a_key(browser: TestClient) -> None:
    assert browser.get("/v1/jobs").status_code == 200
    assert browser.get("/v1/jobs", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_a_key_in_the_header_wins(browser: TestClient, storage: Storage) -> None:
    (key,) = storage.list_keys()
    assert_problem(browser.get("/v1/jobs", headers={"Authorization": "Bearer wrong"}), 401)
    assert_problem(browser.get("/v1/jobs", headers={"Authorization": "Bearer"}), 401)
    _, other = storage.create_key("other")
    storage.revoke_key(key.id)
    assert browser.get("/v1/jobs", headers={"Authorization": f"Bearer {other}"}).status_code == 200


def test_a_header_that_is_meant_for_a_proxy_leaves_the_cookie_its_say(browser: TestClient) -> None:
    assert browser.get("/v1/jobs", headers={"Authorization": "Basic dXNlcjpwYXNz"}).status_code == 200


def test_of_two_cookies_the_first_counts(stranger: TestClient, key: str) -> None:
    """Browsers send the cookie of the longer path first: ours, where another service is at the root."""
    assert stranger.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={key}; {COOKIE}=old"}).status_code == 200
    assert_problem(stranger.get("/v1/jobs", headers={"Cookie": f"{COOKIE}=old; {COOKIE}={key}"}), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "null"},
        {"Origin": "http://testserver"},
        {"Origin": "http://TESTSERVER"},
        {"Origin": "https://tuning.example:8443", "Host": "tuning.example:8443"},
        {"Origin": "http://[::1]:8321", "Host": "[::1]:8321"},
    ],
)
def test_its_own_pages_may_change_things(browser: TestClient, headers: dict[str, str]) -> None:
    assert browser.post("/v1/jobs", json=JOB, headers=headers).status_code == 201


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({}, "neither Sec-Fetch-Site nor Origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "'cross-site'"),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://testserver"}, "'same-site'"),
        ({"Sec-Fetch-Site": "none"}, "'none'"),
        ({"Sec-Fetch-Site": "", "Origin": "http://testserver"}, "''"),
        ({"Origin": "null"}, "'null'"),
        ({"Origin": ""}, "Origin is ''"),
        ({"Origin": "", "Host": ""}, "Host ''"),
        ({"Origin": "http://evil.example"}, "'http://evil.example'"),
        ({"Origin": "http://testserver.evil.example"}, "'http://testserver.evil.example'"),
        ({"Origin": "http://testserver:8000"}, "'testserver'"),
        ({"Origin": "http://[broken"}, "'http://[broken'"),
    ],
)
def test_other_pages_may_not(browser: TestClient, storage: Storage, headers: dict[str, str], says: str) -> None:
    answer = browser.post("/v1/jobs", json=JOB, headers=headers)
    assert_problem(answer, 403)
    assert says in answer.json()["detail"]
    assert storage.list_jobs().items == ()


def test_a_key_in_the_header_needs_no_page(stranger: TestClient, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"}
    assert stranger.post("/v1/jobs", json=JOB, headers=headers).status_code == 201


@pytest.mark.parametrize("path", ["/", "/jobs/x", "/jobs?state=RUNNING&cursor=a%2Fb", "/metrics", "/a%20b%3Fc", "/v1x"])
@pytest.mark.parametrize("cookie", ["", "revoked"])
def test_a_browser_without_a_session_is_led_to_the_login_page(stranger: TestClient, path: str, cookie: str) -> None:
    answer = stranger.get(path, headers=PAGE | ({"Cookie": f"{COOKIE}={cookie}"} if cookie else {}))
    assert answer.status_code == 303
    assert answer.headers["Cache-Control"] == "no-store"
    at = urlsplit(answer.headers["Location"])
    assert (at.scheme, at.netloc, at.path) == ("", "", "/login")
    assert parse_qs(at.query) == ({} if path == "/" else {"next": [path]})


def test_and_from_there_to_what_it_wanted(stranger: TestClient, storage: Storage) -> None:
    wanted = "/metrics?a=b%26c&d=%2F"
    asked = parse_qs(urlsplit(stranger.get(wanted, headers=PAGE).headers["Location"]).query)["next"][0]
    answer = stranger.get("/login", params={"token": storage.create_login("browser", 60.0), "next": asked})
    assert answer.headers["Location"] == wanted
    assert stranger.get(wanted).status_code == 200


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/event-stream", "", "text/htmlx"])
def test_callers_that_want_no_page_get_the_problem(stranger: TestClient, accept: str) -> None:
    answer = stranger.get("/jobs/x", headers={"Accept": accept})
    assert_problem(answer, 401)
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1", "/v1/nothing"])
def test_the_api_never_leads_to_a_page(stranger: TestClient, path: str) -> None:
    assert_problem(stranger.get(path, headers=PAGE), 401)


def test_a_form_of_a_stranger_is_not_led_anywhere(stranger: TestClient) -> None:
    answer = stranger.post("/jobs/x/cancel", headers=PAGE)
    assert answer.status_code == 401
    assert answer.headers["content-type"].startswith("text/html")
