"""Kernels of column reductions against the reference, and what the rule takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiled import built_problems
from tests.shares import shares
from tuner.program.job.build import workload_from_json
from tuner.program.job.task import SearchTask
from tuner.program.language.shape_vars import ShapeVar
from tuner.program.target import Target, native
from tuner.schedule import rules_of, space_of
from tuner.schedule.rule import NoMatch
from tuner.schedule.rules.columns import match

AVX2 = Target.from_json({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
BODIES = {
    "columns": "out[n] = {reduce}(m) x[m, n]",
    "middle": "t[b, n] = {reduce}(m) x[b, m, n]\nout[b, n] = t[b, n] * 2 - y[b, n]",
    "several": "out[n] = {reduce}(b, m) x[b, m, n]",
    "squares": "y[b, m, n] = x[b, m, n] * x[b, m, n]\nt[b, n] = {reduce}(m) y[b, m, n]\nout[b, n] = t[b, n] + z[n]",
    "steps before": "s[m, n] = x[m, n] * w[m]\nr[m, n] = max(s[m, n], 0.5) + s[m, n]\nout[n] = {reduce}(m) r[m, n]",
    "weighted": "out[b, n] = {reduce}(m) x[b, m, n] * w[m] * y[n]",
}
SIZES = [(0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1), (2, 17, 16), (1, 9, 300), (3, 40, 33)]
"""Of b, m and n."""


def _task(text: str, threads: int, target: Target | None = None) -> SearchTask:
    workload = workload_from_json({"program": text, "extents": {"b": "B", "m": "M", "n": "N"}} if "b" in text else
                                  {"program": text, "extents": {"m": "M", "n": "N"}})  # fmt: skip
    variables = tuple(ShapeVar(name, range(1, 65)) for name in sorted(workload.variables))
    return SearchTask(workload, shape_vars=variables, target=target or native(), threads=threads)


@shares(4)
@settings(max_examples=3)
@given(
    name=st.sampled_from(sorted(BODIES)), reducer=st.sampled_from(["sum", "max", "min"]), threads=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1), is_narrow=st.booleans(),
)  # fmt: skip
def test_any_sizes(share: int, name: str, reducer: str, threads: int, seed: int, is_narrow: bool) -> None:
    task = _task(BODIES[name].format(reduce=reducer), threads, AVX2 if is_narrow else None)
    assert rules_of(task)[0].name == "column_reduction"
    kernel = space_of(task).sample(np.random.default_rng(seed))
    shapes = [task.workload.dims(dict(zip("BMN", sizes, strict=True))) for sizes in SIZES]
    assert built_problems(task, kernel, shapes) == []


def test_steps_before_that_would_grow_without_bound_are_refused() -> None:
    """Each reads the one before twice: put into one another they would be 2 to the power of their number."""
    lines = [f"y{n + 1}[m, n] = y{n}[m, n] * y{n}[m, n]" for n in range(12)]
    data = {"program": "\n".join([*lines, "o[n] = sum(m) y12[m, n]"]), "extents": {"m": 8, "n": 8}}
    answer = match(workload_from_json(data))
    assert isinstance(answer, NoMatch)
    assert "other axes than the reduction" in answer.reason


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"op": "matmul", "args": {"m": 8, "n": 8, "k": 8}}, "a product"),
        ({"op": "reduce_sum", "args": {"m": 8, "n": 8}}, "no tensor lies along m"),
        ({"program": "o[] = sum(m) x[m]", "extents": {"m": 8}}, "leaves no axis"),
        ({"program": "o[n] = sum(m) x[m, n]", "extents": {"m": 8, "n": 3}}, "too short for vectors"),
        (
            {"program": "y[m, n] = x[m, n] * 2\no[n] = sum(m) y[m, n]\np[n] = y[0, n]", "extents": {"m": 8, "n": 8}},
            "stage y has other axes",
        ),
        ({"program": "o[n] = sum(m) x[m, n] * y[n, m]", "extents": {"m": 8, "n": 8}}, "y does not lie along n"),
    ],
)
def test_what_is_refused_has_its_reason(data: dict[str, Any], reason: str) -> None:
    answer = match(workload_from_json(data))
    assert isinstance(answer, NoMatch)
    assert reason in answer.reason
