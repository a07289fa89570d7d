"""The server as a process: its port, its start, its end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.records.service import IMPORT_BATCH
from service.run import PortInUse, bind, serve
from tests.contract.test_storage_sharing import drawn
from tests.measuring import wait_for
from tests.serving import JOB
from tests.shares import chosen
from tuner.program.job.jobspec import parse_job
from tuner.program.target import native
from tuner.storage.jsonl import write_records
from tuner.storage.sql import Storage

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from service.run import serve
serve(sys.argv[1], port=0, shutdown_s=2, on_ready=lambda url: print(url, flush=True))
print("closed")
"""


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} .*in use.*--port"):
            bind("127.0.0.1", port)


def test_serving_on_a_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse):
        serve(f"sqlite:///{tmp_path / 'tuning.db'}", port=taken.getsockname()[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 99999)])
def test_an_address_that_is_not_ours_is_refused(host: str, port: int) -> None:
    with pytest.raises(PortInUse, match=re.escape(f"{host}:{port}")):
        bind(host, port)


@pytest.mark.parametrize("number", chosen([signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_ends_it_with_streams_open_and_a_request_under_way(
    storage: Storage, database: Path, key: str, number: signal.Signals
) -> None:
    """It returns to its caller, which can close what it opened; the port is free again; streams end whole.

    It comes when half of an import is stored; no one else is let in, and the other half is stored as well.
    """
    job, _ = storage.create_job(parse_job(JOB).on(native()))
    records = "".join(write_records(drawn(0, IMPORT_BATCH + 10))).encode()
    cut, stopping = records.rindex(b"\n", 0, -1), threading.Event()

    def body() -> Iterator[bytes]:
        yield records[:cut]
        assert stopping.wait(30)
        yield records[cut:]

    headers = {"Authorization": f"Bearer {key}"}
    imported = {**headers, "Content-Type": "application/jsonl"}
    with running(database) as (process, url), ThreadPoolExecutor(1) as pool:
        with httpx.stream("GET", f"{url}/v1/jobs/{job.id}/events", headers=headers, timeout=20) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: state"
            asked = pool.submit(httpx.post, f"{url}/v1/records", content=body(), headers=imported, timeout=30)
            wait_for(lambda: storage.pulse().records == IMPORT_BATCH)
            process.send_signal(number)
            assert "RUNNING" not in "".join(lines)
        wait_for(lambda: not _accepts(url))
        stopping.set()
        answer = asked.result(30)
        assert (answer.status_code, answer.json()) == (200, {"added": IMPORT_BATCH + 10, "known": 0})
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "closed\n"
        bind("127.0.0.1", int(url.rpartition(":")[2])).close()


def _accepts(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5).close()
    except OSError:
        return False
    return True


def test_what_was_acknowledged_outlives_a_kill(storage: Storage, database: Path, key: str) -> None:
    with running(database) as (process, url):
        made = httpx.post(f"{url}/v1/jobs", json=JOB, headers={"Authorization": f"Bearer {key}"}).json()
        process.kill()
        process.wait(20)
    assert storage.get_job(made["id"]).name == JOB["name"]


@contextmanager
def running(database: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{database}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
