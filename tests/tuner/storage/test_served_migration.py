"""Libraries of before there was a choice: the newest that covers as much stays served, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from migrations.extent_bounds import bounds
from tests.contract.samples import job_spec
from tuner.library.dispatcher import symbol_bounds
from tuner.program.job.jobspec import parse_job
from tuner.program.job.task import SearchTask
from tuner.storage import LibraryQuery
from tuner.storage.sql import Storage, open_storage, upgrade
from tuner.storage.sql.engine import connect
from tuner.storage.sql.schema import library_kernels


def test_ranges_and_protocols_of_release_0_1_are_found(migrated_url: str) -> None:
    storage = open_storage(migrated_url)
    for workload in storage.list_workloads().items:
        tasks = {task.job_id: task.task for task in storage.tasks_of_workload(workload.key)}
        rows = storage.list_libraries(LibraryQuery(workload.key)).items
        assert {row.job_id: dict(row.ranges) for row in rows} == {
            name: symbol_bounds(task) for name, task in tasks.items()
        }
        assert {row.protocol for row in rows} == {"v3"}
        for row in rows:
            assert storage.serve(LibraryQuery(row.workload_key, digest=row.digest)).digest == row.digest
            assert storage.served(LibraryQuery(row.workload_key, ranges=row.ranges)).library.superseded_by is None
    storage.close()


def test_of_libraries_that_cover_each_other_the_newest_stays_served(bare_url: str) -> None:
    upgrade(bare_url, "0006")
    ends = [(1, 64), (1, 128), (1, 16), (32, 256), (1, 128), (2, 3)]
    _fill(bare_url, ends)

    upgrade(bare_url)

    storage = open_storage(bare_url)
    rows = {row.digest: row for row in storage.list_libraries(LibraryQuery(_task(1, 2).workload.key)).items}
    superseded = {digest: row.superseded_by for digest, row in rows.items()}
    assert superseded == {"d0": "d4", "d1": "d4", "d2": "d4", "d3": None, "d4": None, "d5": None}
    assert {digest: row.ranges["m"] for digest, row in rows.items()} == {
        f"d{index}": (16 * low, 16 * high) for index, (low, high) in enumerate(ends)
    }
    # They were superseded for being older: nothing says that d4 is better than them, nor worse.
    assert storage.serve(LibraryQuery(_task(1, 2).workload.key, ranges={"m": (16, 2048)})).digest == "d4"
    with storage._database.read() as connection:
        kernels = connection.execute(sa.select(library_kernels).order_by(*library_kernels.c)).all()
    assert kernels == [(index + 1, name) for index in range(len(ends)) for name in ("k", f"k{index}")]
    storage.close()


def test_a_library_that_an_earlier_version_stores_meanwhile_is_served(bare_url: str) -> None:
    upgrade(bare_url)
    _fill(bare_url, [(1, 64)])

    storage: Storage = open_storage(bare_url)
    result = storage.served(LibraryQuery(_task(1, 2).workload.key)).library

    assert (result.digest, result.ranges, result.protocol) == ("d0", {"m": (16, 1024)}, None)
    storage.close()


def _task(low: int, high: int) -> SearchTask:
    source = job_spec().source
    ranges = {"shape_vars": {"T": {"min": low, "max": high}}, "instances": [{"T": low}]}
    return parse_job({**source, **ranges}).tasks[0]


def _fill(url: str, ends: list[tuple[int, int]]) -> None:
    """A library for each range of T, as an earlier version stored it."""
    database, tables = connect(url), sa.MetaData()
    tables.reflect(database.engine)
    first, when = _task(1, 2), "2026-01-01T00:00:00.000Z"
    with database.write() as connection:

        def insert(table: str, **values: Any) -> None:
            connection.execute(sa.insert(tables.tables[table]).values(values))

        assert first.target is not None
        insert("workloads", id=1, key=first.workload.key, workload=first.workload.canonical, created_at=when)
        insert("targets", id=1, fingerprint=first.target.fingerprint, target=first.target.to_json(), created_at=when)
        same = {"workload_id": 1, "target_id": 1, "threads": 1}
        for index, (low, high) in enumerate(ends):
            task = _task(low, high)
            facts = {"name": "old", "owner": "", "state": "COMPLETED", "device": "local", "spec": {}, "summary": {}}
            counts = {"error": "", "epoch": 1, "trials": 0, "event_seq": 0}
            insert("jobs", id=f"job-{index}", number=index + 1, created_at=when, **facts, **counts)
            place = {"job_id": f"job-{index}", "position": 0, "count": 1, "spent_s": 0.0, "done": True}
            insert("search_tasks", id=index + 1, task=task.to_json(), **place, **same)
            named = {"digest": f"d{index}", "manifest": {"digest": f"d{index}"}, "created_at": when}
            insert("artifacts", id=index + 1, search_task_id=index + 1, **named, **same)
            ranges = {name: list(pair) for name, pair in symbol_bounds(task).items()}
            table = {"format": 2, "bounds": ranges, "kernels": [{"id": f"k{index}"}, {"id": "k"}]}
            insert("dispatchers", artifact_id=index + 1, dispatch=table)
    database.engine.dispose()


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        ("16*T", (16, 160)),
        ("T+128", (129, 138)),
        ("200-T", (190, 199)),
        ("(T+1)//2", (1, 5)),
        ("T%4", (0, 3)),
        ("T*S+2", (4, 52)),
        ("S%8", (2, 5)),
    ],
)
def test_extents_of_release_0_1_have_their_bounds(extent: str, expected: tuple[int, int]) -> None:
    assert bounds(extent, {"T": (1, 10), "S": (2, 5)}) == expected


@pytest.mark.parametrize("extent", ["T/2", "T//S", "T//0", "f(T)", "'a'", "T**2"])
def test_what_is_no_extent_has_none(extent: str) -> None:
    with pytest.raises(ValueError, match="extent"):
        bounds(extent, {"T": (1, 10), "S": (2, 5)})
