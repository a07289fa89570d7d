"""The commands under `db`: what they tell, what they refuse, and that nothing goes without being asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shapewright.cli.exclusive import exclusive
from tests.contract.samples import job_spec, leased, results
from tests.contract.test_storage_sharing import drawn
from tests.serving import register_local
from tests.shapewright.conftest import Shapewright
from tuner.program.target import native
from tuner.records import ErrorKind
from tuner.storage import JobState, NewEvent
from tuner.storage.sql import Storage, open_storage, upgrade

AGES = ("--events-older-than", "0s", "--failed-trials-older-than", "0s")


@pytest.fixture
def stored(data_dir: Path) -> Iterator[Storage]:
    url = f"sqlite:///{data_dir / 'tuning.db'}"
    upgrade(url)
    opened = open_storage(url)
    yield opened
    opened.close()


def searched(storage: Storage, version: int = 1, end: bool = True) -> str:
    """A job on this machine's target, with results of a version of the rule that is not today's; its workload."""
    held = leased(storage, job_spec(target="native").on(native()))
    task = held.tasks[0]
    result = [replace(each, kernel=replace(each.kernel, rule_version=version)) for each in results(3)]
    storage.append_results(held, task.id, result, [NewEvent("progress", {"n": 1})])
    storage.append_results(held, task.id, results(2, 3, latency_s=None, error_kind=ErrorKind.BUILD))
    if end:
        storage.finish_job(held, JobState.COMPLETED)
    return task.workload_key


# -- retention --------------------------------------------------------------------------------------------------------
def test_pruning_tells_first_and_deletes_when_it_is_told_to(shapewright: Shapewright, stored: Storage) -> None:
    searched(stored)
    ran = shapewright("db", "prune", *AGES)
    assert ran.code == 0
    assert "events: 1 rows" in ran.out
    assert "failed_trials: 2 rows" in ran.out
    assert "nothing was deleted: give --yes to do it" in ran.out
    assert shapewright("db", "prune", *AGES, "--json").json["deleted_rows"] == 0
    done = shapewright("db", "prune", *AGES, "--yes", "--json").json
    assert (done["dry_run"], done["deleted_rows"]) == (False, 3)
    assert [each["rows"] for each in done["prunable"]] == [1, 2]
    assert len(stored.export_records()) == 3
    assert shapewright("db", "prune", *AGES, "--yes", "--json").json["deleted_rows"] == 0


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "1e9d", "999999999w", "30 days", "nan"])
def test_an_age_that_is_none_is_refused(shapewright: Shapewright, stored: Storage, age: str) -> None:
    ran = shapewright("db", "prune", "--events-older-than", age, "--json")
    assert (ran.code, ran.error["field"]) == (2, "--events-older-than")
    assert "30d" in ran.error["message"]


def test_pruning_nothing_in_particular_is_refused(shapewright: Shapewright, stored: Storage) -> None:
    ran = shapewright("db", "prune", "--yes", "--json")
    assert ran.code == 2
    assert "--events-older-than 30d" in ran.error["message"]


# -- stale knowledge --------------------------------------------------------------------------------------------------
def test_what_is_stale_is_listed_and_measured_again_once(shapewright: Shapewright, stored: Storage) -> None:
    register_local(stored)
    assert shapewright("db", "stale").out == "nothing is stale\n"
    key = searched(stored)
    (result,) = shapewright("db", "stale", "--json").json
    assert (result["workload_key"], result["reason"], result["count"]) == (key, "rule", 3)
    text = shapewright("db", "stale").out
    assert key in text
    assert "version 1 of rule x86_contraction" in text

    (first,) = shapewright("db", "remeasure", "--trials", 5, "--json").json

    job = stored.get_job(first["job_id"])
    (task,) = stored.search_tasks(job.id)
    assert (task.workload_key, task.target_fingerprint) == (key, native().fingerprint)
    assert job.spec["budget"] == {"trials": 5}
    assert (job.state, job.device, first["note"]) == (JobState.WAITING, "local", "submitted")
    (second,) = shapewright("db", "remeasure", "--workload", key, "--trials", 5, "--json").json
    assert (second["job_id"], second["note"]) == (job.id, "submitted before, WAITING")


def test_what_is_measured_by_now_is_listed_on_demand(shapewright: Shapewright, stored: Storage) -> None:
    register_local(stored)
    searched(stored)
    searched(stored, version=2)
    assert shapewright("db", "stale", "--json").json == []
    (result,) = shapewright("db", "stale", "--all", "--json").json
    assert result["remeasured"] is True
    assert shapewright("db", "remeasure").out == "nothing is stale\n"


def test_imported_records_become_a_job_and_foreign_targets_are_named(shapewright: Shapewright, stored: Storage) -> None:
    register_local(stored)
    (shared, *_) = [each for each in drawn(0, 9) if each.record.result.ok]
    here = replace(shared, target=native())
    here = replace(here, record=replace(here.record, target_fingerprint=native().fingerprint, threads=1))
    stored.import_records([shared, here])
    done = {each["target_fingerprint"]: each for each in shapewright("db", "remeasure", "--json").json}
    assert set(done) == {native().fingerprint, shared.record.target_fingerprint}
    foreign = done[shared.record.target_fingerprint]
    assert (foreign["job_id"], foreign["note"]) == (None, "no device of this target has registered")
    (task,) = stored.search_tasks(done[native().fingerprint]["job_id"])
    assert task.workload_key == shared.record.workload_key
    assert [each.shape for each in task.task.instances] == [shared.record.result.instance.shape]


def test_a_workload_that_has_nothing_stale_is_not_found(shapewright: Shapewright, stored: Storage) -> None:
    assert shapewright("db", "remeasure", "--workload", "wl-none").code == 5


# -- copies -----------------------------------------------------------------------------------------------------------
def test_a_copy_is_made_and_becomes_the_database_again(
    shapewright: Shapewright, stored: Storage, data_dir: Path, tmp_path: Path
) -> None:
    searched(stored)
    copied = shapewright("db", "backup", tmp_path / "copy.db", "--json").json
    assert copied["bytes"] == (tmp_path / "copy.db").stat().st_size > 0
    stored.create_key("later")
    stored.close()
    refused = shapewright("db", "restore", tmp_path / "copy.db", "--json")
    assert refused.code == 2
    assert "--replace" in refused.error["message"]
    ran = shapewright("db", "restore", tmp_path / "copy.db", "--replace", "--json")
    assert (ran.code, ran.json["revision"]) == (0, copied["revision"])
    assert shapewright("keys", "list", "--json").json == []
    assert len(stored.export_records()) == 5


def test_a_database_that_is_in_use_is_not_replaced(
    shapewright: Shapewright, stored: Storage, data_dir: Path, tmp_path: Path
) -> None:
    shapewright("db", "backup", tmp_path / "copy.db")
    with exclusive(data_dir):
        ran = shapewright("db", "restore", tmp_path / "copy.db", "--replace", "--json")
    assert ran.code == 2
    assert "in use" in ran.error["message"]


def test_what_cannot_be_copied_is_told(shapewright: Shapewright, stored: Storage, tmp_path: Path) -> None:
    ran = shapewright("db", "backup", tmp_path / "none" / "copy.db", "--json")
    assert (ran.code, ran.error["field"]) == (2, "file")
    missing = f"sqlite:///{tmp_path / 'none.db'}"
    assert shapewright("db", "backup", tmp_path / "copy.db", "--database-url", missing).code == 3
    assert not (tmp_path / "none.db").exists()
    assert shapewright("db", "restore", tmp_path / "copy.db").code == 2


def test_a_log_format_of_ones_own_making_is_refused(shapewright: Shapewright) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = shapewright("serve", "--port", taken.getsockname()[1], "--log-format", "xml", "--json")
    assert (ran.code, ran.error["field"]) == (2, "--log-format")
