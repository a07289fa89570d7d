"""Results of trials, and what they are compared with, as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from tests.tuner.strategies import baselines, results
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NO_BASELINES, Baselines, ErrorKind, MeasureResult, Phase
from tuner.schedule.space import MicroKernel


@given(results())
def test_a_result_comes_back_from_json(result: MeasureResult) -> None:
    again = MeasureResult.from_json(json.loads(json.dumps(result.to_json())))
    assert again == result
    assert again.ok == result.ok == (result.error_kind is None)


@given(baselines())
def test_baselines_come_back_from_json(found: Baselines) -> None:
    assert Baselines.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_where_nothing_was_stored_there_is_nothing_to_compare_with() -> None:
    assert Baselines.from_json(None) == Baselines.from_json(NO_BASELINES.to_json()) == NO_BASELINES


def test_json_names_the_kernel_and_the_kinds() -> None:
    kernel = MicroKernel("r", 1, (("a", 1),))
    result = MeasureResult(kernel, WorkloadInstance.of({"T": 5}), error_kind=ErrorKind.CRASH, error="signal 11")
    data = result.to_json()
    assert data["kernel_id"] == kernel.id
    assert (data["error_kind"], data["phase"], data["latency_s"]) == ("crash", "search", None)
    assert data["instance"] == {"T": 5, "weight": 1.0}


@pytest.mark.parametrize(
    ("phase", "round_", "expected"),
    [
        ("theory", 0, True),
        # The default was completed in a later round, by the worker that took the search over.
        ("theory", 3, True),
        # As records were before the default had a phase of its own.
        ("search", 0, True),
        (None, 0, True),
        ("search", 1, False),
        ("final", 0, False),
    ],
)
def test_trials_of_the_default_are_known_in_records_of_any_age(phase: str | None, round_: int, expected: bool) -> None:
    data = MeasureResult(MicroKernel("r", 1, (("a", 1),)), WorkloadInstance.of({}), 1e-6, round=round_).to_json()
    stored = {name: value for name, value in data.items() if name != "phase"} | ({"phase": phase} if phase else {})
    assert MeasureResult.from_json(stored).is_theory is expected


def test_what_a_record_leaves_out_has_a_default() -> None:
    kernel = MicroKernel("r", 1, (("a", 1),))
    result = MeasureResult.from_json({"kernel": kernel.to_json(), "instance": {"T": 5}, "latency_s": 1e-6})
    assert result == MeasureResult(kernel, WorkloadInstance.of({"T": 5}), 1e-6)
    assert (result.phase, result.attempt, result.round) == (Phase.SEARCH, 0, 0)
