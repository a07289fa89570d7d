"""`shapewright logs`: once, and until the job has ended."""

from __future__ import annotations

import threading

import pytest

from shapewright import client_jobs
from shapewright.client import Client
from tests.serving import lease
from tests.shapewright.cli_bed import Bed, complete
from tests.shapewright.conftest import Shapewright
from tuner.storage import NewEvent


@pytest.fixture
def job_id(shapewright: Shapewright, bed: Bed, job_file: object) -> str:
    return str(shapewright("submit", job_file, "--json").json["job_id"])


def test_the_lines_of_a_job_are_printed(shapewright: Shapewright, bed: Bed, job_id: str) -> None:
    bed.storage.append_events(lease(bed.storage), [NewEvent("log", {"message": "two\nlines \x1b[2J"})])
    document = shapewright("logs", "latest", "--json").json
    assert [line["text"] for line in document] == ["WAITING", "RUNNING", "two\nlines \x1b[2J"]
    out = shapewright("logs", job_id).out
    assert out.splitlines()[0].split()[1:] == ["job", "info", "WAITING"]
    assert "\x1b" not in out
    assert len(shapewright("logs", job_id, "--limit", 2, "--json").json) == 2
    none = shapewright("logs", job_id, "--part", "worker")
    assert (none.code, none.out) == (0, "")
    assert "nothing was logged by worker" in none.err
    *_, last = none.err.splitlines()
    assert last == "not here, but in their logs where they run: worker worker-1, device local-0"


def test_a_log_is_followed_to_the_end_of_the_job(
    shapewright: Shapewright, bed: Bed, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_jobs, "LOG_PAUSE_S", 0.02)
    held = lease(bed.storage)
    with Client() as client:
        lines = client.logs(job_id, follow=True)
        assert [next(lines)["text"] for _ in range(2)] == ["WAITING", "RUNNING"]
        bed.storage.append_events(held, [NewEvent("log", {"message": f"number {number}"}) for number in range(3)])
        worker = threading.Thread(target=complete, args=(bed.storage, held))
        worker.start()
        texts = [line["text"] for line in lines]
        worker.join()
    assert texts[:3] == ["number 0", "number 1", "number 2"]
    assert texts[-1] == "COMPLETED"
    assert len(set(texts)) == len(texts) - 1, "each once; the library is noted twice"
    followed = shapewright("logs", job_id, "--follow").out.splitlines()
    assert followed[-1].endswith("COMPLETED")


def test_a_limit_is_of_the_lines_that_are_there_and_not_of_those_that_come(
    bed: Bed, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_jobs, "LOG_PAUSE_S", 0.02)
    held = lease(bed.storage)
    with Client() as client:
        lines = client.logs(job_id, follow=True, limit=1)
        assert next(lines)["text"] == "RUNNING"
        bed.storage.append_events(held, [NewEvent("log", {"message": f"number {number}"}) for number in range(3)])
        complete(bed.storage, held)
        texts = [line["text"] for line in lines]
    assert texts[:3] == ["number 0", "number 1", "number 2"]
    assert texts[-1] == "COMPLETED"


def test_following_may_end_before_the_job(shapewright: Shapewright, bed: Bed, job_id: str) -> None:
    ran = shapewright("logs", job_id, "--follow", "--timeout", 0.3)
    assert ran.code == 6
    assert "WAITING" in ran.out
    assert shapewright("logs", job_id, "--follow", "--json").code == 2
    assert shapewright("logs", job_id, "--timeout", 1).code == 2
