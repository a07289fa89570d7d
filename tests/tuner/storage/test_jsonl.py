"""Records as JSON lines: they come back as they were, and whatever is no record is refused with its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import TASK
from tests.tuner.strategies import TARGETS, results
from tuner.errors import InvalidInput
from tuner.program.language.workload import WorkloadInstance
from tuner.records import PROTOCOL, MeasureResult, TuningRecord
from tuner.storage.jsonl import FORMAT, MAX_LINE, VERSION, SharedRecord, read_records, write_records

HEADER = json.dumps({"format": FORMAT, "version": VERSION})


def shared(result: MeasureResult, **fields: Any) -> SharedRecord:
    target = TASK.known_target
    key = TASK.workload.key
    result = replace(result, instance=WorkloadInstance.of({"m": 5}, result.instance.weight))
    record = TuningRecord(key, target.fingerprint, 1, PROTOCOL, result, job_id="j-1", created_at="2026-01-01T00:00:00Z")
    return SharedRecord(TASK.workload.canonical, target, replace(record, **fields))


@given(st.lists(results(), max_size=5), TARGETS)
def test_what_is_written_is_read_again(found: list[MeasureResult], target: Any) -> None:
    # No database takes a NUL.
    found = [replace(r, error=r.error.replace("\0", ""), device=(r.device or "").replace("\0", "")) for r in found]
    records = [shared(result, target_fingerprint=target.fingerprint) for result in found]
    records = [replace(record, target=target) for record in records]
    lines = list(write_records(records))
    assert all(line.endswith("\n") and "\n" not in line[:-1] for line in lines)
    again = list(read_records(lines))
    assert again == records
    assert list(write_records(again)) == lines
    assert list(read_records(line.encode() for line in lines)) == records


def good() -> dict[str, Any]:
    instance = WorkloadInstance.of({"m": 5})
    kernel = {"rule": "x86_contraction", "rule_version": 1, "values": {"mr": 4}}
    result = MeasureResult.from_json({"kernel": kernel, "instance": instance.to_json(), "latency_s": 1e-6})
    return shared(result).to_json()


def test_records_are_read_one_at_a_time_and_empty_lines_passed_over() -> None:
    def lines() -> Any:
        yield HEADER
        yield "\n"
        yield json.dumps(good())
        yield "no JSON"

    result = read_records(lines())
    assert next(result).record.result.latency_s == 1e-6
    with pytest.raises(InvalidInput, match=r"line 4: is not JSON"):
        next(result)


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ([], "line 1"),
        (["\n"], "line 1"),
        (["[1]"], "line 1"),
        (["{}"], "line 1.format"),
        ([HEADER, "{}"], "line 2.created_at"),
        ([HEADER, "null"], "line 2"),
        (['{"format": "other", "version": 1}'], "line 1.format"),
        (['{"format": "shapewright-records", "version": 2}'], "line 1.version"),
        ([json.dumps(good())], "line 1.format"),
        ([HEADER, "[" * 100_000], "line 2"),
        ([HEADER, " " * (MAX_LINE + 1)], "line 2"),
        ([HEADER, b"\xff"], "line 2"),
    ],
)
def test_what_is_no_file_of_records_is_refused(lines: list[str | bytes], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        list(read_records(lines))
    assert refused.value.field == field


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for name in path[:-1]:
            data = data[name]
        data[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("surplus", value=1), "surplus"),
        (lambda data: data.pop("job_id"), "job_id"),
        (put("workload_key", value="wl-0000000000000000"), "workload_key"),
        (put("workload", value={"op": "nonsense"}), "workload.op"),
        (put("target_fingerprint", value="llvm-x"), "target_fingerprint"),
        (put("target", value="x"), "target"),
        (put("threads", value=0), "threads"),
        (put("protocol", value=3), "protocol"),
        (put("provenance", value={}), "provenance.kind"),
        (put("provenance", value="measured"), "provenance"),
        (put("created_at", value="a\0b"), "created_at"),
        (put("result", value=[]), "result"),
        (put("result", "kernel", value={"rule": "r"}), "result.kernel"),
        (put("result", "kernel", "values", value={"mr": 1.5}), "result.kernel.values.mr"),
        (put("result", "instance", value={"T": 5}), "result.instance"),
        (put("result", "instance", value={"m": -1}), "result.instance.m"),
        (put("result", "latency_s", value=float("inf")), "result.latency_s"),
        (put("result", "latency_s", value=-1.0), "result.latency_s"),
        (put("result", "latency_s", value=None), "result.error_kind"),
        (put("result", "error_kind", value="crash"), "result.error_kind"),
        (put("result", "error_kind", value="unheard-of"), "result"),
        (put("result", "phase", value="unheard-of"), "result"),
        (put("result", "samples_s", value=[1.0] * 1000), "result.samples_s"),
        (put("result", "samples_s", value=[None]), "result.samples_s"),
        (put("result", "attempt", value=True), "result.attempt"),
        (put("result", "build_s", value=None), "result.build_s"),
        (put("result", "error", value="\ud800"), "result.error"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_field(
    change: Callable[[dict[str, Any]], None], field: str
) -> None:
    data = good()
    change(data)
    with pytest.raises(InvalidInput) as refused:
        list(read_records([HEADER, json.dumps(data)]))
    assert refused.value.field == f"line 2.{field}"
