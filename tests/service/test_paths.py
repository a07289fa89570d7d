"""The service under a prefix, behind a proxy that takes it off and behind one that leaves it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.cookies import SimpleCookie

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.app import create_app
from service.paths import UnderPrefix, local_path, parse_prefix, path_of, url_for_path
from service.session import COOKIE
from tests.serving import JOB, assert_problem, serving
from tuner.errors import InvalidInput
from tuner.storage.sql import Storage

PREFIX = "/tools/shapewright"
PAGE = {"Accept": "text/html"}
OWN = {"Sec-Fetch-Site": "same-origin"}


def stripping(app: ASGIApp) -> ASGIApp:
    """A proxy that takes the prefix off, as nginx does with a slash at the end of proxy_pass."""

    async def proxy(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["path"].removeprefix(PREFIX) or "/"}
            scope["raw_path"] = scope["path"].encode()
        await app(scope, receive, send)

    return proxy


def leaving(app: ASGIApp) -> ASGIApp:
    return app


@pytest.fixture
def app(storage: Storage) -> FastAPI:
    app = create_app(storage, root_path=f"{PREFIX}/")

    @app.get("/where")
    def where(request: Request) -> list[str]:
        return [path_of(request), url_for_path(request, "/jobs/x"), request.url.path]

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError

    return app


@pytest.fixture(params=[stripping, leaving], ids=["stripped", "left"])
def browser(request: pytest.FixtureRequest, app: FastAPI) -> Iterator[TestClient]:
    """A browser in front of the proxy."""
    proxy: Callable[[ASGIApp], ASGIApp] = request.param
    with TestClient(proxy(app), follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


def test_the_api_is_under_the_prefix(browser: TestClient, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    made = browser.post(f"{PREFIX}/v1/jobs", json=JOB, headers=headers)
    assert made.status_code == 201
    assert made.headers["Location"] == f"{PREFIX}/v1/jobs/{made.json()['id']}"
    assert browser.get(made.headers["Location"], headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/healthz", "/v1/readyz"])
def test_open_paths_are_open_and_nothing_else(browser: TestClient, path: str) -> None:
    assert browser.get(PREFIX + path).status_code == 200
    for closed in (f"/x{path}", f"{path}/", f"{path}/x", "/v1/jobs"):
        assert_problem(browser.get(PREFIX + closed), 401)


def test_signing_in_stays_under_the_prefix(browser: TestClient, storage: Storage) -> None:
    sent = browser.get(f"{PREFIX}/where?a=b", headers=PAGE)
    assert sent.headers["Location"] == f"{PREFIX}/login?next=%2Fwhere%3Fa%3Db"
    page = browser.get(sent.headers["Location"], headers=PAGE)
    assert f'action="{PREFIX}/login"' in page.text
    token = storage.create_login("browser", 60.0)
    link = browser.get(f"{sent.headers['Location']}&token={token}")
    assert (link.status_code, link.headers["Location"]) == (303, f"{PREFIX}/where?a=b")
    cookie: SimpleCookie = SimpleCookie(link.headers["set-cookie"])
    assert cookie[COOKIE]["path"] == PREFIX
    result = browser.get(link.headers["Location"])
    assert result.json() == ["/where", f"{PREFIX}/jobs/x", f"{PREFIX}/where"]
    out = browser.post(f"{PREFIX}/logout", headers=OWN)
    assert out.headers["Location"] == f"{PREFIX}/login"
    assert COOKIE not in browser.cookies


@pytest.mark.parametrize("path", [PREFIX, f"{PREFIX}/"])
def test_the_start_is_with_and_without_a_slash(browser: TestClient, key: str, path: str) -> None:
    assert browser.get(path, headers={"Authorization": f"Bearer {key}"}).text.count("<h1>Jobs</h1>") == 1


def test_problems_name_paths_as_the_client_knows_them(browser: TestClient, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    told = browser.get(f"{PREFIX}/nowhere", headers=headers).json()["detail"]
    assert told == f"there is no route {PREFIX}/nowhere; {PREFIX}/v1/openapi.json lists the routes"
    assert browser.get(f"{PREFIX}/v1/openapi.json", headers=headers).json()["servers"] == [{"url": PREFIX}]
    for path in ("/nowhere", "/broken"):
        assert f'href="{PREFIX}/"' in browser.get(PREFIX + path, headers=headers | PAGE).text
    assert_problem(browser.get(f"{PREFIX}/v1/nowhere", headers=headers | PAGE), 404)


def test_a_real_server_takes_requests_with_and_without_the_prefix(storage: Storage, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with serving(storage, root_path=PREFIX) as url:
        for base in (url, f"{url}{PREFIX}"):
            assert httpx.get(f"{base}/healthz").status_code == 200
            made = httpx.post(f"{base}/v1/jobs", json=JOB, headers=headers)
            assert made.headers["Location"].startswith(f"{PREFIX}/v1/jobs/")
            sent = httpx.get(f"{base}/jobs", headers=PAGE)
            assert sent.headers["Location"] == f"{PREFIX}/login?next=%2Fjobs"
        assert_problem(httpx.get(f"{url}/other{PREFIX}/healthz"), 401)


def test_below_a_mount_paths_are_still_the_services() -> None:
    def tell(request: Request) -> JSONResponse:
        return JSONResponse([path_of(request), url_for_path(request, "/x"), url_for_path(request.scope, "/x")])

    app = UnderPrefix(Starlette(routes=[Mount("/static", routes=[Route("/a", tell)])]), PREFIX)
    assert TestClient(app).get(f"{PREFIX}/static/a").json() == ["/static/a", f"{PREFIX}/x", f"{PREFIX}/x"]


@pytest.mark.parametrize(
    ("given", "prefix"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/", "/a"), ("/a/b.c~d_e-1", "/a/b.c~d_e-1")]
)
def test_a_prefix_is_taken_with_and_without_a_slash_at_its_end(given: str, prefix: str) -> None:
    assert parse_prefix(given) == prefix


@pytest.mark.parametrize("given", ["a", "//a", "/a//b", "/a b", "/a?b", "/a%20b", "/..", "/a/./b", "/ä", "http://x/a"])
def test_what_is_no_prefix_is_refused(storage: Storage, given: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        create_app(storage, root_path=given)
    assert caught.value.field == "root_path"


@given(st.text() | st.text(alphabet="/\\. \t\n:a?#@").map(lambda text: f"/{text}"))
def test_a_local_path_never_leaves_the_service(text: str) -> None:
    """However a browser may read it: it takes backslashes for slashes, and drops tabs and line ends."""
    result = local_path(text)
    seen = "".join(character for character in result if character not in "\t\r\n").replace("\\", "/").strip()
    assert seen.startswith("/")
    assert not seen.startswith("//")
    assert result in (text, "/")
