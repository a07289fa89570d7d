"""GET /jobs/{id}/logs: lines of the parts' logs and the job's events, in order of time, within bounds."""

from __future__ import annotations

import io
import logging
import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.jobs.logs import EVENTS, MAX_READ, elsewhere, lines_about, moment_of, page_of, parts_in
from service.settings import Settings
from tests.serving import JOB, assert_problem, lease, register_local
from tuner import logs
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage import JobState, NewEvent
from tuner.storage.sql import Storage

ABOUT = "job-0123456789abcdef012"


def written(file: Path, kind: str, *, failing: bool = False) -> None:
    """What a process logs of ABOUT, of another job and of nothing, in one of the two forms."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter() if kind == "json" else logs.TextFormatter())
    logger = logging.Logger("worker.jobs")
    logger.addHandler(handler)
    logger.info("nobody's")
    with logs.about(job=ABOUT):
        logger.warning("a device was lost")
        if failing:
            try:
                raise ValueError("for a reason")
            except ValueError:
                logger.exception("it failed")
    with logs.about(job="job-f"):
        logger.info("another's")
    with file.open("a") as out:
        out.write("serving at http://127.0.0.1\n" + stream.getvalue())


@pytest.mark.parametrize("kind", ["text", "json"])
def test_lines_about_a_job_are_found_in_either_form(kind: str, tmp_path: Path) -> None:
    written(tmp_path / "worker.log", kind, failing=True)
    found = lines_about(ABOUT, parts_in(tmp_path), [])
    assert [(line.part, line.level) for line in found] == [("worker", "warning"), ("worker", "error")]
    assert found[0].text.startswith("worker.jobs: a device was lost")
    assert "ValueError: for a reason" in found[1].text, "a traceback belongs to the line before it"
    assert "another's" not in found[1].text
    now = time.strftime("%Y-%m-%dT%H:%M", time.gmtime())
    assert all(line.time.startswith(now[:-1]) and line.time.endswith("+00:00") for line in found)


def test_a_log_that_was_rotated_is_read_on_and_a_large_one_from_its_end(tmp_path: Path) -> None:
    written(tmp_path / "worker.log.1", "text")
    written(tmp_path / "worker.log", "text")
    assert len(lines_about(ABOUT, parts_in(tmp_path), [])) == 2
    with (tmp_path / "worker.log").open("a") as log:
        log.write("x" * 99 + "\n")
        os.truncate(log.fileno(), MAX_READ + 100)
    assert lines_about(ABOUT, parts_in(tmp_path), []) == []


def test_only_plain_logs_of_the_folder_are_read(tmp_path: Path) -> None:
    written(tmp_path / "secret", "text")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.log").symlink_to(tmp_path / "secret")
    (tmp_path / "logs" / "api.log").mkdir()
    assert parts_in(tmp_path / "logs") == {}
    assert parts_in(tmp_path / "none") == {}
    assert parts_in(None) == {}


def test_a_page_is_the_end_or_what_comes_from_a_time_on(tmp_path: Path) -> None:
    lines = [f"2026-01-01 00:00:0{second},000 a INFO {ABOUT} {second}" for second in range(6)]
    (tmp_path / "worker.log").write_text("\n".join(lines))
    every = lines_about(ABOUT, parts_in(tmp_path), [])
    assert page_of(every, None, 2) == every[-2:]
    assert page_of(every, every[2].time, 3) == every[2:5]


def test_a_time_that_is_none_is_shown_without_one(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(
        f"2026-99-99 00:00:00,000 a INFO {ABOUT}\n"
        f'{{"time": "never", "level": "info", "logger": "a", "message": "{ABOUT}"}}\n'
        f'{{"time": 5, "level": "info", "logger": "a", "message": "{ABOUT}"}}\n'
        f"2026-01-01 00:00:00,000 a INFO {ABOUT}\n"
    )
    assert [bool(line.time) for line in lines_about(ABOUT, parts_in(tmp_path), [])] == [False, False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00.500+00:00",
        "2026-01-31T12:00:00.500 00:00",
        "2026-01-31T12:00:00.500Z",
        "2026-01-31T12:00:00.500",
        "2026-01-31 12:00:00.500",
        "2026-01-31T14:00:00.5+02:00",
        "2026-01-31T04:30:00.500999-07:30",
    ],
)
def test_a_time_may_be_written_in_any_zone(text: str) -> None:
    assert moment_of(text) == "2026-01-31T12:00:00.500+00:00"


@pytest.mark.parametrize("text", ["yesterday", "12", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00+23:00", "\0"])
def test_what_is_no_time_is_refused(api: TestClient, text: str) -> None:
    job = api.post("/v1/jobs", json=JOB).json()["id"]
    answer = api.get(f"/v1/jobs/{job}/logs", params={"since": text})
    assert_problem(answer, 422)
    assert answer.json()["field"] == "since"


def test_the_worker_and_the_devices_that_log_on_other_machines_are_named(storage: Storage, tmp_path: Path) -> None:
    here = socket.gethostname()
    register_local(storage)
    for name, key, host in (("local-1", "local", "far"), ("near:local", "local", "near"), ("else-0", "else", "else")):
        storage.register_device(name, key, native(), {"host": host})
    storage.register_device("local-0", "local", native(), {"host": here})
    job, _ = storage.create_job(parse_job(JOB).on(native()))
    devices = storage.list_devices()
    others = ["device local-1 on far", "device near:local"]
    assert elsewhere(job, devices, ["worker", "device-0"]) == others, "no worker has it yet"
    job = replace(job, worker=f"{here}:17")
    assert elsewhere(job, devices, ["worker", "device-0", "api"]) == others
    assert elsewhere(job, devices, ["api"])[:2] == [f"worker {here}:17", f"device local-0 on {here}"]
    assert elsewhere(replace(job, worker="far:4"), devices, ["worker", "device-0"]) == ["worker far:4", *others]


def test_the_route_has_lines_and_events_and_says_when_the_job_has_ended(storage: Storage, tmp_path: Path) -> None:
    register_local(storage)
    job, _ = storage.create_job(parse_job(JOB).on(native()))
    held = lease(storage)
    storage.append_events(held, [NewEvent("log", {"message": "at work"})])
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    (tmp_path / "worker.log").write_text(f"{moment},000 worker WARNING slow [job_id={job.id}]\n")
    app = create_app(storage, settings=Settings(log_dir=str(tmp_path)))
    headers = {"Authorization": f"Bearer {storage.create_key('tests')[1]}"}
    with TestClient(app, headers=headers) as api:
        page = api.get(f"/v1/jobs/{job.id}/logs").json()
        assert (page["parts"], page["ended"]) == (["worker"], False)
        assert page["elsewhere"] == ["worker worker-1", "device local-0"]
        assert [line["text"] for line in page["items"] if line["part"] == EVENTS] == ["WAITING", "RUNNING", "at work"]
        assert [line["level"] for line in page["items"] if line["part"] == "worker"] == ["warning"]
        assert [line["time"] for line in page["items"]] == sorted(line["time"] for line in page["items"])
        assert page["next"] == page["items"][-1]["time"]
        storage.finish_job(held, JobState.FAILED, error="the device burnt down")
        later = api.get(f"/v1/jobs/{job.id}/logs", params={"since": page["next"]}).json()
        assert later["ended"]
        assert later["items"][-1]["text"] == "FAILED: the device burnt down"
        assert len(api.get(f"/v1/jobs/{job.id}/logs", params={"limit": 1}).json()["items"]) == 1
        assert api.get(f"/v1/jobs/{job.id}/logs", params={"limit": 5000}).status_code == 422
        assert api.get("/v1/jobs/job-none/logs").status_code == 404
    with TestClient(create_app(storage), headers=headers) as api:
        page = api.get(f"/v1/jobs/{job.id}/logs").json()
        assert page["parts"] == []
        assert {line["part"] for line in page["items"]} == {EVENTS}
