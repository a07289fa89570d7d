"""Programs whose rows are apart: which are, and that another row changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.program_strategies import SHAPES, TAME_WORKLOADS
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.build import workload_from_json
from tuner.program.language.program import Program
from tuner.program.language.rows import inputs_by_row, rows_apart
from tuner.program.language.workload import Workload
from tuner.program.reference import compute

SOFTMAX = """
top[m] = max(n) x[m, n]
e[m, n] = exp(x[m, n] - top[m])
z[m] = sum(n) e[m, n]
out[m, n] = e[m, n] / z[m]
"""


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        ("out[m, n] = sum(k) x[m, k] * w[n, k]", {"x"}),
        (SOFTMAX, {"x"}),
        ("out[t, n] = sum(k) x[t, k] * w[expert[t], n, k]", {"x", "expert"}),
        ("out[b, o, p, q] = sum(c, r, s) x[b, c, 2*p + r, 2*q + s] * w[o, c, r, s]", {"x"}),
        ("s[n] = sum(k) w[k, n]\nout[m, n] = x[m, n] + s[n]", {"x"}),
        ("out[m, n] = w[n] + 1", set()),
        ("out[m] = sum(k) x[k, m]", None),
        ("out[m, n] = x[m, n] + x[0, n]", None),
        ("out[m, n] = x[m + 1, n]", None),
        ("out[m, n] = x[m, m]", None),
        ("out[m, n] = x[m, n] / extent(m)", None),
        ("out[m, n] = x[m, n] * m", None),
        ("s[n] = sum(m) x[m, n]\nout[m, n] = x[m, n] - s[n]", None),
        ("out[m, n] = x[m, n] + w[table[n, m]]", None),
    ],
)
def test_rows_are_apart_where_each_reads_its_own(program: str, inputs: set[str] | None) -> None:
    assert rows_apart(Program.parse(program)) == inputs


@pytest.mark.parametrize(("size", "inputs"), [("T", {"x"}), ("2*T", None), (8, None)])
def test_inputs_have_as_many_rows_as_the_output(size: str | int, inputs: set[str] | None) -> None:
    fields = {"extents": {"m": "T", "n": 4}, "shapes": {"x": [size, 4]}}
    assert inputs_by_row(workload_from_json({"program": "out[m, n] = x[m, n] + 1", **fields})) == inputs


def test_a_program_of_several_outputs_has_no_rows() -> None:
    assert rows_apart(Program.parse("a[m] = x[m]\nb[m] = x[m] + 1")) is None


@given(TAME_WORKLOADS, SHAPES, st.integers(0, 10**6))
def test_a_row_is_not_changed_by_others(workload: Workload, shape: dict[str, int], which: int) -> None:
    by_row, dims = rows_apart(workload.program), workload.dims(shape)
    if by_row is None or not workload.is_consistent(dims):
        return
    given = [np.array(each) for each in random_inputs(workload, dims)]
    (before,) = compute(workload, given, dims)
    if not before.size:
        return
    row = which % len(before)
    for tensor, values in zip(workload.inputs, given, strict=True):
        if tensor.name in by_row:
            others = np.arange(len(values)) != row
            values[others] = np.roll(values[others], 1, axis=0)[::-1]
    (after,) = compute(workload, given, dims)
    np.testing.assert_array_equal(after[row], before[row])
