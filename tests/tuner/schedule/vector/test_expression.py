"""Expressions as vector code: which divisions are carried out."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as I  # noqa: N812

from tuner.program.job.build import workload_from_json
from tuner.schedule.vector.expression import Evaluator

LANES = 4


def code_of(text: str) -> str:
    """The code of the last stage over x[i], as TVM prints it."""
    workload = workload_from_json({"program": text, "extents": {"i": "T"}})
    one = tirx.const(1, "int64")
    with IRBuilder() as builder, I.prim_func():
        I.func_name("stage")
        x = I.arg("x", tirx.Var("x", "float32"))
        evaluator = Evaluator(
            workload.element_types, LANES, lambda read: tirx.Broadcast(x, LANES), lambda axis: one, lambda axis: one
        )
        I.evaluate(evaluator.value(workload.program.stages[-1].body))
    return str(builder.get().script())


@pytest.mark.parametrize(
    ("text", "is_division"),
    [
        ("out[i] = x[i] / 6.0", False),
        ("out[i] = x[i] * min(max(x[i] / 6.0 + 0.5, 0.0), 1.0)", False),
        ("out[i] = abs(x[i] / -30.0)", False),
        ("out[i] = floor(x[i] / 49.0)", True),
        ("t[i] = floor(x[i])\nout[i] = x[i] / 49.0 + t[i]", True),
        ("out[i] = where(x[i] / 3.0 > 1.0, x[i], 0.0)", True),
        ("out[i] = cast(x[i] / 3.0, int32)", True),
        ("out[i] = x[i] / 1e-38", True),
        ("out[i] = 6.0 / x[i]", True),
    ],
)
def test_divisions_by_numbers_are_products_where_nothing_decides_by_them(text: str, is_division: bool) -> None:
    assert (" / " in code_of(text)) is is_division
