"""The client against a real service on a real connection."""

from __future__ import annotations

import io
import json
import socket
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from shapewright import download
from shapewright.client import BadDownload, Client, NotAllowed, Refused, ServiceNotFound, ServiceUnreachable
from shapewright.queries import DEFAULT_BUDGET
from tests.serving import JOB, lease, serving, small_dispatcher, store_library
from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LibraryFiles, package
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import WorkloadInstance
from tuner.records import MeasureResult
from tuner.schedule.space import MicroKernel
from tuner.storage import JobState, Lease, NewEvent
from tuner.storage.sql import Storage

pytestmark = pytest.mark.usefixtures("local_device")


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def url(storage: Storage) -> Iterator[str]:
    with serving(storage, Settings(event_poll_s=0.02)) as url:
        yield url


@pytest.fixture
def key(storage: Storage) -> str:
    return storage.create_key("tests")[1]


@pytest.fixture
def client(url: str, key: str) -> Iterator[Client]:
    with Client(url, key) as client:
        yield client


@pytest.fixture
def nobody() -> str:
    """A URL that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_job_is_submitted_shown_cancelled_and_resumed(client: Client) -> None:
    made = client.submit(JOB)
    assert client.job(made["id"]) == made
    assert [item["id"] for item in client.jobs()] == [made["id"]]
    assert client.jobs("COMPLETED") == []
    assert client.cancel(made["id"])["state"] == "CANCELLED"
    assert client.resume(made["id"])["state"] == "WAITING"


def test_a_job_can_be_the_text_of_its_file(client: Client) -> None:
    first = client.submit(json.dumps(JOB, indent=2), idempotency_key="k")
    assert client.submit(JOB, idempotency_key="k")["id"] == first["id"]


def test_a_job_can_be_a_search_task_a_mapping_or_a_path(client: Client, tmp_path: Path) -> None:
    task = parse_job(JOB).tasks[0]
    made = client.submit(task)
    assert SearchTask.from_json(made["tasks"][0]["task"]).workload == task.workload
    assert made["spec"]["budget"] == DEFAULT_BUDGET
    assert client.submit(task, budget={"trials": 3}, name="mine")["spec"]["budget"] == {"trials": 3}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    assert client.submit(file)["spec"] == client.submit(str(file))["spec"] == client.submit(JOB)["spec"]
    assert client.submit(JOB, budget={"trials": 3})["spec"] == {**JOB, "budget": {"trials": 3}}


def test_what_is_no_job_says_what_would_be(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"int is no job.*SearchTask"):
        client.submit(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="budget: a job file has its own fields"):
        client.submit(json.dumps(JOB), budget={"trials": 3})
    with pytest.raises(FileNotFoundError, match=r"none\.yaml"):
        client.submit(str(tmp_path / "none.yaml"))


def test_a_list_longer_than_a_page_is_followed(client: Client) -> None:
    made = [client.submit({**JOB, "seed": seed})["id"] for seed in range(3)]
    assert [item["id"] for item in client.jobs(limit=2)] == made[:0:-1]
    assert len(client.jobs(limit=1000)) == 3


def test_a_refusal_carries_the_field_the_problem_and_the_remedy(client: Client) -> None:
    with pytest.raises(Refused, match=r"workload\.op") as caught:
        client.submit({**JOB, "workload": {"op": "dens", "args": {}}})
    assert caught.value.problem["field"] == "workload.op"
    assert "dense" in caught.value.problem["remedy"]


def test_what_is_not_there_is_not_found(client: Client) -> None:
    for call in (client.job, client.cancel, client.resume, client.dispatcher):
        with pytest.raises(ServiceNotFound):
            call("nothing-0")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b"])
def test_a_name_cannot_lead_to_another_route(client: Client, name: str) -> None:
    with pytest.raises(InvalidInput):
        client.job(name)


def test_a_wrong_key_says_where_keys_come_from(url: str) -> None:
    with Client(url, "wrong") as client, pytest.raises(NotAllowed, match=r"SHAPEWRIGHT_API_KEY.*client\.key"):
        client.jobs()


def test_no_service_says_where_it_was_looked_for(nobody: str) -> None:
    with Client(nobody, "k") as client, pytest.raises(ServiceUnreachable, match=nobody):
        client.jobs()


@pytest.mark.parametrize(
    ("url", "key", "field"),
    [
        ("http://[::1", "k", "url"),
        (f"http://{'a' * 64}.example", "k", "url"),
        ("http://a..b", "k", "url"),
        ("http://xn--a", "k", "url"),
        ("http://x", "schlüssel", "key"),
        ("http://x", "secret\nwords", "key"),
        ("http://x", "secret\0", "key"),
    ],
)
def test_settings_that_cannot_work_are_named(url: str, key: str, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Client(url, key)
    assert refused.value.field == field
    assert "secret" not in str(refused.value)


def test_a_line_end_is_no_part_of_a_key(url: str, key: str) -> None:
    with Client(url, f"{key}\n") as client:
        assert client.jobs() == []


def test_the_key_of_up_is_found_in_the_data_directory(
    url: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHAPEWRIGHT_API_KEY", raising=False)
    monkeypatch.setenv("SHAPEWRIGHT_URL", url)
    (tmp_path / "client.key").write_text(f"{key}\n")
    with Client(data_dir=tmp_path) as client:
        assert client.jobs() == []
    monkeypatch.setenv("SHAPEWRIGHT_DATA_DIR", str(tmp_path))
    with Client() as client:
        assert client.jobs() == []
    monkeypatch.setenv("SHAPEWRIGHT_API_KEY", "wrong")
    with Client() as client, pytest.raises(NotAllowed):
        client.jobs()


def test_events_come_once_each_until_the_job_has_ended(client: Client, storage: Storage) -> None:
    made = client.submit(JOB)
    held = lease(storage)
    storage.append_events(held, [NewEvent("progress", {"index": 1})])
    storage.finish_job(held, JobState.COMPLETED)
    events = list(client.events(made["id"]))
    assert [event["seq"] for event in events] == [1, 2, 3, 4]
    assert events[-1]["data"]["state"] == "COMPLETED"
    assert [event["seq"] for event in client.events(made["id"], after=3)] == [4]
    assert list(client.events(made["id"], after=4)) == []


def test_stored_events_are_told_without_waiting_for_more(client: Client, storage: Storage) -> None:
    made = client.submit(JOB)
    storage.append_events(lease(storage), [NewEvent("progress", {"index": 1})])
    assert [event["seq"] for event in client.events(made["id"], follow=False)] == [1, 2, 3]
    assert list(client.events(made["id"], after=3, follow=False)) == []


def test_events_go_on_when_the_service_comes_back(storage: Storage, key: str) -> None:
    """The service is stopped in the middle of a stream and started again on its port: nothing missed or doubled."""
    with serving(storage) as url:
        port = int(url.rpartition(":")[2])
        with Client(url, key) as client:
            job_id = client.submit(JOB)["id"]
        held = lease(storage)
        waited: list[float] = []
        watching = Client(url, key, sleep=waited.append)
        events = watching.events(job_id)
        seen = [next(events)["seq"], next(events)["seq"]]
    storage.append_events(held, [NewEvent("progress", {"index": index}) for index in range(3)])
    storage.finish_job(held, JobState.COMPLETED)
    with serving(storage, port=port):
        seen += [event["seq"] for event in events]
    watching.close()
    assert seen == list(range(1, 7))
    assert waited


def test_events_give_up_when_the_service_stays_away(nobody: str) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    client = Client(nobody, "k", clock=lambda: now[0], sleep=sleep)
    with client, pytest.raises(ServiceUnreachable):
        next(client.events("job-1", retry_s=30.0))
    assert 30 < now[0] < 40


def test_a_stream_that_breaks_in_the_middle_of_an_event_is_taken_up_before_it() -> None:
    event = 'event: log\ndata: {"seq": %d, "kind": "log", "data": {}}\nid: %d\n\n'
    answers = [event % (1, 1) + (event % (2, 2))[:40], event % (2, 2) + ": end\n\n"]
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)

        def answer() -> None:
            for body in answers:
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(65536).decode())
                    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                    connection.sendall((head + body).encode())

        thread = threading.Thread(target=answer)
        thread.start()
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}", "k", sleep=lambda _: None) as client:
            assert [result["seq"] for result in client.events("job-1")] == [1, 2]
        thread.join(20)
    assert "last-event-id: 0" in asked[0].lower()
    assert "last-event-id: 1" in asked[1].lower()


def test_trials_are_followed_to_the_last(client: Client, storage: Storage) -> None:
    made = client.submit(JOB)
    held = lease(storage)
    results = [
        MeasureResult(MicroKernel("r", 1, (("a", index),)), WorkloadInstance.of({"T": 5}), latency_s=1e-3)
        for index in range(1200)
    ]
    storage.append_results(held, held.tasks[0].id, results)
    trials = list(client.trials(made["id"]))
    assert [trial["kernel"]["values"]["a"] for trial in trials] == list(range(1200))
    assert list(client.trials(made["id"], after=trials[-1]["seq"])) == []


def test_best_takes_a_key_a_task_or_a_job(client: Client) -> None:
    made = client.submit(JOB)
    task = parse_job(JOB).tasks[0]
    key = made["workload_keys"][0]
    answers = [client.best(w, {"T": 37}) for w in (key, task, task.workload, JOB)]
    answers.append(client.best(key, "m=592"))
    # Another job that computes the same, in variables of its own.
    other = {**JOB, "workload": {**JOB["workload"], "args": {**JOB["workload"]["args"], "m": "8*S"}}}
    answers.append(client.best({**other, "shape_vars": {"S": {"min": 1, "max": 128}}, "instances": [{"S": 1}]}, "S=74"))
    assert [answer["match"] for answer in answers] == ["default"] * 6
    assert all(answer == answers[0] for answer in answers)
    with pytest.raises(InvalidInput, match="give T"):
        client.best(task, {"S": 37})
    two = {**JOB, "workloads": [JOB["workload"], {"op": "matmul", "args": {"m": "T", "n": 8, "k": 8}}]}
    del two["workload"]
    with pytest.raises(InvalidInput, match="2 of them"):
        client.best(two, {"T": 37})


def test_best_is_of_the_threads_and_the_job_that_are_asked_for(client: Client) -> None:
    made = client.submit({**JOB, "threads": 2})
    key, task = made["workload_keys"][0], parse_job({**JOB, "threads": 2}).tasks[0]
    assert client.best(task, {"T": 37})["threads"] == 2
    assert client.best(key, "m=592", threads=2, job=made["id"])["threads"] == 2
    with pytest.raises(ServiceNotFound, match="with 1 thread"):
        client.best(key, "m=592")
    with pytest.raises(ServiceNotFound, match="job-none"):
        client.best(key, "m=592", threads=2, job="job-none")


def test_many_lookups_are_one_call(client: Client) -> None:
    key = client.submit(JOB)["workload_keys"][0]
    result, missing = client.lookup([{"workload": JOB["workload"], "shape": {"T": 37}}, {"workload_key": "wl-0"}])
    assert result == {"best": client.best(key, "m=592"), "problem": None}
    assert (missing["best"], missing["problem"]["status"]) == (None, 404)


def test_a_library_is_written_as_it_was_stored(client: Client, storage: Storage, tmp_path: Path) -> None:
    key = client.submit(JOB)["workload_keys"][0]
    held = lease(storage)
    artifact = store_library(storage, held)
    manifest = client.download_library(key, tmp_path / "a" / "lib", digest=artifact.digest)
    assert manifest == artifact.manifest
    assert _content(tmp_path / "a" / "lib") == storage.artifact_files(artifact.digest)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["lib"]
    for job in (None, held.job.id):
        assert Dispatcher.from_json(client.dispatcher(key, job=job)) == small_dispatcher(held.tasks[0].task)
    with pytest.raises(ServiceNotFound):
        client.dispatcher(key, job="another")


def test_a_library_replaces_the_one_before_it(client: Client, storage: Storage, tmp_path: Path) -> None:
    key = client.submit(JOB)["workload_keys"][0]
    held = lease(storage)
    first, second = (store_library(storage, held, content) for content in (b"first", b"second"))
    client.download_library(key, tmp_path / "lib", digest=first.digest)
    with (tmp_path / "lib" / "library.so").open("rb") as loaded:
        client.download_library(key, tmp_path / "lib", digest=second.digest)
        assert loaded.read() == b"first"  # a process that had it open keeps what it opened
    assert _content(tmp_path / "lib") == storage.artifact_files(second.digest)


def test_without_a_service_the_directory_stays_as_it_was(
    client: Client, storage: Storage, tmp_path: Path, nobody: str
) -> None:
    key = client.submit(JOB)["workload_keys"][0]
    store_library(storage, lease(storage))
    client.download_library(key, tmp_path / "lib")
    before = _content(tmp_path / "lib")
    with Client(nobody, "k") as away, pytest.raises(ServiceUnreachable):
        away.download_library(key, tmp_path / "lib")
    assert _content(tmp_path / "lib") == before


def test_a_library_with_a_changed_file_is_not_written(client: Client, storage: Storage, tmp_path: Path) -> None:
    key = client.submit(JOB)["workload_keys"][0]
    held = lease(storage)
    library = _library(held)
    files = {**library.files, "library.so": b"something else"}
    storage.save_library(held, held.tasks[0].id, files, library.manifest, library.dispatch)
    with pytest.raises(BadDownload, match=r"library\.so"):
        client.download_library(key, tmp_path / "lib")
    assert not (tmp_path / "lib").exists()


def test_a_damaged_transfer_is_noticed() -> None:
    with pytest.raises(BadDownload, match="damaged"):
        download.check_transfer(b"x", "sha-256=:AAAA:")
    with pytest.raises(BadDownload, match="not an archive"):
        download.unpack(b"<html>")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", ".."])
def test_an_archive_cannot_write_elsewhere(name: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(name, b"x")
    with pytest.raises(BadDownload, match="plain name"):
        download.unpack(buffer.getvalue())


def test_what_came_must_be_whole_and_what_was_asked_for(client: Client, storage: Storage) -> None:
    client.submit(JOB)
    library = _library(lease(storage))
    digest = library.manifest["digest"]
    whole = dict(library.files)
    assert download.check(whole, digest) == json.loads(whole["manifest.json"])
    without = {name: {other: whole[other] for other in whole if other != name} for name in whole}
    for files in (*without.values(), {**whole, "more": b""}, {**whole, "manifest.json": b"[]"}, {}):
        with pytest.raises(BadDownload):
            download.check(files, digest)
    with pytest.raises(BadDownload, match="asked for"):
        download.check(whole, "0" * 64)


def _library(held: Lease) -> LibraryFiles:
    return package(small_dispatcher(held.tasks[0].task), b"machine code", "{}", {}, held.job.id)


def _content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}
