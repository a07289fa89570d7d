"""What the release before stored, after the upgrade: its jobs, records and libraries, by what they computed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.lookup.lookups import Lookups, Query
from tests.contract.samples import JOB, best_at
from tests.earlier import RELEASE, database_of
from tuner.library.dispatcher import Dispatcher
from tuner.library.lookup import BestAnswer
from tuner.library.package import check_files
from tuner.program.job.build import make_workload
from tuner.program.job.instances import parse_shape
from tuner.program.job.jobspec import parse_job
from tuner.program.language.workload import Workload
from tuner.records import Phase, settled_latency_s, speed_correction
from tuner.storage import LookupScope
from tuner.storage.access import EVERY_SCOPE, NO_QUOTA, hash_of
from tuner.storage.sql import Storage, open_storage, upgrade
from tuner.storage.sql.engine import connect

DENSE = make_workload("dense", {"m": "T", "n": 96, "k": 40}, epilogue=["bias", "relu"])
BATCH = make_workload("batch_matmul_nt", {"b": 3, "m": "T", "n": "T", "k": 16}, epilogue=["add"])
MATMUL = make_workload("matmul", {"m": "T", "n": 48, "k": 32})
INSTANCES = (1, 2, 9, 16)
"""Values of the one shape variable that each job measured: three of its own, and the least of the range."""
THREADS = 1


@pytest.fixture
def old(tmp_path: Path) -> list[Mapping[str, Any]]:
    """The records as they were."""
    connection = sqlite3.connect(database_of(RELEASE, tmp_path))
    connection.row_factory = sqlite3.Row
    return [dict(row) for row in connection.execute("SELECT * FROM tuning_records ORDER BY id")]


@pytest.fixture
def storage(migrated_url: str) -> Iterator[Storage]:
    opened = open_storage(migrated_url)
    yield opened
    opened.close()


def tasks_of(storage: Storage) -> list[Any]:
    """The search task of each job, in the order of submission."""
    jobs = storage.list_jobs().items[::-1]
    return [storage.search_tasks(job.id)[0] for job in jobs]


def plainly_settled(rows: list[Mapping[str, Any]], old: list[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """The latency of each kernel in ``rows``, and of how many readings, computed from the records."""
    reference_s = next((row["anchor_s"] for row in old if row["latency_s"] and row["anchor_s"]), None)
    by_kernel: dict[str, list[tuple[float, bool]]] = {}
    for row in rows:
        at_one_speed = row["latency_s"] * speed_correction(row["anchor_s"], reference_s)
        by_kernel.setdefault(row["kernel_id"], []).append((at_one_speed, row["phase"] == "final"))
    return {kernel: settled_latency_s(result) for kernel, result in by_kernel.items()}


def scope(storage: Storage, workload: Workload) -> tuple[str, str]:
    return workload.key, storage.latest_task(workload.key).target_fingerprint


# -- workloads --------------------------------------------------------------------------------------------------------
def test_workloads_that_compute_the_same_become_one(storage: Storage) -> None:
    rows = storage.list_workloads().items

    assert [row.key for row in rows] == [MATMUL.key, BATCH.key, DENSE.key]
    assert [row.workload for row in rows] == [MATMUL.canonical, BATCH.canonical, DENSE.canonical]
    assert [(row.jobs, row.records, len(row.targets)) for row in rows] == [(1, 12, 1), (1, 12, 1), (2, 24, 1)]


def test_a_workload_is_called_what_its_first_job_called_it(storage: Storage) -> None:
    assert storage.get_workload(DENSE.key).label == "dense(m=16*T, n=96, k=40) + bias + relu"


def test_jobs_are_as_they_were_and_refer_to_what_they_compute(storage: Storage) -> None:
    tasks = tasks_of(storage)

    assert [row.workload_key for row in tasks] == [DENSE.key, DENSE.key, BATCH.key, MATMUL.key]
    assert all(row.task.workload.key == row.workload_key and row.done for row in tasks)
    assert [str(row.task.workload).split(" ")[0] for row in tasks][:2] == ["dense(m=16*T,", "dense(m=8*S,"]
    assert tasks[0].baselines.points[0].instance.shape == {"T": 2}


# -- records ----------------------------------------------------------------------------------------------------------
def test_records_of_a_job_come_back_in_its_own_variables(storage: Storage, old: list[Mapping[str, Any]]) -> None:
    results = [record for row in tasks_of(storage) for record in storage.records_of_task(row.id)]

    assert [record.seq for record in results] == [row["id"] for row in old]
    for record, row in zip(results, old, strict=True):
        result = record.result
        assert (str(result.instance), result.instance.weight) == (row["instance"], row["weight"])
        assert (result.latency_s, result.kernel.id, result.attempt) == (
            row["latency_s"],
            row["kernel_id"],
            row["attempt"],
        )
    assert storage.list_trials(results[0].job_id or "") == tuple(results[:12])


def test_records_of_a_workload_are_those_of_all_its_jobs_in_symbols(storage: Storage) -> None:
    records = storage.prior_records(*scope(storage, DENSE), 1)

    sizes = {record.result.instance.shape["m"] for record in records}
    assert sizes == {16 * t for t in INSTANCES} | {8 * s for s in INSTANCES}
    assert len({record.job_id for record in records}) == 2
    batch = storage.prior_records(*scope(storage, BATCH), 1)
    assert {tuple(record.result.instance.shape) for record in batch} == {("n",)}


def test_the_best_at_a_size_is_the_best_of_all_jobs(storage: Storage, old: list[Mapping[str, Any]]) -> None:
    # T=1 of the first job and S=2 of the second.
    here = [row for row in old if (row["search_task_id"], row["instance"]) in ((1, "T=1"), (2, "S=2"))]
    settled = plainly_settled(here, old)

    best = best_at(storage, *scope(storage, DENSE), "m=16", THREADS)

    assert best is not None
    assert (best.latency_s, best.readings) == pytest.approx(min(settled.values()))


def test_what_theory_chose_has_a_phase_of_its_own(storage: Storage, old: list[Mapping[str, Any]]) -> None:
    phases = [record.result.phase for row in tasks_of(storage) for record in storage.records_of_task(row.id)]

    assert phases == [Phase.FINAL if row["phase"] == "final" else Phase.THEORY for row in old]


def test_records_of_the_target_have_workloads_that_can_be_read(storage: Storage) -> None:
    _, target = scope(storage, DENSE)

    result = storage.records_of_target(target, THREADS, "x86_contraction")

    assert len(result) == 48
    known = {workload.key: workload for workload in (DENSE, BATCH, MATMUL)}
    assert all(workload == known[record.workload_key].canonical for workload, record in result)


# -- libraries --------------------------------------------------------------------------------------------------------
def test_libraries_are_byte_for_byte_what_they_were(storage: Storage) -> None:
    for row in tasks_of(storage):
        artifact = storage.latest_artifact(row.workload_key, job_id=row.job_id)
        manifest = check_files(storage.artifact_files(artifact.digest))
        assert manifest == artifact.manifest
        assert Dispatcher.from_json(artifact.dispatch).task == row.task


@pytest.mark.parametrize(
    ("workload", "shape", "match"),
    [
        (DENSE, "m=144", "exact"),
        (DENSE, "m=40", "dispatched"),
        (DENSE, "S=9", "exact"),
        (DENSE, "m=2000", "default"),
        (BATCH, "n=9", "exact"),
        (BATCH, "T=9", "exact"),
        (BATCH, "n=10", "dispatched"),
    ],
)
def test_a_lookup_answers_by_symbols_or_by_the_newest_jobs_variables(
    storage: Storage, workload: Workload, shape: str, match: str
) -> None:
    where = LookupScope(workload.key, None, THREADS)
    (answer,) = Lookups(storage).answers([Query(where, parse_shape(shape))])
    assert isinstance(answer, BestAnswer)
    assert answer.match == match


# -- keys ---------------------------------------------------------------------------------------------------------
def test_keys_keep_all_they_could_do(earlier_url: str) -> None:
    database = connect(earlier_url)
    with database.write() as connection:
        at = "2026-01-01T00:00:00.000Z"
        connection.execute(
            sa.text("INSERT INTO api_keys (id, name, secret_sha256, created_at) VALUES ('key-1', 'old', :hash, :at)"),
            {"hash": hash_of("secret"), "at": at},
        )
    database.engine.dispose()
    upgrade(earlier_url)
    storage = open_storage(earlier_url)

    key = storage.find_key("secret")

    assert key is not None
    assert all(map(key.allows, EVERY_SCOPE)), "one that has come since, too: a key with admin has those below it"
    assert (key.owner, key.expires_at, key.quota) == ("key-1", None, NO_QUOTA)
    storage.close()


# -- afterwards -------------------------------------------------------------------------------------------------------
def test_a_new_job_joins_the_workload(earlier_url: str) -> None:
    upgrade(earlier_url)
    storage = open_storage(earlier_url)
    workload = {"op": "dense", "args": {"m": "R", "n": 96, "k": 40}, "epilogue": ["bias", "relu"]}
    shapes = {"shape_vars": {"R": {"min": 1, "max": 9}}, "instances": [{"R": 9}]}

    job, _ = storage.create_job(parse_job({**JOB, "workload": workload, **shapes}))

    assert storage.search_tasks(job.id)[0].workload_key == DENSE.key
    row = storage.get_workload(DENSE.key)
    assert (row.jobs, row.label) == (3, "dense(m=16*T, n=96, k=40) + bias + relu")
    storage.close()


def test_nothing_else_was_touched(earlier_url: str) -> None:
    before = _content(earlier_url)
    upgrade(earlier_url)
    after = _content(earlier_url, before)

    changed = {"workloads", "search_tasks", "tuning_records", "artifacts"}
    assert {name for name in before if before[name] != after[name]} == changed
    columns = ("workload_id", "instance", "phase")
    for name in changed - {"workloads"}:
        there = set(before[name][0]) - set(columns)
        kept = [[{k: v for k, v in row.items() if k in there} for row in rows[name]] for rows in (before, after)]
        assert kept[0] == kept[1]


def _content(url: str, like: Mapping[str, Any] | None = None) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table; of the tables and columns of ``like`` alone, if that is given."""
    database, tables = connect(url), sa.MetaData()
    tables.reflect(database.engine)
    with database.read() as connection:
        result = {
            table.name: list(map(dict, connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()))
            for table in tables.sorted_tables
            if table.name != "alembic_version" and (like is None or table.name in like)
        }
    for name, rows in (like or {}).items():
        result[name] = [{column: row[column] for column in rows[0]} for row in result[name]]
    database.engine.dispose()
    return result
