"""Every operator of the catalogue as machine code, by a small kernel of whatever rule takes it."""

from __future__ import annotations

import pytest

from tests.compiled import built_problems, small_kernel
from tests.contract.rule_samples import SAMPLES
from tests.every_op import op_task, ragged_shapes
from tuner.program.catalogue import OPS
from tuner.program.target import native

SMALL = {"B": 3, "S": 60, "T": 20}
SAMPLED = {sample.get("op") for samples in SAMPLES.values() for sample in samples.values()}
"""Operators whose code the contract of rules compares with the reference, too."""
OPERATORS = [
    pytest.param(op, marks=[] if op not in SAMPLED or at % 12 == 11 else pytest.mark.soak)
    for at, op in enumerate(sorted(OPS))
]
"""`make test` has those that are compared nowhere else, and every twelfth of the others."""


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_is_right_at_ragged_shapes(op: str) -> None:
    task = op_task(op, native(), threads=2)
    shapes = list(ragged_shapes(task.workload, 5, most=SMALL))
    assert built_problems(task, small_kernel(task), shapes) == []
