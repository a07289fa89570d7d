"""Answers that a client has already, and answers that are compressed."""

from __future__ import annotations

import gzip

import pytest
from fastapi.testclient import TestClient

from service.conditional import matches
from tests.serving import JOB, lease, store_library
from tuner.storage import JobState
from tuner.storage.sql import Storage


@pytest.fixture
def key_of_library(api: TestClient, storage: Storage) -> str:
    api.post("/v1/jobs", json=JOB)
    return store_library(storage, lease(storage)).workload_key


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/devices", "/v1/workloads", "/v1/openapi.json"])
def test_what_has_not_changed_is_not_sent_again(api: TestClient, path: str) -> None:
    first = api.get(path)
    again = api.get(path, headers={"If-None-Match": first.headers["ETag"]})

    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert again.headers["Cache-Control"] == "private, no-cache"
    assert "content-type" not in again.headers


def test_a_job_that_has_changed_is_sent(api: TestClient, storage: Storage) -> None:
    path = f"/v1/jobs/{api.post('/v1/jobs', json=JOB).json()['id']}"
    etag = api.get(path).headers["ETag"]
    held = lease(storage)
    running = api.get(path, headers={"If-None-Match": etag})
    assert (running.status_code, running.json()["state"]) == (200, "RUNNING")
    storage.finish_job(held, JobState.COMPLETED)
    ended = api.get(path, headers={"If-None-Match": running.headers["ETag"]})
    assert (ended.status_code, ended.json()["state"]) == (200, "COMPLETED")


def test_a_dispatcher_and_a_workload_are_sent_once(api: TestClient, key_of_library: str) -> None:
    for path in (f"/v1/workloads/{key_of_library}", f"/v1/workloads/{key_of_library}/dispatcher"):
        etag = api.get(path).headers["ETag"]
        assert api.get(path, headers={"If-None-Match": f'"other", {etag}'}).status_code == 304
        assert api.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_errors_and_pages_have_no_etag(api: TestClient) -> None:
    for path in ("/v1/jobs/none", "/", "/docs", "/metrics"):
        assert "etag" not in api.get(path).headers


@pytest.mark.parametrize(
    ("known", "etag", "same"),
    [
        ('W/"a"', 'W/"a"', True),
        ('"a"', 'W/"a"', True),
        ('W/"a"', '"a"', True),
        ('"b", W/"a" ,"c"', '"a"', True),
        ("*", '"a"', True),
        ('"b"', '"a"', False),
        ("a", '"a"', False),
        ("", '"a"', False),
    ],
)
def test_an_etag_is_found_in_a_list(known: str, etag: str, same: bool) -> None:
    assert matches(known, etag) is same


def test_large_answers_are_compressed_for_those_who_can_read_them(api: TestClient) -> None:
    for _ in range(5):
        api.post("/v1/jobs", json=JOB)
    with api.stream("GET", "/v1/jobs", headers={"Accept-Encoding": "gzip"}) as packed:
        raw = b"".join(packed.iter_raw())
    plain = api.get("/v1/jobs", headers={"Accept-Encoding": "identity"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2
    assert "content-encoding" not in plain.headers
    assert packed.headers["ETag"] == plain.headers["ETag"]


def test_small_answers_and_archives_are_sent_as_they_are(api: TestClient, key_of_library: str) -> None:
    for path in ("/v1/healthz", f"/v1/workloads/{key_of_library}/library"):
        assert "content-encoding" not in api.get(path, headers={"Accept-Encoding": "gzip"}).headers
