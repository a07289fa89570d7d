"""Costly submissions, over a real connection: each is bounded, and so is what many of them together can take."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service import validation
from service.app import create_app
from service.jobs import service
from service.jobs.schemas import MAX_ANSWERED, MAX_SPEC, TASKS
from shapewright.client import Client
from tests.serving import JOB, assert_problem, serving
from tests.tuner.program.language.test_effort import COSTLY
from tuner.program.job.jobspec import JobSpec
from tuner.program.language.effort import Abandoned
from tuner.storage.sql import Storage
from tuner.storage.sql.schema import search_tasks

YAML = {"Content-Type": "application/yaml"}
SEXAGESIMAL = b"seed: 1" + b":0" * 490_000
INTRICATE = json.dumps(COSTLY["long programs"] | {"budget": {"trials": 1}}).encode()


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage) as url:
        yield url


@pytest.fixture
def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("count", "body", "headers"),
    [
        (45, SEXAGESIMAL, YAML),
        pytest.param(4, INTRICATE, {"Content-Type": "application/json"}, marks=pytest.mark.soak),
    ],
    ids=["yaml", "long"],
)
def test_others_are_answered_while_many_costly_jobs_are_checked(
    url: str, bearer: dict[str, str], count: int, body: bytes, headers: dict[str, str]
) -> None:
    def submit(_: int) -> httpx.Response:
        return httpx.post(f"{url}/v1/jobs", content=body, headers=headers | bearer, timeout=120)

    with ThreadPoolExecutor(count) as clients:
        costly = [clients.submit(submit, number) for number in range(count)]
        meanwhile = 0
        while not all(each.done() for each in costly):
            assert httpx.get(f"{url}/v1/jobs", headers=bearer, timeout=60).status_code == 200
            assert httpx.get(f"{url}/readyz", timeout=60).status_code == 200
            meanwhile += 1
    for each in costly:
        assert_problem(each.result(), 422)
    assert meanwhile > 0
    assert httpx.post(f"{url}/v1/jobs", json=JOB, headers=bearer).status_code == 201


class Held:
    """A check that goes on until it is let go or told to end; it counts itself."""

    def __init__(self) -> None:
        self.begun, self.most, self.abandoned, self._now = 0, 0, 0, 0
        self.free = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> JobSpec:
        abandoned = args[-1]
        with self._lock:
            self.begun += 1
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            while not self.free.wait(0.01):
                if abandoned():
                    self.abandoned += 1
                    raise Abandoned
        finally:
            with self._lock:
                self._now -= 1
        return CHECK(*args)


CHECK = service.check


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    check = Held()
    monkeypatch.setattr(service, "check", check)
    yield check
    check.free.set()


def until(condition: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_few_are_checked_at_once_and_all_in_the_end(url: str, bearer: dict[str, str], held: Held) -> None:
    with ThreadPoolExecutor(10) as clients:
        answers = [
            clients.submit(httpx.post, f"{url}/v1/jobs", json=JOB, headers=bearer, timeout=60) for _ in range(10)
        ]
        until(lambda: held.begun == validation.AT_ONCE)
        assert httpx.get(f"{url}/v1/jobs", headers=bearer).json()["items"] == []
        held.free.set()
    assert [answer.result().status_code for answer in answers] == [201] * 10
    assert held.most == validation.AT_ONCE


def test_more_than_may_wait_are_told_to_come_again(
    url: str, bearer: dict[str, str], held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MAX_WAITING", 1)
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(httpx.post, f"{url}/v1/jobs", json=JOB, headers=bearer, timeout=60) for _ in range(8)]
        until(lambda: sum(answer.done() for answer in answers) == 8 - validation.AT_ONCE - 1)
        held.free.set()
    codes = sorted(answer.result().status_code for answer in answers)
    assert codes == [201] * (validation.AT_ONCE + 1) + [503] * (7 - validation.AT_ONCE)
    refused = next(answer.result() for answer in answers if answer.result().status_code == 503)
    assert_problem(refused, 503)
    assert int(refused.headers["Retry-After"]) > 0


def test_work_ends_when_the_client_has_left(url: str, bearer: dict[str, str], held: Held) -> None:
    parts = urlsplit(url)
    body = json.dumps(JOB).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: test\r\nAuthorization: {bearer['Authorization']}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: held.begun == 1)
    until(lambda: held.abandoned == 1)
    held.free.set()
    assert httpx.get(f"{url}/v1/jobs", headers=bearer).json()["items"] == []
    assert httpx.post(f"{url}/v1/jobs", json=JOB, headers=bearer).status_code == 201


# -- answers ------------------------------------------------------------------------------------------------------
def large() -> dict[str, Any]:
    workloads = [{"op": "dense", "args": {"m": "T", "n": 64 + number, "k": 64}} for number in range(100)]
    values = list(range(1, 3000))
    return {"workloads": workloads, "shape_vars": {"T": {"values": values}}, "budget": {"trials": 1}, "name": "large"}


def test_answers_about_a_large_job_are_bounded_and_the_rest_is_paged(api: TestClient) -> None:
    answer = api.post("/v1/jobs", json=large())
    assert answer.status_code == 201
    assert len(answer.content) < 2 * MAX_ANSWERED + MAX_SPEC
    made = answer.json()
    assert made == api.get(f"/v1/jobs/{made['id']}").json()
    assert made["task_count"] == len(made["workload_keys"]) == 100
    assert made["tasks_next"] == len(made["tasks"]) < TASKS
    tasks, first = made["tasks"], made["tasks_next"]
    while first is not None:
        page = api.get(f"/v1/jobs/{made['id']}/tasks", params={"first": first})
        assert len(page.content) < 2 * MAX_ANSWERED
        tasks += page.json()["items"]
        first = page.json()["next"]
    assert [task["position"] for task in tasks] == list(range(100))
    assert list(dict.fromkeys(task["workload_key"] for task in tasks)) == made["workload_keys"]


def test_the_client_follows_the_pages(url: str, key: str) -> None:
    with Client(url, key) as client:
        made = client.submit(large())
        assert [task["position"] for task in made["tasks"]] == list(range(100))
        assert client.job(made["id"]) == made


def test_a_large_job_file_is_read_apart(api: TestClient) -> None:
    workloads = [
        {"program": f"out[m, n] = x[m, n] + {number} # {'x' * 3000}", "extents": {"m": "T", "n": 8}}
        for number in range(30)
    ]
    job = {"workloads": workloads, "shape_vars": {"T": {"min": 1, "max": 8}}, "budget": {"trials": 1}, "name": "long"}
    made = api.post("/v1/jobs", json=job).json()
    assert not made["spec_complete"]
    assert made["spec"] == {name: value for name, value in job.items() if name != "workloads"}
    assert api.get(f"/v1/jobs/{made['id']}/spec").json() == job


def test_a_job_of_ordinary_size_is_answered_whole(api: TestClient) -> None:
    made = api.post("/v1/jobs", json=JOB).json()
    assert (made["spec"], made["spec_complete"], made["tasks_next"]) == (JOB, True, None)
    assert made["outcome"] == {
        "label": "best so far in the search", "objective_s": None, "speedup_vs_default": None,
        "speedup_vs_numpy": None, "ratios": [], "cautions": [], "known": 0, "searches": 0,
    }  # fmt: skip
    assert_problem(api.get(f"/v1/jobs/{made['id']}/tasks?first=-1"), 422)
    assert_problem(api.get("/v1/jobs/job-0/tasks"), 404)
    assert api.get(f"/v1/jobs/{made['id']}/tasks?first=7").json() == {"items": [], "next": None}


def test_a_row_that_cannot_be_read_is_gone_and_the_log_says_why(
    api: TestClient, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    made = api.post("/v1/jobs", json=JOB).json()
    assert isinstance(storage, Storage)
    with storage._database.write() as connection:
        connection.execute(update(search_tasks).values(task={"workload": {"op": "nosuch"}}))
    for path in (f"/v1/jobs/{made['id']}", f"/v1/jobs/{made['id']}/tasks"):
        answer = api.get(path)
        assert_problem(answer, 410)
        problem = answer.json()
        assert problem["type"] == "urn:shapewright:corrupt-data"
        assert problem["id"] in problem["detail"]
        assert problem["id"] in caplog.text
        assert "nosuch" not in answer.text
    assert "nosuch" in caplog.text


def test_the_forms_check_is_bounded_too(api: TestClient) -> None:
    answer = api.post("/jobs/check", json=large())
    assert answer.status_code == 200
    assert answer.json()["task_count"] == 100
    assert len(answer.json()["tasks"]) < 100
    assert_problem(api.post("/jobs/check", content=INTRICATE, headers={"Content-Type": "application/json"}), 422)


def test_each_service_counts_its_own(storage: Storage) -> None:
    assert create_app(storage).state.validation is not create_app(storage).state.validation
