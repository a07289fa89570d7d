from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from shapewright.cli.options import CALIBRATION
from shapewright.watchdog import marked
from tests.e2e.conftest import JOB, Up, until
from tuner.storage.sql import open_storage

Start = Callable[..., Up]
LIBRARY = {"library.so", "dispatch.json", "manifest.json"}


@pytest.fixture
def one_core() -> Iterator[None]:
    """For all that the test starts: a worker has a process to build in, and Ray one to spare, for each core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("calibration", ["off", pytest.param("on", marks=pytest.mark.soak)])
def test_from_nothing_to_a_library_and_back_to_nothing(start: Start, tmp_path: Path, calibration: str) -> None:
    up = start(**{CALIBRATION: calibration})
    up_id = up.up_id
    up.job.write_text(JOB.replace("{m: 16*T, n: 64, k: 32}", "{m: T, n: 16, k: 8}").replace("trials: 8", "trials: 2"))
    assert stat.S_IMODE((up.data_dir / "client.key").stat().st_mode) == 0o600
    (device,) = up.shapewright("devices", "--json").json
    assert device["key"] == "local"
    assert device["token_id"], "it joined by the token that `up` made"
    check_link(up)
    done = up.shapewright("submit", up.job, "--wait", "--timeout", 240, "--json")
    assert done.code == 0, done.out + up.logs()
    assert done.json["state"] == "COMPLETED"
    assert 0 < done.json["trials"] <= 2
    assert "trials" in done.err
    (key,) = done.json["workload_keys"]
    best = up.shapewright("best", key, "--shape", "T=5", "--json").json
    assert best["match"] in ("exact", "dispatched")
    assert best["kernel"]["id"]
    check_library(up, key, done.json["job_id"], tmp_path / "library")
    assert up.shapewright("jobs", "--key", "wrong").code == 4
    assert len(marked(up_id)) > 5
    assert up.stop() == 0
    assert marked(up_id) == []
    (token,) = up.shapewright("device-tokens", "list", "--json").json
    assert (token["id"], token["state"], token["required"]) == (device["token_id"], "revoked", False)
    gone = up.shapewright("jobs", "--json")
    assert gone.code == 3
    assert "shapewright up" in gone.json["error"]["message"]


@pytest.mark.soak
def test_the_same_on_postgresql_and_killed_without_warning(start: Start, postgres_url: str) -> None:
    up = start("--database-url", postgres_url)
    up_id = up.up_id
    done = up.shapewright("submit", up.job, "--wait", "--timeout", 240, "--json")
    assert done.code == 0, done.out + up.logs()
    storage = open_storage(postgres_url)
    records = storage.list_trials(done.json["job_id"])
    storage.close()
    assert len(records) == done.json["trials"] > 0
    os.kill(up.process.pid, signal.SIGKILL)
    up.process.wait(30)
    until(lambda: marked(up_id) == [])


@pytest.mark.soak
def test_a_worker_killed_in_mid_search_is_replaced_and_the_job_completes(start: Start) -> None:
    up = start()
    up.job.write_text(JOB.replace("trials: 8", "trials: 24"))
    job_id = up.shapewright("submit", up.job, "--json").json["job_id"]
    storage = open_storage(f"sqlite:///{up.data_dir / 'tuning.db'}")
    try:
        until(lambda: len(storage.list_trials(job_id)) > 0)
        before = {record.seq: record for record in storage.list_trials(job_id)}
        up.part("worker").kill()
        done = up.shapewright("watch", job_id, "--timeout", 240, "--json")
        assert done.code == 0, done.out + up.logs()
        assert storage.get_job(job_id).epoch > 1, "another worker took it over"
        after = {record.seq: record for record in storage.list_trials(job_id)}
    finally:
        storage.close()
    assert before.items() <= after.items(), "what was acknowledged is still there"
    assert len(after) <= 24
    told = up.stderr.read_text()
    assert re.search(r"worker ended with signal 9 .*starting it again", told)
    assert up.stop() == 0


@pytest.mark.soak
def test_an_api_that_is_killed_is_replaced_and_everything_else_goes_on(start: Start) -> None:
    up = start()
    assert httpx.get(f"{up.url}readyz", timeout=30).status_code == 200
    job_id = up.shapewright("submit", up.job, "--json").json["job_id"]
    worker, api = up.part("worker").pid, up.part("--ready-file")
    api.kill()
    api.wait(30)
    until(lambda: is_ready(up))
    assert up.part("worker").pid == worker
    done = up.shapewright("watch", job_id, "--timeout", 240, "--json")
    assert done.code == 0, done.out + up.logs()
    assert re.search(r"api ended with signal 9 .*starting it again", up.stderr.read_text())
    assert up.stop() == 0


def is_ready(up: Up) -> bool:
    try:
        return httpx.get(f"{up.url}readyz", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def check_link(up: Up) -> None:
    """The link that `up` prints signs a browser in, once."""
    with httpx.Client(timeout=30) as browser:
        assert browser.get(f"{up.url}v1/jobs").status_code == 401
        assert browser.get(up.dashboard_url).headers["Location"] == "/"
        assert browser.get(f"{up.url}v1/jobs").status_code == 200
    assert httpx.get(up.dashboard_url, timeout=30).status_code == 401


def check_library(up: Up, key: str, job_id: str, directory: Path) -> None:
    pulled = up.shapewright("pull", up.job, "-o", directory, "--job", job_id, "--json")
    assert pulled.code == 0, pulled.out
    assert {path.name for path in directory.iterdir()} >= LIBRARY
    manifest = json.loads((directory / "manifest.json").read_text())
    assert (manifest["workload_key"], manifest["job_id"]) == (key, job_id)
    assert manifest["digest"] == pulled.json["digest"]
