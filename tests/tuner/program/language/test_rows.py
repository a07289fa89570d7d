"""Programs whose rows are independent: which are, and that other rows, and how many there are, change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.tuner.program_strategies import SHAPES, TAME_WORKLOADS
from tuner.measure.verification.inputs import random_inputs
from tuner.program.job.build import workload_from_json
from tuner.program.language.program import Program
from tuner.program.language.rows import independent_rows
from tuner.program.language.workload import Workload
from tuner.program.reference import compute

SOFTMAX = """
top[m] = max(n) x[m, n]
e[m, n] = exp(x[m, n] - top[m])
z[m] = sum(n) e[m, n]
out[m, n] = e[m, n] / z[m]
"""


def workload_of(program: str, extents: dict[str, Any], **fields: Any) -> Workload:
    """Every axis that ``extents`` does not have has 4 values."""
    return workload_from_json(
        {"program": program, "extents": dict.fromkeys(Program.parse(program).axes, 4) | extents, **fields}
    )


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        ("out[m, n] = sum(k) x[m, k] * w[n, k]", {"x"}),
        (SOFTMAX, {"x"}),
        ("out[m, n] = sum(k) x[m, k] * w[expert[m], n, k]", {"x", "expert"}),
        ("out[m, o, p, q] = sum(c, r, s) x[m, c, 2*p + r, 2*q + s] * w[o, c, r, s]", {"x"}),
        ("s[n] = sum(k) w[k, n]\nout[m, n] = x[m, n] + s[n]", {"x"}),
        ("out[m] = sum(k) x[k, m]", None),
        ("out[m, n] = x[m, n] + x[0, n]", None),
        ("out[m, n] = x[m + 1, n]", None),
        ("out[m, n] = x[m, m]", None),
        ("out[m, n] = x[m, n] / extent(m)", None),
        ("s[n] = sum(k) w[k, n] / extent(m)\nout[m, n] = x[m, n] + s[n]", None),
        ("out[m, n] = x[m, n] * m", None),
        ("s[n] = sum(m) x[m, n]\nout[m, n] = x[m, n] - s[n]", None),
        ("out[m, n] = x[m, n] + w[table[n, m]]", None),
        ("a[m] = x[m]\nb[m] = x[m] + 1", None),
    ],
)
def test_rows_are_independent_where_each_reads_its_own(program: str, inputs: set[str] | None) -> None:
    shapes = {"w[expert": {"w": [9, 4, 4]}, "w[table": {"w": [9]}, "x[0": {"x": ["T", 4]}}
    told = next((shape for text, shape in shapes.items() if text in program), {})
    assert independent_rows(workload_of(program, {"m": "T"}, shapes=told)) == inputs


@pytest.mark.parametrize(
    ("program", "extents", "fields", "inputs"),
    [
        ("out[m, n] = sum(k) x[m, k] * y[k, n]", {"m": "T", "k": "S"}, {}, {"x"}),
        ("out[m, n] = sum(k) x[m, k] * y[k, n]", {"m": "T", "k": "T"}, {}, None),
        ("out[m, n] = sum(k) x[m, k] * y[k, n]", {}, {}, None),
        ("y[a, n] = x[a, n] + 1\nout[m, n] = y[m, n] * 2", {"m": "T", "a": "T"}, {}, {"x"}),
        ("y[a, n] = x[a, n] / extent(a)\nout[m, n] = y[m, n] * 2", {"m": "T", "a": "T"}, {}, None),
        ("out[m, n] = x[m, n] + 1", {"m": "T"}, {"shapes": {"x": ["T", 4]}}, {"x"}),
        ("out[m, n] = x[m, n] + 1", {"m": "T"}, {"shapes": {"x": ["2*T", 4]}}, None),
    ],
)
def test_their_number_is_the_size_of_nothing_else(
    program: str, extents: dict[str, Any], fields: dict[str, Any], inputs: set[str] | None
) -> None:
    assert independent_rows(workload_of(program, extents, **fields)) == inputs


@given(TAME_WORKLOADS, SHAPES)
def test_fewer_rows_are_the_same_rows(workload: Workload, shape: dict[str, int]) -> None:
    by_row, dims = independent_rows(workload), workload.dims(shape)
    if by_row is None or not workload.is_consistent(dims):
        return
    (symbol,) = workload.outputs[0].dims[0].variables
    fewer = {**dims, symbol: dims[symbol] // 2}
    if not workload.is_consistent(fewer):
        return
    values = random_inputs(workload, dims)
    (whole,) = compute(workload, values, dims)
    rows = fewer[symbol]
    part = [
        np.array(each[:rows] if tensor.name in by_row else each)
        for tensor, each in zip(workload.inputs, values, strict=True)
    ]
    (found,) = compute(workload, part, fewer)
    np.testing.assert_allclose(found, whole[:rows], rtol=1e-10, atol=1e-12)
