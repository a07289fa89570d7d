"""Fused operators: the library of the operator alone, followed by that of the rest, computes the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from benchmarks.harness.calls import Array, DoesNotApply, inputs_of
from benchmarks.harness.suite import benchmarks_of, names_of, parts_of
from benchmarks.rivals import separate_call
from tuner.program.language.workload import Workload
from tuner.program.reference import compute
from tuner.program.target import native

if TYPE_CHECKING:
    from shapewright.library import Library

SHAPE = {"T": 3}


@dataclass
class Reference:
    """Stands for a library: computes the reference."""

    workload: Workload
    out: Array | None = None

    def __call__(self, *operands: Array) -> None:
        (value,) = compute(self.workload, operands[:-1], self.workload.dims(SHAPE))
        self.out = operands[-1]
        np.copyto(self.out, value, casting="same_kind")

    def pack(self, name: str, array: Array) -> Array:
        return array


@pytest.mark.parametrize("name", names_of(["fused"]))
def test_libraries_of_the_parts_make_the_fused_operator(name: str) -> None:
    for benchmark in benchmarks_of(name, native(), 1):
        workload = benchmark.task.workload
        first, second = (Reference(part.task.workload) for part in parts_of(benchmark))
        separate_call(workload, cast("list[Library]", [first, second]), SHAPE)()
        (fused,) = compute(workload, inputs_of(workload, SHAPE), workload.dims(SHAPE))
        assert second.out is not None
        np.testing.assert_allclose(second.out, fused, rtol=1e-5, atol=1e-5)


def test_a_program_that_a_rule_takes_whole_has_no_parts() -> None:
    (dense,) = benchmarks_of("dense", native(), 1)
    with pytest.raises(DoesNotApply, match="a rule takes it whole"):
        parts_of(dense)
