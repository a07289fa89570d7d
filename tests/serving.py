"""A real service for tests: real storage in a SQLite file, a real server on a free port."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from service.app import DEFAULTS, create_app
from service.run import Server, bind
from service.settings import Settings
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow
from tuner.library.package import package
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.schedule import default_kernel, space_of
from tuner.storage import Artifact, Lease
from tuner.storage.sql import Storage

JOB: dict[str, Any] = {
    "name": "bert-base qkv",
    "workload": {"op": "dense", "args": {"m": "16*T", "n": 2304, "k": 768}},
    "shape_vars": {"T": {"min": 1, "max": 128}},
    "instances": [{"T": 5}, {"T": 128}],
    "budget": {"trials": 16},
}


def register_local(storage: Storage) -> None:
    storage.register_device("local-0", "local", native(), {})


def lease(storage: Storage) -> Lease:
    result = storage.lease_job("worker-1", 60.0)
    assert result is not None
    return result


def small_dispatcher(task: SearchTask) -> Dispatcher:
    """One kernel for T up to 64, another for the rest of the range and beyond."""
    safe = default_kernel(task)
    other = space_of(task).mutate(safe, np.random.default_rng(0))
    return Dispatcher(task, (other, safe), 1, Node("m", 16 * 64, Leaf(0), Leaf(1)), (TableRow({"T": 5}, 0, 1e-4),))


def store_library(storage: Storage, held: Lease, binary: bytes = b"machine code") -> Artifact:
    """A library for the first task of a leased job, with ``binary`` in place of machine code."""
    row = held.tasks[0]
    library = package(small_dispatcher(row.task), binary, "{}", {"tvm": "0"}, held.job.id)
    return storage.save_library(held, row.id, library.files, library.manifest, library.dispatch)


@contextmanager
def serving(storage: Storage, settings: Settings = DEFAULTS, port: int = 0, root_path: str = "") -> Iterator[str]:
    """The URL of a service over ``storage``, stopped at the end."""
    ready = threading.Event()
    urls: list[str] = []

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    server = Server(create_app(storage, settings=settings, root_path=root_path), 2.0, on_ready)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bind("127.0.0.1", port)]}, daemon=True)
    thread.start()
    assert ready.wait(20), "the server did not start"
    try:
        yield urls[0]
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def without_table(path: Path, table: str) -> Iterator[None]:
    """The database out of step for a while: a table that every query needs is not there."""
    _rename(path, table, f"{table}_away")
    try:
        yield
    finally:
        _rename(path, f"{table}_away", table)


def _rename(path: Path, before: str, after: str) -> None:
    connection = sqlite3.connect(path, timeout=10)
    try:
        with connection:
            connection.execute("PRAGMA legacy_alter_table = ON")  # leave other tables' references alone
            connection.execute(f"ALTER TABLE {before} RENAME TO {after}")
    finally:
        connection.close()


def assert_problem(answer: Any, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:shapewright:")
    assert document["title"]
    assert document["detail"]
