"""Any program as a TE function of one shape: it computes what the reference does, and a constant's layout is free."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from benchmarks.harness.calls import DoesNotApply, inputs_of, outputs_of
from benchmarks.rivals.static_function import layout_free, static_function
from tuner.measure.tensors import tensor_of
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.reference import expected

SHAPE = {"T": 3}
CONV = {"b": "T", "c": 4, "h": 6, "w": 5, "o": 6, "r": 3, "s": 3, "pad": 1, "stride": 2, "groups": 2}
MOE = make_workload("moe_dense", {"t": "T", "e": 3, "n": 5, "k": 4})
DENSE = make_workload("dense", {"m": "T", "n": 5, "k": 7})


def program(text: str, dtype: Any = "float32", **extents: Any) -> Workload:
    return workload_from_json({"program": text, "extents": extents, "dtype": dtype})


WORKLOADS = [
    DENSE,
    make_workload("dense", {"m": "T", "n": 5, "k": 7}, "bfloat16", ["bias", "gelu"]),
    make_workload("matmul", {"m": "T", "n": 4, "k": "T"}, "float16"),
    make_workload("softmax", {"m": "T", "n": 9}),
    make_workload("conv2d", CONV, epilogue=["bias", "relu"]),
    make_workload("conv2d_transpose", {"b": "T", "c": 2, "h": 3, "w": 4, "o": 3, "r": 3, "s": 3, "stride": 2}),
    make_workload("max_pool2d", {"b": "T", "c": 2, "h": 7, "w": 6, "r": 3, "s": 3, "stride": 2, "pad": 1}),
    make_workload("attention", {"b": 1, "h": 2, "i": "T", "j": "T", "d": 4, "causal": True}),
    MOE,
    program("total[] = sum(m, n) x[m, n]; out[m, n] = x[m, n] / (total[] + 7.5) - -x[m, n]", m="T", n=4),
    program("out[m] = prod(n) cast(x[m, n] // 2 + (x[m, n] % 3 << 1), float32)", {"x": "int8"}, m="T", n=3),
    program("low[m] = min(n) x[m, n]; out[m, n] = round(min(x[m, n], 2.0) * 3.0) * low[m]", m="T", n=4),
    program("out[m, n] = where((n <= m) & (x[m, n] > 0.0), sqrt(x[m, n]), floor(x[m, n]) * m)", m="T", n=6),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_it_computes_what_the_reference_does(workload: Workload) -> None:
    module = tvm.compile(static_function(workload, SHAPE), target=tvm.target.Target({"kind": "llvm"}))
    inputs, outputs = inputs_of(workload, SHAPE), outputs_of(workload, SHAPE)
    module["main"](*map(tensor_of, (*inputs, *outputs)))
    for output, wanted in zip(outputs, expected(workload, inputs, workload.dims(SHAPE)), strict=True):
        assert not wanted.wrong(output).any()


@pytest.mark.parametrize(
    ("workload", "position"), [(DENSE, 1), (MOE, None), (make_workload("softmax", {"m": "T", "n": 9}), None)], ids=str
)
def test_the_layout_of_a_constant_is_free_unless_it_is_gathered_from(workload: Workload, position: int | None) -> None:
    assert layout_free(workload) == position
    attributes = static_function(workload, SHAPE).attrs
    assert ("layout_free_buffers" in attributes) == (position is not None)


def test_an_empty_shape_is_refused() -> None:
    with pytest.raises(DoesNotApply, match="every size to be 1 or more"):
        static_function(DENSE, {"T": 0})
