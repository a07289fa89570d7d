"""What every page tells a browser to keep to, and problems as pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response
from starlette.responses import HTMLResponse

from service.app import create_app
from service.security import HEADERS, POLICY
from tests.serving import assert_problem
from tuner.storage.sql import Storage

PAGE = {"Accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def app(storage: Storage) -> FastAPI:
    """The service with a page that fails, and one that knows better than the rest."""
    app = create_app(storage)

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError("a secret")

    @app.get("/own")
    def own() -> HTMLResponse:
        return HTMLResponse("<p>mine", headers={"Referrer-Policy": "no-referrer"})

    return app


@pytest.fixture
def api(app: FastAPI, key: str) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {key}"}
    with TestClient(app, headers=headers, raise_server_exceptions=False) as client:
        yield client


def assert_page(answer: Response, status: int) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for name, value in HEADERS.items():
        assert answer.headers.get_list(name) == [value]


def test_the_policy_lets_scripts_come_from_the_service_alone() -> None:
    directives = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert directives["default-src"] == directives["script-src"] == directives["connect-src"] == "'self'"
    assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"


def test_every_page_carries_the_headers_once(api: TestClient) -> None:
    assert_page(api.get("/login"), 200)
    assert_page(api.get("/nowhere", headers=PAGE), 404)
    assert_page(api.get("/nowhere", headers=PAGE | {"Authorization": "Bearer wrong"}), 401)
    assert_page(api.get("/broken", headers=PAGE), 500)


def test_a_page_may_say_otherwise(api: TestClient) -> None:
    answer = api.get("/own")
    assert answer.headers.get_list("Referrer-Policy") == ["no-referrer"]
    assert answer.headers["Content-Security-Policy"] == POLICY


def test_what_is_no_page_has_none_of_them(api: TestClient) -> None:
    for path in ("/v1/jobs", "/metrics", "/nowhere", "/broken"):
        assert not HEADERS.keys() & {name.title() for name in api.get(path).headers}


def test_a_problem_is_a_page_for_a_browser_and_a_document_for_everybody_else(api: TestClient) -> None:
    page, document = api.get("/nowhere<b>", headers=PAGE), api.get("/nowhere<b>")
    assert_problem(document, 404)
    assert page.headers["Cache-Control"] == "no-store"
    assert "there is no route /nowhere&lt;b&gt;" in page.text
    assert "<b>" not in page.text
    assert document.json()["title"] in page.text


def test_under_v1_it_stays_a_document(api: TestClient) -> None:
    plain, browser = api.get("/v1/nowhere"), api.get("/v1/nowhere", headers=PAGE)
    assert_problem(browser, 404)
    assert plain.content == browser.content
    of_the_request = {"x-request-id": ""}
    assert dict(plain.headers) | of_the_request == dict(browser.headers) | of_the_request


def test_a_page_keeps_what_the_problem_says_in_headers(api: TestClient) -> None:
    answer = api.delete("/metrics", headers=PAGE)
    assert_page(answer, 405)
    assert answer.headers["Allow"] == "GET"


def test_a_defect_as_a_page_tells_nothing(api: TestClient) -> None:
    answer = api.get("/broken", headers=PAGE)
    assert "secret" not in answer.text
    assert "GET /broken failed" in answer.text


def test_a_body_that_is_too_large_is_refused_with_a_page(api: TestClient) -> None:
    answer = api.post("/jobs/x", content=b"x" * 2_000_000, headers=PAGE)
    assert_page(answer, 413)
    assert answer.headers["Connection"] == "close"
