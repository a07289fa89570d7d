"""Event streams over a real server: nothing missed, nothing twice, nothing left behind."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.serving import JOB, assert_problem, lease, serving, without_table
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import JobState, NewEvent
from tuner.storage.sql import Storage

FAST = Settings(event_poll_s=0.02)


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage, FAST) as url:
        yield url


@pytest.fixture
def client(url: str, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
        yield client


@pytest.fixture
def job_id(storage: Storage) -> str:
    return storage.create_job(parse_job(JOB).on(native()))[0].id


def messages(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream, each with its id."""
    result: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            result[name] = value
        elif "data" in result:
            yield {"id": int(result["id"]), "event": result["event"], **json.loads(result["data"])}
            result = {}


def run_through(storage: Storage, count: int) -> None:
    held = lease(storage)
    for index in range(count):
        storage.append_events(held, [NewEvent("progress", {"index": index})])
    storage.finish_job(held, JobState.COMPLETED)


def test_a_finished_job_streams_whole_and_ends(client: httpx.Client, storage: Storage, job_id: str) -> None:
    run_through(storage, 3)
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        result = list(messages(response))
    assert [event["id"] for event in result] == list(range(1, len(result) + 1))
    assert [event["seq"] for event in result] == [event["id"] for event in result]
    assert [event["data"]["index"] for event in result if event["event"] == "progress"] == [0, 1, 2]
    assert (result[-1]["event"], result[-1]["data"]["state"]) == ("state", "COMPLETED")


def test_events_arrive_as_they_happen(client: httpx.Client, storage: Storage, job_id: str) -> None:
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        stream = messages(response)
        assert next(stream)["data"]["state"] == "WAITING"
        held = lease(storage)
        assert next(stream)["data"]["state"] == "RUNNING"
        for index in range(5):
            storage.append_events(held, [NewEvent("progress", {"index": index})])
            assert next(stream)["data"] == {"index": index}
        storage.finish_job(held, JobState.FAILED, "no device")
        assert next(stream)["data"]["state"] == "FAILED"
        assert list(stream) == []


def test_a_stream_that_is_not_to_follow_ends_with_what_is_stored(
    client: httpx.Client, storage: Storage, job_id: str
) -> None:
    held = lease(storage)
    storage.append_events(held, [NewEvent("progress", {"index": index}) for index in range(700)])
    with client.stream("GET", f"/v1/jobs/{job_id}/events", params={"follow": "false"}) as response:
        result = list(messages(response))
    assert [event["seq"] for event in result] == list(range(1, 703))


@pytest.mark.parametrize("by_header", [True, False])
def test_a_stream_taken_up_again_misses_nothing(
    client: httpx.Client, storage: Storage, job_id: str, by_header: bool
) -> None:
    """Connections that break after every third event, while a worker writes: together they hold each event once."""
    writer = threading.Thread(target=run_through, args=(storage, 40))
    writer.start()
    seen: list[int] = []
    last = ""
    while last not in ("COMPLETED", "FAILED"):
        after = seen[-1] if seen else 0
        request: dict[str, Any] = {"params": {"after": after}}
        if by_header:
            # The header wins: a browser repeats the address that it began with.
            request = {"params": {"after": 0}, "headers": {"Last-Event-ID": str(after)}}
        with client.stream("GET", f"/v1/jobs/{job_id}/events", **request) as response:
            for _, event in zip(range(3), messages(response), strict=False):
                seen.append(event["seq"])
                last = event["data"].get("state", "")
    writer.join(20)
    assert seen == [event.seq for event in storage.list_events(job_id)]
    assert len(seen) >= 43


def test_nothing_new_about_an_ended_job_is_an_empty_stream(client: httpx.Client, storage: Storage, job_id: str) -> None:
    run_through(storage, 0)
    last = storage.list_events(job_id)[-1].seq
    with client.stream("GET", f"/v1/jobs/{job_id}/events", params={"after": last}) as response:
        assert response.status_code == 200
        assert list(messages(response)) == []


def test_a_resumed_job_streams_past_its_first_end(client: httpx.Client, storage: Storage, job_id: str) -> None:
    storage.request_cancel(job_id)
    storage.resume_job(job_id)
    run_through(storage, 1)
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        states = [event["data"]["state"] for event in messages(response) if event["event"] == "state"]
    assert states == ["WAITING", "CANCELLED", "WAITING", "RUNNING", "COMPLETED"]


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "9" * 30])
def test_a_number_that_is_none_is_refused(client: httpx.Client, job_id: str, value: str) -> None:
    path = f"/v1/jobs/{job_id}/events"
    assert_problem(client.get(path, headers={"Last-Event-ID": value}), 422)
    assert_problem(client.get(path, params={"after": value}), 422)


def test_text_with_odd_line_ends_stays_one_event(client: httpx.Client, storage: Storage, job_id: str) -> None:
    text = "a\nb\r\nc\u2028d\x85e\x1cf"
    held = lease(storage)
    storage.append_events(held, [NewEvent("log", {"text": text})])
    storage.finish_job(held, JobState.COMPLETED)
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert [e["data"]["text"] for e in messages(response) if e["event"] == "log"] == [text]


def test_a_client_that_leaves_frees_its_stream(client: httpx.Client, job_id: str) -> None:
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        stream = messages(response)
        next(stream)
        assert _open_streams(client) == 1
    eventually(lambda: _open_streams(client) == 0)


def test_a_stream_outlives_the_database_being_away(
    client: httpx.Client, storage: Storage, database: Path, job_id: str
) -> None:
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        stream = messages(response)
        next(stream)
        with without_table(database, "job_events"):
            time.sleep(5 * FAST.event_poll_s)  # several looks at a database that cannot answer
        run_through(storage, 1)
        assert [event["event"] for event in stream] == ["state", "progress", "state"]


def test_a_stream_ends_in_time_for_its_client_to_connect_again(storage: Storage, key: str, job_id: str) -> None:
    with (
        serving(storage, Settings(event_poll_s=0.02, event_stream_s=0.2)) as url,
        httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", headers={"Authorization": f"Bearer {key}"}) as response,
    ):
        assert len(list(messages(response))) == 1


def _open_streams(client: httpx.Client) -> int:
    figures = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines())
    return int(float(figures["shapewright_open_event_streams"]))


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.02)
