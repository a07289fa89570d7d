"""Reductions of every rule: over nothing, in tensors of other dtypes than they are done in, and of conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.compiled import built_problems, small_kernel
from tests.shares import diagonal
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import native
from tuner.schedule import rules_of

PROGRAMS = {
    "row_reduction": "out[m] = {reduce}(n) x[m, n]",
    "column_reduction": "out[m] = {reduce}(n) x[n, m]",
    "fallback": "out[m] = {reduce}(n) x[m, extent(n) - 1 - n]",
}
DTYPES: Mapping[str, Mapping[str, str]] = {
    **{name: {"x": name, "out": name} for name in ("int8", "uint8", "int16", "bfloat16")},
    "wider": {"x": "int16", "out": "int64"},
    "float": {"x": "int8", "out": "float32"},
    "bool": {"x": "int32", "out": "bool"},
    "whole": {"x": "float32", "out": "int8"},
}
SIZES = [{"m": 19, "n": 0}, {"m": 19, "n": 5}]
LONG = [{"m": 2, "n": 0}, {"m": 2, "n": 1}, {"m": 5, "n": 77}]


def _task(data: Mapping[str, Any]) -> SearchTask:
    workload = workload_from_json({**data, "extents": {"m": "T", "n": "S"}})
    return SearchTask(workload, shape_vars=(ShapeVar("S", range(33)), ShapeVar("T", range(33))), target=native())


@pytest.mark.parametrize(("rule", "dtypes", "reducer"), diagonal(PROGRAMS, DTYPES, ("max", "min"), every=2))
def test_over_nothing_there_is_the_end_of_the_tensors_dtype(rule: str, dtypes: str, reducer: str) -> None:
    """Not that of the type that the reduction is done in, which a short integer has no room for."""
    task = _task({"program": PROGRAMS[rule].format(reduce=reducer), "dtype": DTYPES[dtypes]})
    assert rules_of(task)[0].name in (rule, "fallback")
    assert built_problems(task, small_kernel(task), SIZES) == []


@pytest.mark.parametrize("reducer", ["max", "min"])
@pytest.mark.parametrize("program", ["{reduce}(n) x[m, n] > 0", "{reduce}(n) x[n, m] <= m", "{reduce}(n) b[m, n]"])
def test_whether_any_or_all_conditions_hold(program: str, reducer: str) -> None:
    text = f"out[m] = {program.format(reduce=reducer)}"
    task = _task({"program": text, "dtype": {"b" if "b[" in text else "x": "bool" if "b[" in text else "int8"}})
    assert task.workload.outputs[0].dtype == "bool"
    assert built_problems(task, small_kernel(task), LONG) == []
