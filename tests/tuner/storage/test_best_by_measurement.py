"""Revisions 0006 and 0012: what is known of kernels follows from the records that there are, whatever made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tuner.storage.sql import upgrade
from tuner.storage.sql.engine import Database, connect
from tuner.storage.sql.schema import disqualified_kernels, kernel_latencies, measured_instances, targets, workloads

AT = "2026-01-01T00:00:00.000Z"


class Before:
    """Rows of a database at the revision before."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.records = 0
        canonical = {"program": "p", "outputs": [], "dtype": {}, "constant": [], "extents": {}, "label": "l"}
        for number in (1, 2):
            workload = canonical | {"extents": {"m": "m", "n": number}}
            self.insert("workloads", id=number, key=f"wl-{number}", workload=workload, created_at=AT)
        self.insert("targets", id=1, fingerprint="f", target={}, created_at=AT)
        self.insert("targets", id=2, fingerprint="g", target={}, created_at=AT)
        for kernel in ("a", "b", "c"):
            self.insert("micro_kernels", id=kernel, rule="r", rule_version=3, kernel={})

    def insert(self, table: str, **values: Any) -> None:
        columns = [sa.column(name, sa.JSON if isinstance(v, dict | list) else None) for name, v in values.items()]
        with self.database.write() as connection:
            connection.execute(sa.insert(sa.table(table, *columns)), [values])

    def records_of(self, kernels: str, numbers: range) -> None:
        """A record of that number for each; the instance changes with every two of each kernel."""
        row: dict[str, Any] = {"workload_id": 1, "target_id": 1, "threads": 1, "rule": "r", "protocol": "v3"}
        row |= {"provenance": "measured", "error": "", "weight": 1.0, "samples_s": [], "build_s": 0.0, "run_s": 0.0}
        row |= {"round": 1, "phase": "search", "created_at": AT, "attempt": 0}
        result = []
        for number in numbers:
            named = {"id": number + 1, "kernel_id": kernels[number % 3], "instance": f"m={number // 6}"}
            result.append({**row, **named, "latency_s": float(number)})
        columns = [sa.column(name, sa.JSON if isinstance(v, dict | list) else None) for name, v in result[0].items()]
        with self.database.write() as connection:
            connection.execute(sa.insert(sa.table("tuning_records", *columns)), result)

    def record(self, kernel: str, latency_s: float | None = None, **changes: Any) -> int:
        self.records += 1
        row: dict[str, Any] = {"id": self.records, "workload_id": 1, "target_id": 1, "threads": 1, "rule": "r"}
        row |= {"kernel_id": kernel, "instance": "m=1", "attempt": 0, "protocol": "v3", "provenance": "measured"}
        row |= {"latency_s": latency_s, "error": "", "weight": 1.0, "samples_s": [], "build_s": 0.0, "run_s": 0.0}
        self.insert("tuning_records", **{**row, "round": 1, "phase": "search", "created_at": AT, **changes})
        return self.records

    def after(self, table: sa.Table, *columns: str) -> list[tuple[Any, ...]]:
        """Upgrade; these columns of a table, in order."""
        upgrade(self.database.engine.url.render_as_string(hide_password=False))
        with self.database.read() as connection:
            query = sa.select(*(table.c[name] for name in columns)).order_by(*(table.c[name] for name in columns))
            return [tuple(row) for row in connection.execute(query)]


@pytest.fixture
def before(bare_url: str) -> Iterator[Before]:
    upgrade(bare_url, "0005")
    database = connect(bare_url)
    yield Before(database)
    database.engine.dispose()


COLUMNS = ("workload_id", "target_id", "threads", "protocol", "instance", "kernel_id")


def test_readings_are_settled_within_their_places(before: Before) -> None:
    for latency_s in (9.0, 1.0, 2.0):
        newest = before.record("a", latency_s)
    others: list[dict[str, Any]] = [{"workload_id": 2}, {"target_id": 2}, {"threads": 2}, {"protocol": "v2"}]
    others.append({"instance": "m=2"})
    numbers = [before.record("a", 5.0, **other) for other in others]
    final = [before.record("b", 1.0)] + [before.record("b", latency_s, phase="final") for latency_s in (4.0, 2.0)]
    before.record("c", 1.0, provenance="imported")

    result = before.after(kernel_latencies, *COLUMNS, "rule", "rule_version", "latency_s", "readings", "record_id")

    scope: dict[str, Any] = {"workload_id": 1, "target_id": 1, "threads": 1, "protocol": "v3", "instance": "m=1"}
    expected: list[Any] = [
        ({**scope, **other}, "a", 5.0, 1, number) for other, number in zip(others, numbers, strict=True)
    ]
    expected += [(scope, "a", 2.0, 3, newest), (scope, "b", 3.0, 2, final[-1])]
    rows = [(*where.values(), kernel, "r", 3, *figures) for where, kernel, *figures in expected]
    assert result == sorted(rows)


def test_readings_are_brought_to_the_speed_of_the_targets_first(before: Before) -> None:
    before.record("b", 1.0)
    before.record("a", 1.0, anchor_s=2.0)
    before.record("c", 3.0, anchor_s=4.0)
    before.record("c", 1.0, instance="m=2", anchor_s=100.0)

    assert before.after(targets, "id", "anchor_s") == [(1, 2.0), (2, None)]

    result = before.after(kernel_latencies, "kernel_id", "instance", "latency_s")
    # No device is believed to have become more than twice as slow.
    assert result == [("a", "m=1", 1.0), ("b", "m=1", 1.0), ("c", "m=1", 1.5), ("c", "m=2", 0.5)]


def test_kernels_that_failed_by_themselves_are_disqualified(before: Before) -> None:
    before.record("a", 1.0)
    first = before.record("a", error_kind="wrong", error="off by 3")
    before.record("a", error_kind="crash")
    before.record("b", error_kind="crash", error="OSError: [Errno 28] No space left on device")
    before.record("b", error_kind="run_timeout")
    before.record("c", error_kind="wrong", provenance="imported")
    other = before.record("c", error_kind="crash", workload_id=2)

    result = before.after(disqualified_kernels, "workload_id", "target_id", "kernel_id", "record_id")

    assert result == [(1, 1, "a", first), (2, 1, "c", other)]


def test_workloads_of_one_program_are_named_alike(before: Before) -> None:
    first, second = before.after(workloads, "program_key")
    assert first == second != ("",)


def test_measured_instances_are_each_named_once(before: Before) -> None:
    for kernel, changes in (("a", {}), ("b", {}), ("a", {"instance": "m=2"}), ("a", {"target_id": 2})):
        before.record(kernel, 1.0, **changes)
    before.record("a", instance="m=9", error_kind="wrong")

    result = before.after(measured_instances, *COLUMNS[:-1])

    assert result == [(1, 1, 1, "v3", "m=1"), (1, 1, 1, "v3", "m=2"), (1, 2, 1, "v3", "m=1")]


def test_more_records_than_are_held_at_a_time(before: Before) -> None:
    rows = 3000
    for first in range(0, rows, 500):
        before.records_of("abc", range(first, first + 500))

    result = before.after(kernel_latencies, "kernel_id", "latency_s", "readings")

    # Two readings of each kernel at each instance.
    assert len(result) == rows // 2
    assert {readings for _, _, readings in result} == {2}
    assert sum(latency_s for _, latency_s, _ in result) == pytest.approx(sum(range(rows)) / 2)
