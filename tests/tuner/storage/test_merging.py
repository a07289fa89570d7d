"""Revision 0005 where two become one, or one takes another's name: no record is lost, and no two are alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.earlier import REVISION
from tuner.storage.sql import upgrade
from tuner.storage.sql.engine import Database, connect

AT = "2026-01-01T00:00:00.000Z"


class Earlier:
    """Rows of a database at the revision before."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._insert("targets", id=1, fingerprint="f", target={}, created_at=AT)
        for kernel in ("a", "b"):
            self._insert("micro_kernels", id=kernel, rule="r", rule_version=1, kernel={})
        self.records = 0

    def workload(self, number: int, m: int | str, **changes: Any) -> None:
        """A dense workload with its job and its search task, all of that number."""
        data = {"op": "dense", "args": {"m": m, "n": 8, "k": 8}, "dtype": "float32", "epilogue": []} | changes
        self._insert("workloads", id=number, key=f"dense-{number}", workload=data, created_at=AT)
        empty = dict.fromkeys(("name", "owner", "device", "error"), "")
        job = {
            "number": number,
            "id": f"job-{number}",
            "state": "COMPLETED",
            "spec": {},
            "summary": {},
            "created_at": AT,
        }
        self._insert("jobs", **job, **empty, epoch=1, trials=0, event_seq=0)
        places = {"job_id": f"job-{number}", "workload_id": number, "target_id": 1, "threads": 1, "task": {}}
        self._insert("search_tasks", id=number, position=0, count=1, spent_s=0.0, done=False, **places)

    def record(self, workload: int, instance: str, attempt: int = 0, kernel: str = "a", **changes: Any) -> None:
        self.records += 1
        row: dict[str, Any] = {
            "id": self.records,
            "search_task_id": workload,
            "workload_id": workload,
            "target_id": 1,
            "threads": 1,
        }
        row |= {"rule": "r", "kernel_id": kernel, "instance": instance, "attempt": attempt, "protocol": "v3"}
        row |= {"provenance": "measured", "error": "", "weight": 1.0, "samples_s": [], "build_s": 0.0, "run_s": 0.0}
        self._insert("tuning_records", **{**row, "round": 1, "phase": "search", "created_at": AT, **changes})

    def insert(self, table: str, *rows: dict[str, Any]) -> None:
        columns = [sa.column(name, sa.JSON if isinstance(v, dict | list) else None) for name, v in rows[0].items()]
        with self.database.write() as connection:
            connection.execute(sa.insert(sa.table(table, *columns)), list(rows))

    def _insert(self, table: str, **values: Any) -> None:
        self.insert(table, values)

    def after(self) -> list[tuple[Any, ...]]:
        """Upgrade; (id, workload, instance, attempt, phase) of every record."""
        upgrade(self.database.engine.url.render_as_string(hide_password=False))
        query = "SELECT id, workload_id, instance, attempt, phase FROM tuning_records ORDER BY id"
        with self.database.read() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(query)]


@pytest.fixture
def earlier(bare_url: str) -> Iterator[Earlier]:
    upgrade(bare_url, REVISION)
    database = connect(bare_url)
    yield Earlier(database)
    database.engine.dispose()


def test_instances_that_become_one_keep_all_their_attempts(earlier: Earlier) -> None:
    earlier.workload(1, "T//2")
    for instance, attempt, kernel in (
        ("T=5", 0, "a"),
        ("T=4", 0, "a"),
        ("T=4", 1, "a"),
        ("T=5", 0, "b"),
        ("T=5", 1, "a"),
        ("T=9", 0, "a"),
    ):
        earlier.record(1, instance, attempt, kernel)

    result = earlier.after()

    assert [(row[2], row[3]) for row in result] == [
        ("m=2", 0),
        ("m=2", 1),
        ("m=2", 2),
        ("m=2", 0),
        ("m=2", 3),
        ("m=4", 0),
    ]


def test_an_instance_may_take_the_name_that_another_had(earlier: Earlier) -> None:
    earlier.workload(1, "2*m")
    earlier.workload(2, "m")
    for m in (1, 2, 4, 8):
        earlier.record(1, f"m={m}")
        earlier.record(2, f"m={m}", attempt=3)

    result = earlier.after()

    assert [row[2] for row in result] == [f"m={m}" for size in (1, 2, 4, 8) for m in (2 * size, size)]
    assert {row[1] for row in result} == {1}


def test_workloads_that_become_one_keep_the_records_of_each_task(earlier: Earlier) -> None:
    earlier.workload(3, "16*T")
    earlier.workload(5, "8*S")
    earlier.workload(7, 16)
    for number, instance in ((3, "T=2"), (5, "S=4"), (7, "")):
        earlier.record(number, instance)

    result = earlier.after()

    assert [row[1:4] for row in result] == [(3, "m=32", 0), (3, "m=32", 0), (7, "", 0)]


def test_records_whose_task_is_gone_go_by_their_workload(earlier: Earlier) -> None:
    earlier.workload(1, "T+S")
    earlier.record(1, "S=3,T=4", search_task_id=None, provenance="imported")
    earlier.record(1, "S=3,T=4", search_task_id=None, provenance="imported")
    earlier.record(1, "T=4", search_task_id=None)
    earlier.record(1, "whatever", search_task_id=None)

    assert [row[2] for row in earlier.after()] == ["m=7", "m=7", "T=4", "whatever"]


def test_only_round_0_of_the_search_was_theory(earlier: Earlier) -> None:
    earlier.workload(1, "T")
    for number, (phase, round_) in enumerate((("search", 0), ("search", 1), ("final", 0), ("final", 2)), start=1):
        earlier.record(1, f"T={number}", phase=phase, round=round_)

    assert [row[4] for row in earlier.after()] == ["theory", "search", "final", "final"]


def test_more_workloads_than_are_held_at_a_time(earlier: Earlier) -> None:
    data = {"op": "dense", "dtype": "float32", "epilogue": []}
    earlier.insert(
        "workloads",
        *(
            {
                "id": number,
                "key": f"dense-{number}",
                "workload": {**data, "args": {"m": "T", "n": (number + 1) // 2, "k": 8}},
                "created_at": AT,
            }
            for number in range(1, 252)
        ),
    )

    earlier.after()

    with earlier.database.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*), max(id) FROM workloads").one() == (126, 251)
        assert connection.exec_driver_sql("SELECT count(*) FROM workloads WHERE key LIKE 'wl-%%'").scalar_one() == 126


def test_a_workload_that_no_release_stored_stops_the_upgrade_and_changes_nothing(earlier: Earlier) -> None:
    earlier.workload(1, "2*T")
    earlier.record(1, "T=1")
    earlier.workload(2, 4, op="swish")

    with pytest.raises(ValueError, match="is not a workload that a release before this one has stored"):
        earlier.after()

    with earlier.database.read() as connection:
        kept = connection.exec_driver_sql("SELECT workload FROM workloads ORDER BY id LIMIT 1").scalar_one()
        assert (json.loads(kept) if isinstance(kept, str) else kept)["op"] == "dense"
        assert connection.exec_driver_sql("SELECT instance FROM tuning_records").scalar_one() == "T=1"
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one() == REVISION
