"""What every Storage promises about records that databases exchange. Runs on each database."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.contract.samples import best_at, job_spec, kernel, leased, many_tasks, results, take
from tuner.errors import InvalidInput
from tuner.program.job.task import SearchTask
from tuner.program.language.instance import program_key
from tuner.program.language.workload import ShapeVar, WorkloadInstance
from tuner.program.target import Target
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, Phase, TuningRecord
from tuner.storage import Imported, NotFound
from tuner.storage.jsonl import SharedRecord, read_records, write_records
from tuner.storage.sql import Storage, open_storage

T = ShapeVar("T", range(1, 129))
TASKS = tuple(SearchTask("dense", {"m": T, "n": n, "k": 32}, (T,)) for n in (16, 32, 48))
TARGETS = tuple(Target.from_json({"kind": "llvm", "mcpu": name, "num-cores": 2}) for name in ("haswell", "znver4"))


@pytest.fixture
def other(sqlite_template: Path, tmp_path: Path) -> Iterator[Storage]:
    """Another database, of another team."""
    shutil.copy(sqlite_template, tmp_path / "other.db")
    opened = open_storage(f"sqlite:///{tmp_path / 'other.db'}")
    yield opened
    opened.close()


def exported(storage: Storage, *keys: str, limit: int = 7) -> list[SharedRecord]:
    """All records, a small page at a time."""
    result: list[SharedRecord] = []
    while page := storage.export_records(keys, result[-1].record.seq if result else 0, limit):
        result += page
    return result


def lines(records: list[SharedRecord]) -> list[str]:
    return list(write_records(records))


def drawn(seed: int, number: int) -> list[SharedRecord]:
    """Random records, as another service may have written them."""
    draw, numbers = random.Random(seed), count()
    return [_drawn(draw, next(numbers)) for _ in range(number)]


def _drawn(draw: random.Random, number: int) -> SharedRecord:
    task, target = draw.choice(TASKS), draw.choice(TARGETS)
    samples = tuple(draw.uniform(1e-6, 1e-3) for _ in range(draw.randrange(1, 6)))
    failed = draw.random() < 0.2
    result = MeasureResult(
        kernel=kernel(draw.randrange(20)),
        instance=WorkloadInstance.of({"m": draw.randrange(1, 128)}, draw.choice((0.0, 1.0, 0.3))),
        latency_s=None if failed else sorted(samples)[len(samples) // 2],
        samples_s=() if failed else samples,
        error_kind=draw.choice(list(ErrorKind)) if failed else None,
        error="no such luck\nä" if failed else "",
        build_s=draw.random(),
        run_s=draw.random(),
        predicted_s=draw.choice((None, draw.random())),
        round=draw.randrange(9),
        phase=draw.choice(list(Phase)),
        attempt=draw.randrange(3),
        anchor_s=draw.choice((None, draw.random())),
        device=draw.choice((None, "rack-1:0")),
    )
    record = TuningRecord(
        workload_key=task.workload.key,
        target_fingerprint=target.fingerprint,
        threads=draw.choice((1, 4)),
        protocol=draw.choice((PROTOCOL, "v1")),
        result=result,
        job_id=draw.choice((None, "job-1", "job-2")),
        created_at=f"2026-01-01T00:00:00.{number:06d}Z",
    )
    provenance = draw.choice(({"kind": "measured"}, {"kind": "imported", "from": "rack 1"}))
    return SharedRecord(task.workload.canonical, target, replace(record, provenance=provenance["kind"]), provenance)


def measured(storage: Storage) -> None:
    """A job of three tasks, two of them on one workload, with results of its own."""
    lease = leased(storage, many_tasks())
    for task, t in zip(lease.tasks, (5, 3, 128), strict=True):
        name = "m" if "m" in task.task.workload.variables else "T"
        fields: dict[str, Any] = {"samples_s": (1e-6, 2e-6), "predicted_s": 3e-6, "anchor_s": 1e-7, "device": "d"}
        result = [replace(each, instance=WorkloadInstance.of({name: t})) for each in results(4, **fields)]
        storage.append_results(lease, task.id, result)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_imported_is_exported_as_it_was(storage: Storage, other: Storage, seed: int) -> None:
    there = lines(drawn(seed, 60))
    assert storage.import_records(list(read_records(there))) == Imported(60, 0)

    first = exported(storage)
    assert lines(first) == there
    assert other.import_records(first) == Imported(60, 0)
    assert lines(exported(other)) == there


def test_what_was_measured_comes_back_from_another_database_as_it_was(storage: Storage, other: Storage) -> None:
    measured(storage)
    first = exported(storage)
    assert len(first) == 12
    assert {shared.record.result.instance.values[0][0] for shared in first} == {"m"}, "in symbols"

    assert other.import_records(list(read_records(lines(first)))) == Imported(12, 0)
    assert lines(exported(other)) == lines(first)
    # Own records are not taken for another's, nor doubled.
    assert storage.import_records(exported(other)) == Imported(0, 12)
    assert lines(exported(storage)) == lines(first)


def test_importing_twice_adds_nothing(storage: Storage) -> None:
    records = drawn(7, 40)
    assert storage.import_records(records[:25]) == Imported(25, 0)
    assert storage.import_records(records) == Imported(15, 25)
    assert storage.import_records([*records, *records]) == Imported(0, 80)
    assert len(exported(storage)) == 40


def test_two_records_that_differ_in_anything_are_two(storage: Storage) -> None:
    (record,) = drawn(3, 1)
    later = replace(record, record=replace(record.record, created_at="2026-02-01T00:00:00.000000Z"))
    elsewhere = replace(record, record=replace(record.record, job_id="job-9"))
    assert storage.import_records([record, later, elsewhere]) == Imported(3, 0)


def test_imported_records_decide_nothing_and_can_be_seen(storage: Storage) -> None:
    lease = leased(storage)
    task = lease.tasks[0]
    place = (task.workload_key, task.target_fingerprint)
    storage.append_results(lease, task.id, results(1))
    shared = storage.export_records()[0]
    better = replace(shared.record.result, kernel=kernel(9), latency_s=1e-9, samples_s=(1e-9,))
    foreign = replace(shared, record=replace(shared.record, result=better, job_id="job-of-others"))

    assert storage.import_records([foreign]) == Imported(1, 0)

    best = best_at(storage, *place, "m=80")
    assert best is not None
    assert best.kernel_id == kernel(0).id
    known = storage.prior_records(*place, 1)
    assert [(record.provenance, record.job_id) for record in known] == [("measured", lease.job.id), ("imported", None)]
    assert len(storage.records_of_target(place[1], 1, "x86_contraction")) == 1
    assert len(storage.records_of_task(task.id)) == 1


def test_only_the_workloads_that_are_named_are_exported(storage: Storage) -> None:
    storage.import_records(drawn(1, 50))
    keys = [task.workload.key for task in TASKS]
    result = exported(storage, keys[0], keys[2])
    assert {shared.record.workload_key for shared in result} == {keys[0], keys[2]}
    assert 0 < len(result) < 50
    assert storage.get_workload(keys[1]).records > 0
    with pytest.raises(NotFound, match="wl-none"):
        storage.export_records([keys[0], "wl-none"])


def test_a_moment_that_is_none_is_refused_and_nothing_is_stored(storage: Storage) -> None:
    good, bad = drawn(2, 2)
    with pytest.raises(InvalidInput) as refused:
        storage.import_records([good, replace(bad, record=replace(bad.record, created_at="0001-01-01T00:00:00+23:00"))])
    assert refused.value.field == "records[1].created_at"
    assert storage.export_records() == ()


def test_a_job_for_an_imported_workload_shares_its_row(storage: Storage, other: Storage) -> None:
    lease = leased(other, job_spec())
    other.append_results(lease, lease.tasks[0].id, results(3))
    storage.import_records(exported(other))

    take_over = storage.create_job(job_spec())[0]
    task = storage.search_tasks(take_over.id)[0]

    assert len(storage.list_workloads().items) == 1
    assert storage.get_workload(task.workload_key).records == 3
    assert take(storage).job.id == take_over.id


def alike(storage: Storage) -> list[str]:
    """The workloads that a static one of ``job_spec``'s program may be an instance of."""
    program = program_key(job_spec().tasks[0].workload.canonical)
    return [form.key for form in storage.workloads_like(program, 5)]


def test_an_imported_workload_is_found_by_its_program(storage: Storage, other: Storage) -> None:
    lease = leased(other, job_spec())
    other.append_results(lease, lease.tasks[0].id, results(1))
    storage.import_records(exported(other))
    assert alike(storage) == [lease.tasks[0].workload_key]

    with storage._database.write() as connection:
        # As an earlier version imported it.
        connection.execute(text("UPDATE workloads SET program_key = ''"))
    assert alike(storage) == []
    storage.create_job(job_spec())
    assert alike(storage) == [lease.tasks[0].workload_key]
