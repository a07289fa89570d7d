"""Signing in with a browser: the one-time link, the form, the cookie, and signing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.cookies import Morsel, SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from service.app import create_app
from service.session import COOKIE
from service.settings import Settings
from tests.serving import without_table
from tuner.storage.sql import Storage

LONG_S = 300.0
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN = {"Sec-Fetch-Site": "same-origin"}
ELSEWHERE = ["//evil.example/", "https://evil.example/", "/\\evil.example", "/\t/evil.example", "evil", "", "/a//b"]


@pytest.fixture
def browser(storage: Storage) -> Iterator[TestClient]:
    """A browser that nobody has signed in, and that is told of redirects."""
    app = create_app(storage, settings=Settings(key_cache_s=0.0))
    with TestClient(app, headers=PAGE, follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def token(storage: Storage) -> str:
    return storage.create_login("browser", LONG_S)


def session_cookie(answer: Response) -> Morsel[str]:
    result: SimpleCookie = SimpleCookie(answer.headers["set-cookie"])
    return result[COOKIE]


def assert_login_page(answer: Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "set-cookie" not in answer.headers
    assert '<label for="key">' in answer.text


def test_a_link_gives_a_cookie_that_works_and_a_key_that_is_listed(
    browser: TestClient, storage: Storage, token: str
) -> None:
    answer = browser.get("/login", params={"token": token})

    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-store"
    cookie = session_cookie(answer)
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "lax", "/", "")
    assert int(cookie["max-age"]) == 30 * 24 * 3600
    assert token not in cookie.value
    assert browser.get("/v1/jobs").status_code == 200
    (key,) = storage.list_keys()
    assert key.name == "browser"
    storage.revoke_key(key.id)
    assert browser.get("/v1/jobs").status_code == 401


def test_over_https_the_cookie_is_for_https_alone(storage: Storage, token: str) -> None:
    client = TestClient(create_app(storage), base_url="https://tuning.example", follow_redirects=False)
    assert session_cookie(client.get("/login", params={"token": token}))["secure"]


def test_a_link_that_was_used_says_how_to_get_another(browser: TestClient, storage: Storage, token: str) -> None:
    browser.get("/login", params={"token": token})
    browser.cookies.clear()

    answer = browser.get("/login", params={"token": token, "next": "/jobs/x"})

    assert_login_page(answer, 401)
    assert "shapewright login-url" in answer.text
    assert 'role="alert"' in answer.text
    assert 'name="next" value="/jobs/x"' in answer.text
    assert len(storage.list_keys()) == 1


def test_a_link_opened_again_by_the_browser_that_used_it_leads_on(
    browser: TestClient, storage: Storage, token: str
) -> None:
    browser.get("/login", params={"token": token})

    answer = browser.get("/login", params={"token": token})

    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert len(storage.list_keys()) == 1


@pytest.mark.parametrize("wrong", ["", "x", "\0", "ä" * 3000])
def test_a_made_up_token_gives_the_page(browser: TestClient, wrong: str) -> None:
    assert_login_page(browser.get("/login", params={"token": wrong}), 401)


def test_a_key_typed_into_the_form_gives_a_cookie(browser: TestClient, key: str) -> None:
    assert_login_page(browser.get("/login"), 200)

    answer = browser.post("/login", data={"key": f" {key}\n", "next": "/jobs?state=RUNNING"}, headers=OWN)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/jobs?state=RUNNING")
    assert session_cookie(answer)["httponly"] is True
    assert browser.get("/v1/jobs").status_code == 200


def test_a_secret_of_any_characters_survives_the_cookie(browser: TestClient, storage: Storage) -> None:
    storage.create_key("odd", 'a b;"c\\=ä%2F,')
    browser.post("/login", data={"key": 'a b;"c\\=ä%2F,'}, headers=OWN)
    assert browser.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize("form", [{"key": "wrong"}, {"key": ""}, {"key": " "}, {}, {"next": "/"}])
def test_a_wrong_key_gives_the_page_again(browser: TestClient, form: dict[str, str]) -> None:
    answer = browser.post("/login", data=form, headers=OWN)
    assert_login_page(answer, 401)
    assert "API key" in re.findall(r'role="alert"[^>]*>([^<]+)', answer.text)[0]


def test_a_body_that_is_no_form_gives_the_page_again(browser: TestClient) -> None:
    assert_login_page(browser.post("/login", content=b"\xff\xfe&&=%zz", headers=OWN), 401)


@pytest.mark.parametrize("target", ELSEWHERE)
def test_what_could_lead_elsewhere_leads_to_the_start(
    browser: TestClient, storage: Storage, key: str, target: str
) -> None:
    link = browser.get("/login", params={"token": storage.create_login("browser", LONG_S), "next": target})
    form = browser.post("/login", data={"key": key, "next": target}, headers=OWN)
    assert [answer.headers["Location"] for answer in (link, form)] == ["/", "/"]


def test_what_is_put_into_the_page_is_text(browser: TestClient) -> None:
    answer = browser.get("/login", params={"next": '/"><script>alert(1)</script>'})
    assert "<script" not in answer.text


def test_signing_out_revokes_the_key_of_a_link(browser: TestClient, storage: Storage, token: str) -> None:
    cookie = session_cookie(browser.get("/login", params={"token": token})).value

    answer = browser.post("/logout", headers=OWN)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    ended = session_cookie(answer)
    assert (ended.value, ended["max-age"], ended["path"]) == ("", "0", "/")
    assert storage.list_keys()[0].revoked_at is not None
    assert browser.get("/v1/jobs", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 401


def test_signing_out_leaves_a_key_that_was_typed_in(browser: TestClient, storage: Storage, key: str) -> None:
    browser.post("/login", data={"key": key}, headers=OWN)
    browser.post("/logout", headers=OWN)
    assert COOKIE not in browser.cookies
    assert storage.find_key(key) is not None


def test_signing_out_twice_does_no_harm(browser: TestClient) -> None:
    assert [browser.post("/logout", headers=OWN).status_code for _ in range(2)] == [303, 303]


def test_only_a_form_signs_out(browser: TestClient) -> None:
    assert browser.get("/logout").status_code == 405


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_other_sites_sign_nobody_in_or_out(browser: TestClient, key: str, path: str) -> None:
    answer = browser.post(path, data={"key": key}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_pages_ask_for_nothing_elsewhere(browser: TestClient) -> None:
    for answer in (browser.get("/login"), browser.get("/login?token=x"), browser.post("/login", headers=OWN)):
        assert not re.search(r"//|@import|url\(|<script", answer.text)
        assert set(re.findall(r'(?:href|src|action)="([^"]*)"', answer.text)) == {"data:,", "/login"}


def test_without_the_database_the_page_says_so(browser: TestClient, database: Path, key: str) -> None:
    with without_table(database, "api_keys"):
        answer = browser.post("/login", data={"key": key}, headers=OWN)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.headers["content-type"].startswith("text/html")
    assert str(database) not in answer.text


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21, as WCAG 2 has it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_light_and_dark(browser: TestClient) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    themes: list[Any] = re.findall(r":root \{(.*?)\}", browser.get("/login").text, flags=re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", theme))
        pairs = [(name, "card") for name in ("text", "quiet", "wrong", "accent")] + [("on-accent", "accent")]
        assert all(contrast(colours[one], colours[other]) >= 4.5 for one, other in pairs)
        assert contrast(colours["edge"], colours["card"]) >= 3
