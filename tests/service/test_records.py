"""The routes under /records: streams both ways, bounded, and nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.dependencies import IMPORTS
from service.records.service import IMPORT_BATCH, lines_of
from service.settings import Settings
from tests.contract.samples import results
from tests.contract.test_storage_sharing import TASKS, drawn
from tests.serving import JOB, assert_problem, lease
from tuner.storage.jsonl import MAX_LEVELS, MAX_LINE, write_records
from tuner.storage.sql import Storage, open_storage, upgrade

HEADER = "".join(write_records([]))
JSONL = {"Content-Type": "application/jsonl"}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[TestClient]:
    """Another team's service."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    upgrade(url)
    storage = open_storage(url)
    headers = {"Authorization": f"Bearer {storage.create_key('tests')[1]}"}
    with TestClient(create_app(storage), headers=headers, raise_server_exceptions=False) as client:
        yield client
    storage.close()


def file_of(count: int, seed: int = 0) -> str:
    return "".join(write_records(drawn(seed, count)))


def test_an_empty_service_exports_a_header(api: TestClient) -> None:
    answer = api.get("/v1/records")
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.text == HEADER


@pytest.mark.parametrize("count", [1, 99, 100, 101])
def test_what_is_imported_elsewhere_and_back_is_the_same(
    api: TestClient, other: TestClient, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("service.records.service.EXPORT_PAGE", 100)
    monkeypatch.setattr("service.records.service.IMPORT_BATCH", 50)
    sent = file_of(count)
    assert api.post("/v1/records", content=sent, headers=JSONL).json() == {"added": count, "known": 0}
    first = api.get("/v1/records").text
    assert first == sent
    assert other.post("/v1/records", content=first, headers=JSONL).json() == {"added": count, "known": 0}
    assert other.get("/v1/records").text == first
    assert api.post("/v1/records", content=first, headers=JSONL).json() == {"added": 0, "known": count}


def test_what_was_measured_here_is_exported_and_known(api: TestClient, storage: Storage) -> None:
    api.post("/v1/jobs", json=JOB)
    held = lease(storage)
    storage.append_results(held, held.tasks[0].id, results(4))
    first = api.get("/v1/records").text
    assert len(first.splitlines()) == 5
    assert json.loads(first.splitlines()[1])["job_id"] == held.job.id
    assert api.post("/v1/records", content=first, headers=JSONL).json() == {"added": 0, "known": 4}


def test_workloads_can_be_named(api: TestClient) -> None:
    api.post("/v1/records", content=file_of(60), headers=JSONL)
    keys = [task.workload.key for task in TASKS]
    result = api.get("/v1/records", params={"workload": keys[:2]}).text.splitlines()[1:]
    assert {json.loads(line)["workload_key"] for line in result} == set(keys[:2])
    assert_problem(api.get("/v1/records?workload=wl-none"), 404)
    assert_problem(api.get("/v1/records", params={"workload": ["x"] * 201}), 422)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("", "line 1"),
        ('{"a": 1}\n', "line 1.format"),
        (HEADER + "no JSON\n", "line 2"),
        (HEADER + '{"a": 1}\n', "line 2"),
        (HEADER + "x" * (MAX_LINE + 2), "line 2"),
        ("x" * (3 * MAX_LINE), "line 1"),
    ],
)
def test_what_is_no_file_of_records_is_refused_with_its_line(api: TestClient, body: str, field: str) -> None:
    answer = api.post("/v1/records", content=body, headers=JSONL)
    assert_problem(answer, 422)
    assert answer.json()["field"].startswith(field)
    assert api.get("/v1/records").text == HEADER


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *((name, 10**400) for name in ("latency_s", "anchor_s", "predicted_s", "build_s", "run_s")),
        ("latency_s", 2**70),
        ("samples_s", [10**400]),
        ("instance", {"weight": 10**400}),
    ],
)
def test_a_number_that_no_database_takes_is_refused(api: TestClient, member: str, value: object) -> None:
    head, line = file_of(1).splitlines()
    record = json.loads(line)
    result = record["result"]
    result[member] = {**result[member], **value} if isinstance(value, dict) else value
    answer = api.post("/v1/records", content=f"{head}\n{json.dumps(record)}\n", headers=JSONL)
    assert_problem(answer, 422)
    assert answer.json()["field"].startswith(f"line 2.result.{member}")


@pytest.mark.parametrize("levels", [MAX_LEVELS, 150, 700])
def test_what_is_carried_along_is_not_too_deep(api: TestClient, levels: int) -> None:
    head, line = file_of(1).splitlines()
    deep = line.replace('"provenance":{', f'"provenance":{{"x":{"[" * levels}{"]" * levels},', 1)
    answer = api.post("/v1/records", content=f"{head}\n{deep}\n", headers=JSONL)
    assert_problem(answer, 422)
    assert answer.json()["field"] == "line 2"
    most = MAX_LEVELS - 2
    shallow = deep.replace("[" * levels + "]" * levels, "[" * most + "]" * most)
    assert api.post("/v1/records", content=f"{head}\n{shallow}\n", headers=JSONL).json()["added"] == 1
    assert "[[[[" in api.get("/v1/records").text


def test_lines_before_a_wrong_one_are_kept_and_the_mended_file_adds_the_rest(api: TestClient) -> None:
    lines = file_of(IMPORT_BATCH + 10).splitlines(keepends=True)
    broken = [*lines[: IMPORT_BATCH + 5], "nothing\n", *lines[IMPORT_BATCH + 5 :]]
    answer = api.post("/v1/records", content="".join(broken), headers=JSONL)
    assert_problem(answer, 422)
    assert answer.json()["field"] == f"line {IMPORT_BATCH + 6}"
    mended = api.post("/v1/records", content="".join(lines), headers=JSONL).json()
    assert mended == {"added": 10, "known": IMPORT_BATCH}


def test_only_so_many_imports_at_once(storage: Storage, key: str) -> None:
    app = create_app(storage)
    for _ in range(IMPORTS):
        assert app.state.imports.acquire(blocking=False)
    client = TestClient(app, headers={"Authorization": f"Bearer {key}"})
    answer = client.post("/v1/records", content=HEADER, headers=JSONL)
    assert_problem(answer, 503)
    assert int(answer.headers["Retry-After"]) > 0


def test_a_body_larger_than_that_of_other_routes_is_taken(storage: Storage, key: str) -> None:
    settings = Settings(max_body_bytes=10_000)
    client = TestClient(create_app(storage, settings=settings), headers={"Authorization": f"Bearer {key}"})
    sent = file_of(50)
    assert len(sent) > 10_000
    assert client.post("/v1/records", content=sent, headers=JSONL).json()["added"] == 50
    assert_problem(client.post("/v1/jobs", content=sent, headers={"Content-Type": "application/json"}), 413)


def test_lines_come_whole_however_they_are_cut() -> None:
    text = "".join(file_of(5)).encode()
    for size in (1, 7, 1000, len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert b"\n".join(lines_of(pieces)) + b"\n" == text
    assert list(lines_of([b"a\n\nb"])) == [b"a", b"", b"b"]
    assert list(lines_of([])) == []


def test_a_line_without_an_end_is_not_collected() -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_536

    assert len(list(lines_of(endless()))) == 1
    assert taken < 40
