"""Operators with an epilogue: the bare operator followed by the rest computes what the fused one does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from benchmarks.harness.calls import Array, inputs_of, outputs_of
from benchmarks.harness.suite import benchmarks_of, names_of, parts_of
from benchmarks.rivals import separate_call
from tuner.program.language.workload import Workload
from tuner.program.reference import compute
from tuner.program.target import native

if TYPE_CHECKING:
    from shapewright.library import Library

SHAPE = {"T": 3}


@pytest.mark.parametrize("name", names_of(["fused"]))
def test_bare_and_chain_make_the_fused_operator(name: str) -> None:
    for benchmark in benchmarks_of(name, native(), 1):
        workload = benchmark.task.workload
        bare, chain = (part.task.workload for part in parts_of(benchmark).values())
        inputs, dims = inputs_of(workload, SHAPE), workload.dims(SHAPE)
        first = len(bare.inputs)
        (between,) = compute(bare, inputs[:first], bare.dims(SHAPE))
        (separate,) = compute(chain, [between, *inputs[first:]], chain.dims(SHAPE))
        (fused,) = compute(workload, inputs, dims)
        np.testing.assert_allclose(separate, fused, rtol=1e-6, atol=1e-6)


@dataclass(frozen=True)
class Reference:
    """Stands for a library: computes the reference."""

    workload: Workload

    def __call__(self, *operands: Array) -> None:
        inputs, (out,) = operands[:-1], operands[-1:]
        (value,) = compute(self.workload, inputs, self.workload.dims(SHAPE))
        np.copyto(out, value, casting="same_kind")

    def pack(self, name: str, array: Array) -> Array:
        return array


def test_two_libraries_are_called_one_after_the_other() -> None:
    benchmark = benchmarks_of("fused_dense_bias_gelu", native(), 1)[0]
    workload = benchmark.task.workload
    bare, chain = (cast("Library", Reference(part.task.workload)) for part in parts_of(benchmark).values())
    outputs = outputs_of(workload, SHAPE)
    separate_call(bare, chain, SHAPE, outputs)()
    x, weight = inputs_of(bare.workload, SHAPE)
    bias = inputs_of(chain.workload, SHAPE)[1]
    (wanted,) = compute(workload, [x, weight, bias], workload.dims(SHAPE))
    np.testing.assert_allclose(outputs[0], wanted, rtol=1e-5, atol=1e-5)
