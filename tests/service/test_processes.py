"""Several processes on one port: all serve, one that dies is replaced, and none is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from service.processes import NotStarted, Plan, serve_together
from service.run import PortInUse, bind
from service.settings import Settings
from tests.serving import JOB
from tuner.errors import InvalidInput
from tuner.storage.sql import Storage

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from service.processes import Plan, serve_together
serve_together(Plan(sys.argv[1], "127.0.0.1", 0, shutdown_s=2), 2, lambda url: print(url, flush=True))
print("closed")
"""
DEADLINE_S = 60.0


@contextmanager
def running(database: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{database}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        children = []
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
            children = psutil.Process(process.pid).children() if process.poll() is None else []
        finally:
            process.kill()
            psutil.wait_procs(children, 20)


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, "it did not come to hold"
        time.sleep(0.05)


def test_each_counts_for_all_one_that_is_killed_is_replaced_and_none_outlives_the_supervisor(
    storage: Storage, database: Path, key: str
) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    with running(database) as (process, url):
        first = psutil.Process(process.pid).children()
        assert len(first) == 2
        check_counts(url, headers)
        made = httpx.post(f"{url}/v1/jobs", json=JOB, headers=headers, timeout=30).json()
        first[0].kill()
        first[0].wait(20)
        for _ in range(20):
            assert httpx.get(f"{url}/v1/jobs/{made['id']}", headers=headers, timeout=30).status_code == 200
        eventually(lambda: len(set(psutil.Process(process.pid).children()) - set(first)) == 1)
        # The new one serves while the other does not.
        first[1].suspend()
        eventually(lambda: _name_of(f"{url}/v1/jobs/{made['id']}", headers) == JOB["name"])
        first[1].resume()

        children = psutil.Process(process.pid).children()
        process.kill()
        gone, left = psutil.wait_procs(children, 30)
        assert gone
        assert left == []


def check_counts(url: str, headers: dict[str, str]) -> None:
    """Each tells those of all."""
    # Each connection is of one process, which the system chooses.
    for _ in range(20):
        assert httpx.get(f"{url}/v1/workloads", headers=headers, timeout=30).status_code == 200
    shown = httpx.get(f"{url}/metrics", headers=headers, timeout=30).text
    counted = [line for line in shown.splitlines() if line.startswith("shapewright_request_seconds_count{")]
    assert [line.split()[-1] for line in counted if 'route="/v1/workloads"' in line] == ["20.0"]


@pytest.mark.soak
def test_a_signal_ends_them(storage: Storage, database: Path) -> None:
    """`make test` asks it of processes with open streams (test_run.py)."""
    with running(database) as (process, url):
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "closed\n"
        assert not any(child.is_running() for child in children)
        bind("127.0.0.1", int(url.rpartition(":")[2])).close()


def test_a_port_that_another_service_shares_is_in_use(storage: Storage, database: Path) -> None:
    with bind("127.0.0.1", 0, shared=True) as taken, pytest.raises(PortInUse, match="in use"):
        serve_together(Plan(f"sqlite:///{database}", "127.0.0.1", taken.getsockname()[1]), 2, lambda url: None)


def test_what_can_never_start_is_refused_before_anything_does(tmp_path: Path) -> None:
    for plan, field in (
        (Plan("mysql://db/x", "127.0.0.1", 0), "database_url"),
        (Plan(f"sqlite:///{tmp_path}/t.db", "127.0.0.1", 0, root_path="//x"), "root_path"),
    ):
        with pytest.raises(InvalidInput) as caught:
            serve_together(plan, 2, lambda url: None)
        assert caught.value.field == field


def test_a_process_that_cannot_start_ends_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(NotStarted, match="exit code 1 at its start"):
        serve_together(Plan(f"sqlite:///{tmp_path}/t.db", "127.0.0.1", 0), 2, lambda url: None)


def test_what_processes_are_told_is_what_was_meant() -> None:
    plan = Plan("postgresql://ada:pw@db/x", "::1", 80, Settings(retry_after_s=9), "/tuning", 1.5)
    assert Plan.from_json(plan.to_json()) == plan


def _name_of(url: str, headers: dict[str, str]) -> str | None:
    try:
        return str(httpx.get(url, headers=headers, timeout=1).json()["name"])
    except httpx.HTTPError:
        return None
