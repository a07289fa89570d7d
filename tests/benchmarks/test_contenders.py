"""What contenders are called with: the same inputs for all, indices in bounds, aligned memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.harness.calls import inputs_of, outputs_of, stream_bytes
from tuner.program.job.build import make_workload

MOE = make_workload("moe_dense", {"t": "T", "e": 3, "n": 5, "k": 4})
SHAPE = {"T": 50}


def test_indices_are_in_bounds_since_only_ours_clamps_them() -> None:
    x, weight, expert = inputs_of(MOE, SHAPE)
    assert (x.shape, weight.shape, expert.dtype) == ((50, 4), (3, 5, 4), np.dtype("int32"))
    assert set(expert.tolist()) == {0, 1, 2}


def test_inputs_are_the_same_every_time_and_constants_at_every_shape() -> None:
    for first, again in zip(inputs_of(MOE, SHAPE), inputs_of(MOE, SHAPE), strict=True):
        np.testing.assert_array_equal(first, again)
        assert first.ctypes.data % 64 == 0
    np.testing.assert_array_equal(inputs_of(MOE, SHAPE)[1], inputs_of(MOE, {"T": 7})[1])


def test_outputs_have_the_workloads_dtypes_and_shapes() -> None:
    workload = make_workload("softmax", {"m": "T", "n": 6}, "bfloat16")
    (out,) = outputs_of(workload, SHAPE)
    assert (out.shape, out.dtype) == ((50, 6), np.dtype(ml_dtypes.bfloat16))


def test_a_stream_moves_the_bytes_of_the_operands() -> None:
    assert stream_bytes(MOE, SHAPE) == (4 * (50 * 4 + 3 * 5 * 4 + 50), 4 * 50 * 5)
