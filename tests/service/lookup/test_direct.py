"""GET /v1/workloads/{key}/best past the framework: the same answers and refusals as those of the route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest
from fastapi.testclient import TestClient
from starlette.middleware import Middleware

from service.app import create_app
from service.lookup.batching import LookupBatcher
from service.lookup.direct import ROUTE, DirectLookups
from service.lookup.lookups import Query
from tests.serving import JOB, assert_problem, lease, store_library
from tuner.errors import InvalidInput
from tuner.storage import CorruptData, Lease, NotFound, StorageUnavailable
from tuner.storage.sql import Storage

QUERIES = (
    "shape=T=5",
    "shape=m%3D80&threads=1",
    "shape=T=5&target=",
    "shape=T%3D5&job=JOB",
    "threads=1&shape=T=128",
    "shape=T=500",
)
REFUSED = (
    "",
    "shape=T=0.5",
    "shape=x=5",
    "shape=T=5&threads=0",
    "shape=T=5&threads=many",
    "shape=T=5&threads=2",
    "shape=T=5&target=native",
    "shape=T=5&target=llvm-none-0",
    "shape=T=5&job=job-none",
    f"shape=T=5&job={'x' * 201}",
)


@pytest.fixture
def held(api: TestClient, storage: Storage) -> Lease:
    assert api.post("/v1/jobs", json=JOB).status_code == 201
    held = lease(storage)
    store_library(storage, held)
    return held


@pytest.fixture
def routed(storage: Storage, key: str) -> Iterator[TestClient]:
    """The service with the route alone."""
    app = create_app(storage)
    app.user_middleware = [each for each in app.user_middleware if not is_direct(each)]
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


def is_direct(middleware: Middleware) -> bool:
    return getattr(middleware.cls, "__name__", "") == DirectLookups.__name__


def test_the_application_has_both(storage: Storage) -> None:
    app = create_app(storage)
    assert any(map(is_direct, app.user_middleware))
    paths = app.openapi()["paths"]
    assert ROUTE.path in paths


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_the_route(api: TestClient, routed: TestClient, held: Lease, query: str) -> None:
    path = f"/v1/workloads/{held.tasks[0].workload_key}/best?{query.replace('JOB', held.job.id)}"
    direct, expected = api.get(path), routed.get(path)
    assert direct.status_code == 200
    assert (direct.json(), direct.headers["etag"]) == (expected.json(), expected.headers["etag"])
    unchanged = api.get(path, headers={"If-None-Match": direct.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


@pytest.mark.parametrize("query", REFUSED)
def test_refusals_are_those_of_the_route(api: TestClient, routed: TestClient, held: Lease, query: str) -> None:
    path = f"/v1/workloads/{held.tasks[0].workload_key}/best?{query}"
    direct, expected = api.get(path), routed.get(path)
    assert_problem(direct, expected.status_code)
    assert direct.json() == expected.json()


def test_a_parameter_given_twice_and_another_method_are_left_to_the_route(
    api: TestClient, routed: TestClient, held: Lease
) -> None:
    path = f"/v1/workloads/{held.tasks[0].workload_key}/best"
    twice = f"{path}?shape=T=5&shape=T=6"
    assert api.get(twice).json() == routed.get(twice).json()
    assert api.post(path).status_code == routed.post(path).status_code == 405


def test_an_unknown_workload_is_not_found(api: TestClient, held: Lease) -> None:
    assert_problem(api.get("/v1/workloads/wl-none/best?shape=T=5"), 404)


def test_without_a_key_nothing_is_told(api: TestClient, held: Lease) -> None:
    path = f"/v1/workloads/{held.tasks[0].workload_key}/best?shape=T=5"
    assert_problem(api.get(path, headers={"Authorization": "Bearer none"}), 401)


def test_under_a_prefix_it_is_the_same_route(storage: Storage, key: str, held: Lease) -> None:
    path = f"/tools/v1/workloads/{held.tasks[0].workload_key}/best?shape=T=5"
    app = create_app(storage, root_path="/tools")
    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as client:
        assert client.get(path).json()["match"] == "dispatched"
        figures = client.get("/tools/metrics").text
    assert 'route="/v1/workloads/{key}/best",status="2xx"' in figures


@pytest.mark.parametrize(
    "error",
    [
        NotFound("no job"),
        InvalidInput("shape", "does not fit", "as in T=37"),
        StorageUnavailable("the database is away"),
    ],
)
def test_what_a_lookup_raises_is_answered_as_by_the_route_and_asked_once(
    api: TestClient, routed: TestClient, held: Lease, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls = failing(monkeypatch, error)
    path = f"/v1/workloads/{held.tasks[0].workload_key}/best?shape=T=5"
    direct = api.get(path)
    assert len(calls) == 1
    expected = routed.get(path)
    assert (direct.status_code, direct.json()) == (expected.status_code, expected.json())
    assert direct.headers.get("retry-after") == expected.headers.get("retry-after")


def test_what_is_wrong_with_the_database_is_told_by_the_route(
    api: TestClient, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = failing(monkeypatch, CorruptData("a row cannot be read"))
    assert_problem(api.get(f"/v1/workloads/{held.tasks[0].workload_key}/best?shape=T=5"), 410)
    assert len(calls) == 2


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[Query]:
    """What is asked from here on; each lookup raises the error."""
    calls: list[Query] = []

    async def fail(batcher: LookupBatcher, query: Query) -> NoReturn:
        calls.append(query)
        raise error

    monkeypatch.setattr(LookupBatcher, "best", fail)
    return calls
