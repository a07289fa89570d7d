"""Where a search's records may come from: a service, a file, a directory of `shapewright tune`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shapewright as sw
from shapewright import warm_start
from shapewright.warm_start import records_of
from tests.contract.samples import JOB, job_spec, leased, results
from tests.earlier import DATA
from tuner.program.job.jobspec import parse_job
from tuner.program.language.workload import WorkloadInstance
from tuner.records import PROTOCOL, TuningRecord
from tuner.search.reuse import HINT
from tuner.storage.jsonl import MAX_LINE, SharedRecord, write_records
from tuner.storage.sql import open_storage, upgrade

TASK = job_spec().tasks[0]
TARGET = TASK.known_target


def shared(count: int = 3) -> list[SharedRecord]:
    entries = [replace(result, instance=WorkloadInstance.of({"m": 80})) for result in results(count)]
    key, fingerprint = TASK.workload.key, TARGET.fingerprint
    at = "2026-01-01T00:00:00Z"
    records = [TuningRecord(key, fingerprint, 1, PROTOCOL, result, created_at=at) for result in entries]
    return [SharedRecord(TASK.workload.canonical, TARGET, record) for record in records]


class Service:
    """Answers as a client does, in pieces that end anywhere."""

    def __init__(self, text: bytes, piece: int = 100) -> None:
        self._text, self._piece = text, piece
        self.asked: list[Sequence[Any]] = []

    def export_records(self, workloads: Sequence[Any] = ()) -> Iterator[bytes]:
        self.asked.append(workloads)
        for start in range(0, len(self._text), self._piece):
            yield self._text[start : start + self._piece]


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("".join(write_records(shared())))
    assert list(records_of(file, [TASK])) == list(records_of(str(file), [TASK])) == shared()


def test_a_line_without_an_end_is_read_no_further_than_it_may_go(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(b" " * (3 * MAX_LINE))
    with pytest.raises(sw.InvalidInput, match=f"at most {MAX_LINE}"):
        list(records_of(file, [TASK]))
    with pytest.raises(sw.InvalidInput, match=f"at most {MAX_LINE}"):
        list(records_of(Service(b" " * (3 * MAX_LINE), 2**16), [TASK]))  # type: ignore[arg-type]


def test_a_service_is_asked_for_the_workloads_of_the_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("".join(write_records(shared())).encode())
    assert list(records_of(service, [TASK, TASK])) == shared()  # type: ignore[arg-type]
    assert service.asked == [[TASK.workload.key]]
    monkeypatch.setattr("shapewright.client.Client", lambda url: service)
    assert list(records_of("http://127.0.0.1:1", [TASK])) == shared()


def test_a_directory_of_tune_is_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / warm_start.DATABASE}"
    upgrade(url)
    storage = open_storage(url)
    lease = leased(storage)
    storage.append_results(lease, lease.tasks[0].id, results(4))
    storage.close()
    entries = list(records_of(tmp_path, [TASK]))
    assert [each.record.result.kernel for each in entries] == [result.kernel for result in results(4)]
    assert {(each.target, str(each.record.result.instance)) for each in entries} == {(TARGET, "m=80")}
    assert list(records_of(tmp_path, [job_spec(k=128).tasks[0]])) == []


@pytest.mark.parametrize("name", ["nothing", ""])
def test_what_holds_no_records_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(sw.InvalidInput) as refused:
        sw.tune(TASK, trials=1, warm_start=tmp_path / name)
    assert refused.value.field == "warm_start"


def test_a_directory_of_metaschedule_gives_hints() -> None:
    workload = {"op": "dense", "args": {"m": "16*T", "n": 96, "k": 128}}
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
    task = parse_job({**JOB, "workload": workload, "target": target}).tasks[0]
    hints = list(records_of(DATA / "metaschedule", [task]))
    assert {each.provenance["kind"] for each in hints} == {HINT} and len(hints) > 1
