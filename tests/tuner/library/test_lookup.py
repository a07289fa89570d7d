"""Lookups: how each answer matched, and that none is worse than the default."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidInput
from tuner.library.dispatcher import Dispatcher, Leaf, Node, TableRow, bounded
from tuner.library.lookup import Match, best, dims_of
from tuner.program.task import SearchTask
from tuner.program.workload import ShapeVar, WorkloadInstance
from tuner.records import PROTOCOL, ErrorKind, MeasureResult, TuningRecord
from tuner.rules import safe_kernel
from tuner.rules.space import MicroKernel

T = ShapeVar("T", range(1, 129))
TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}
TASK = SearchTask("dense", {"m": 2 * T, "n": 96, "k": 32}, (T,), target=TARGET)
SAFE = safe_kernel(TASK)


def kernel(**change: int) -> MicroKernel:
    return replace(SAFE, values=tuple((dict(SAFE.values) | change).items()))


FAST, SMALL = kernel(ku=2), kernel(mr=2, ku=2)


def record(found: MicroKernel, m: int, latency: float | None = 1e-6) -> TuningRecord:
    kind = None if latency is not None else ErrorKind.CRASH
    result = MeasureResult(found, WorkloadInstance.of({"m": m}), latency, error_kind=kind)
    return TuningRecord(TASK.workload.key, "f", 1, PROTOCOL, result)


def dispatcher() -> Dispatcher:
    """SMALL up to T=9, FAST above."""
    tree = bounded(Node("m", 19, Leaf(1), Leaf(2)), {"m": (2, 256)}, 0)
    table = tuple(TableRow({"T": t}, 1 if t <= 9 else 2, 1e-6 * t) for t in (1, 9, 10, 128))
    return Dispatcher(TASK, (SAFE, SMALL, FAST), 0, tree, table)


# -- the sizes that are asked for -------------------------------------------------------------------------------------
def test_a_shape_is_given_in_symbols_or_in_the_tasks_variables() -> None:
    assert dims_of(TASK, {"m": 37}) == {"m": 37}
    assert dims_of(TASK, {"T": 5}) == {"m": 10}


def test_a_variable_of_a_symbols_name_is_the_symbol() -> None:
    m = ShapeVar("m", range(1, 9))
    assert dims_of(SearchTask("dense", {"m": 16 * m, "n": 8, "k": 8}, (m,)), {"m": 16}) == {"m": 16}


@pytest.mark.parametrize("shape", [{}, {"S": 3}, {"T": 3, "S": 3}, {"T": 3, "m": 6}])
def test_a_shape_of_other_variables_is_refused(shape: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="give T") as caught:
        dims_of(TASK, shape)
    assert caught.value.field == "shape"


# -- answers ----------------------------------------------------------------------------------------------------------
def test_a_measured_shape_answers_with_its_fastest_kernel() -> None:
    answer = best(TASK, dispatcher(), record(FAST, 10, 3e-6), [record(SMALL, 18)], {"m": 10})
    assert (answer.match, answer.kernel, answer.latency_s) == (Match.EXACT, FAST, 3e-6)
    assert answer.predicted_latency_s is not None
    assert answer.served_by == SMALL
    assert best(TASK, None, record(FAST, 10, 3e-6), [], {"m": 10}).predicted_latency_s is None


def test_an_unmeasured_shape_answers_with_what_the_library_would_run() -> None:
    # Odd sizes are none of the job's, and served all the same.
    for m, expected in ((8, SMALL), (18, SMALL), (19, SMALL), (20, FAST), (21, FAST), (200, FAST)):
        answer = best(TASK, dispatcher(), None, [record(SAFE, m)], {"m": m})
        assert (answer.match, answer.kernel, answer.latency_s) == (Match.DISPATCHED, expected, None)
    assert best(TASK, dispatcher(), None, [], {"m": 18}).predicted_latency_s == 9e-6


def test_a_shape_beyond_the_range_answers_with_the_safe_kernel() -> None:
    for m in (0, 1, 257, 10**6):
        answer = best(TASK, dispatcher(), None, [record(FAST, 256)], {"m": m})
        assert (answer.match, answer.kernel) == (Match.DEFAULT, SAFE)


def test_without_a_library_the_nearest_measured_shape_answers() -> None:
    records = [record(SAFE, 4, 1e-6), record(SMALL, 16, 2e-6), record(FAST, 16, 1e-6), record(SAFE, 200, 1e-9)]
    answer = best(TASK, None, None, records, {"m": 20})
    assert (answer.match, answer.kernel, answer.latency_s) == (Match.NEAREST, FAST, None)
    assert best(TASK, None, None, records, {"m": 180}).kernel == SAFE


def test_failures_and_records_of_other_symbols_are_no_neighbours() -> None:
    other = MeasureResult(SMALL, WorkloadInstance.of({"T": 9}), 1e-6)
    records = [record(FAST, 20, None), TuningRecord(TASK.workload.key, "f", 1, PROTOCOL, other)]
    answer = best(TASK, None, None, records, {"m": 20})
    assert (answer.match, answer.kernel) == (Match.DEFAULT, SAFE)


def test_nothing_known_and_out_of_range_is_the_default() -> None:
    assert best(TASK, None, None, [], {"m": 10}).match == Match.DEFAULT
    assert best(TASK, None, None, [record(FAST, 256)], {"m": 257}).match == Match.DEFAULT
    assert best(TASK, None, None, [], {"m": 10}).kernel == SAFE


LATENCY_S = {SAFE: 3e-6, FAST: 1e-6, SMALL: 5e-6}


@settings(max_examples=30)
@given(st.integers(1, 128), st.lists(st.sampled_from([SAFE, FAST, SMALL]), min_size=1, max_size=3))
def test_an_exact_answer_is_never_slower_than_the_default(t: int, found: list[MicroKernel]) -> None:
    """The default is among what was measured at the shape, as the first round of every search sees to."""
    records = [record(one, 2 * t, LATENCY_S[one] * t) for one in (*found, SAFE)]
    exact = min(records, key=lambda one: one.result.latency_s or 0.0)
    answer = best(TASK, dispatcher(), exact, records, {"m": 2 * t})
    assert answer.latency_s is not None
    assert answer.latency_s <= LATENCY_S[SAFE] * t


def test_an_answer_is_json() -> None:
    data = best(TASK, None, record(FAST, 10, 3e-6), [], {"m": 10}).to_json()
    assert json.loads(json.dumps(data)) == {
        "match": "exact",
        "kernel": {"id": FAST.id, "name": str(FAST), "kernel": FAST.to_json()},
        "latency_s": 3e-6,
        "predicted_latency_s": None,
    }
