"""What is known of every request: its id, its log line, its place in the figures."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from io import StringIO

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from tests.serving import JOB, lease, store_library
from tuner import logs
from tuner.storage.sql import Storage

COUNT = "shapewright_request_seconds_count"


@pytest.fixture
def logged() -> Iterator[StringIO]:
    """What is logged as JSON lines, by the whole process."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before)


def lines_of(stream: StringIO, path: str) -> list[dict[str, object]]:
    answer = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in answer if line.get("path") == path]


def test_each_answer_has_an_id_of_its_own_or_the_clients(api: TestClient) -> None:
    first, second = (api.get("/v1/jobs").headers["X-Request-Id"] for _ in range(2))
    assert first != second
    assert api.get("/v1/jobs", headers={"X-Request-Id": "build-7.a:b"}).headers["X-Request-Id"] == "build-7.a:b"
    assert api.get("/v1/nothing", headers={"X-Request-Id": "x"}).headers["X-Request-Id"] == "x"
    stranger = api.get("/v1/jobs", headers={"Authorization": "Bearer wrong", "X-Request-Id": "y"})
    assert (stranger.status_code, stranger.headers["X-Request-Id"]) == (401, "y")


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 129, "a\u00e9", "<script>"])
def test_an_id_that_would_spoil_a_log_is_replaced(api: TestClient, wrong: str) -> None:
    result = api.get("/v1/jobs", headers={"X-Request-Id": wrong.encode("latin-1")}).headers["X-Request-Id"]
    assert result != wrong
    assert result.isalnum()


def test_a_defect_tells_its_id_to_the_client(storage: Storage, key: str, logged: StringIO) -> None:
    app = create_app(storage)

    @app.get("/v1/broken")
    def broken() -> None:
        raise ZeroDivisionError

    client = TestClient(app, headers={"Authorization": f"Bearer {key}"}, raise_server_exceptions=False)
    answer = client.get("/v1/broken", headers={"X-Request-Id": "r-1"})
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (500, "r-1")
    (line,) = lines_of(logged, "/v1/broken")
    assert (line["request_id"], line["status"], line["method"]) == ("r-1", 500, "GET")


def test_what_changes_something_is_logged_and_what_only_reads_is_not(api: TestClient, logged: StringIO) -> None:
    api.post("/v1/jobs", json=JOB, headers={"X-Request-Id": "r-2"})
    api.get("/v1/jobs")
    result = lines_of(logged, "/v1/jobs")
    assert [(line["method"], line["status"], line["request_id"]) for line in result] == [("POST", 201, "r-2")]
    assert isinstance(result[0]["seconds"], float)


def test_requests_are_counted_by_route_and_not_by_path(api: TestClient) -> None:
    for path in ("/v1/jobs/job-a", "/v1/jobs/job-b", "/jobs/job-c", "/no/such/path", "/v1/none"):
        api.get(path)
    text = api.get("/metrics").text.splitlines()
    counts = {line.partition(" ")[0]: float(line.partition(" ")[2]) for line in text if line.startswith(COUNT)}
    assert counts[f'{COUNT}{{method="GET",route="/v1/jobs/{{job_id}}",status="4xx"}}'] == 2
    assert counts[f'{COUNT}{{method="GET",route="/jobs/{{job_id}}",status="4xx"}}'] == 1
    assert counts[f'{COUNT}{{method="GET",route="unmatched",status="4xx"}}'] == 2
    assert not any("job-a" in name or "such" in name for name in counts)


def test_lookups_are_counted_by_how_they_were_found(api: TestClient, storage: Storage) -> None:
    key = api.post("/v1/jobs", json=JOB).json()["workload_keys"][0]
    api.get(f"/v1/workloads/{key}/best?shape=T=5").raise_for_status()
    store_library(storage, lease(storage))
    for _ in range(2):
        api.get(f"/v1/workloads/{key}/best?shape=T=5").raise_for_status()
    text = api.get("/metrics").text.splitlines()
    assert 'shapewright_lookups_total{match="default"} 1.0' in text
    assert 'shapewright_lookups_total{match="dispatched"} 2.0' in text


def test_the_figures_tell_of_queue_devices_and_connections(api: TestClient) -> None:
    api.post("/v1/jobs", json=JOB)
    names = {line.split("{")[0].split(" ")[0]: line for line in api.get("/metrics").text.splitlines()}
    assert float(names["shapewright_queue_age_seconds"].split()[-1]) >= 0.0
    assert 'device="local-0",key="local"' in names["shapewright_device_seen_age_seconds"]
    assert names["shapewright_device_busy_ratio"].endswith(" 0.0")
    for name in ("trials_total", "records", "events_total", "database_connections"):
        assert f"shapewright_{name}" in names
