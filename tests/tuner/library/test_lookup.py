"""Lookups: how each answer matched, and that none is worse than the default."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import TASK, latency_s
from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow, bounded
from tuner.library.lookup import Match, best
from tuner.program.workload import JsonObject, WorkloadInstance
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, TuningRecord
from tuner.rules import rule_for
from tuner.rules.space import MicroKernel

RULE = rule_for(TASK.workload)
SAFE = RULE.safe_kernel(TASK)
SPACE = RULE.space(TASK)


def kernel(**change: int) -> MicroKernel:
    return SPACE.kernel(dict(SAFE.values) | change)


FAST, SMALL = kernel(ku=2), kernel(mr=2, ku=2)


def record(found: MicroKernel, t: int, latency: float | None = 1e-6) -> TuningRecord:
    kind = None if latency is not None else ErrorKind.CRASH
    result = MeasureResult(found, WorkloadInstance.of({"T": t}), latency, error_kind=kind)
    return TuningRecord(TASK.workload.key, "f", 1, PROTOCOL, result)


def dispatch() -> JsonObject:
    tree = bounded(Node("m", 9, Leaf(1), Leaf(2)), {"m": (1, 128)}, 0)
    table = tuple(TableRow({"T": t}, 1 if t <= 9 else 2, 1e-6 * t) for t in (1, 9, 10, 128))
    found: JsonObject = json.loads(json.dumps(Dispatcher(TASK, (SAFE, SMALL, FAST), 0, tree, table).to_json()))
    return found


def test_a_measured_shape_answers_with_its_fastest_kernel() -> None:
    answer = best(TASK, dispatch(), record(FAST, 5, 3e-6), [record(SMALL, 9)], {"T": 5})
    assert (answer.match, answer.kernel, answer.latency_s) == (Match.EXACT, FAST, 3e-6)
    assert answer.predicted_latency_s is not None
    assert best(TASK, None, record(FAST, 5, 3e-6), [], {"T": 5}).predicted_latency_s is None


def test_an_unmeasured_shape_answers_with_what_the_library_would_run() -> None:
    for t, expected in ((4, SMALL), (9, SMALL), (10, FAST), (100, FAST)):
        answer = best(TASK, dispatch(), None, [record(SAFE, t)], {"T": t})
        assert (answer.match, answer.kernel, answer.latency_s) == (Match.DISPATCHED, expected, None)
    assert best(TASK, dispatch(), None, [], {"T": 9}).predicted_latency_s == 9e-6


def test_a_shape_beyond_the_range_answers_with_the_safe_kernel() -> None:
    for t in (0, 129, 10**6):
        answer = best(TASK, dispatch(), None, [record(FAST, 128)], {"T": t})
        assert (answer.match, answer.kernel) == (Match.DEFAULT, SAFE)


def test_without_a_library_the_nearest_measured_shape_answers() -> None:
    records = [record(SAFE, 2, 1e-6), record(SMALL, 8, 2e-6), record(FAST, 8, 1e-6), record(SAFE, 100, 1e-9)]
    answer = best(TASK, None, None, records, {"T": 10})
    assert (answer.match, answer.kernel, answer.latency_s) == (Match.NEAREST, FAST, None)
    assert best(TASK, None, None, records, {"T": 90}).kernel == SAFE


def test_failures_and_other_shapes_are_no_neighbours() -> None:
    other = MeasureResult(SMALL, WorkloadInstance.of({"S": 9}), 1e-6)
    records = [record(FAST, 10, None), TuningRecord(TASK.workload.key, "f", 1, PROTOCOL, other)]
    answer = best(TASK, None, None, records, {"T": 10})
    assert (answer.match, answer.kernel) == (Match.DEFAULT, SAFE)


def test_nothing_known_and_out_of_range_is_the_default() -> None:
    assert best(TASK, None, None, [], {"T": 5}).match == Match.DEFAULT
    assert best(TASK, None, None, [record(FAST, 128)], {"T": 129}).match == Match.DEFAULT
    assert best(TASK, None, None, [], {"T": 5}).kernel == SAFE


@settings(max_examples=30)
@given(st.integers(1, 128), st.lists(st.sampled_from([SAFE, FAST, SMALL]), min_size=1, max_size=3))
def test_an_exact_answer_is_never_slower_than_the_default(t: int, found: list[MicroKernel]) -> None:
    """The default is among what was measured at the shape, as the first round of every search sees to."""
    records = [record(one, t, latency_s(TASK, one, {"T": t})) for one in (*found, SAFE)]
    exact = min(records, key=lambda one: one.result.latency_s or 0.0)
    answer = best(TASK, dispatch(), exact, records, {"T": t})
    assert answer.latency_s is not None
    assert answer.latency_s <= latency_s(TASK, SAFE, {"T": t})


@pytest.mark.parametrize("shape", [{}, {"S": 3}, {"T": 3, "S": 3}])
def test_a_shape_of_other_variables_is_refused(shape: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="give T") as caught:
        best(TASK, dispatch(), None, [], shape)
    assert caught.value.field == "shape"


def test_an_answer_is_json() -> None:
    data = best(TASK, None, record(FAST, 5, 3e-6), [], {"T": 5}).to_json()
    assert json.loads(json.dumps(data)) == {
        "match": "exact",
        "kernel": {"id": FAST.id, "name": str(FAST), "kernel": FAST.to_json()},
        "latency_s": 3e-6,
        "predicted_latency_s": None,
    }
