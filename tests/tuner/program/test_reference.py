"""The reference in NumPy, checked against sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.program.ops import EPILOGUES, OPS, op_named
from tuner.program.reference import compute, tolerance
from tuner.program.workload import Workload

X = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]], np.float32)
W = np.array([[1.0, -1.0], [2.0, 0.5]], np.float32)


def workload(op: str, *epilogue: str) -> Workload:
    return Workload.of(op, {"m": 3, "n": 2, "k": 2}, epilogue=epilogue)


def test_dense_transposes_the_weight_and_matmul_does_not() -> None:
    assert compute(workload("dense"), [X, W]).tolist() == [[-1.0, 3.0], [7.0, 4.0], [0.25, 1.125]]
    assert compute(workload("matmul"), [X, W]).tolist() == [[5.0, 0.0], [-5.0, -5.0], [1.0, -0.375]]


def test_batches_are_products_of_their_own() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (4, 3, 5)), rng.uniform(-1, 1, (4, 5, 2))
    expected = [
        [[sum(a[i, m, k] * b[i, k, n] for k in range(5)) for n in range(2)] for m in range(3)] for i in range(4)
    ]
    args = {"b": 4, "m": 3, "n": 2, "k": 5}
    plain, turned = (Workload.of(f"batch_matmul_{form}", args) for form in ("nn", "nt"))
    assert np.allclose(compute(plain, [a, b]), expected, rtol=1e-14)
    assert np.allclose(compute(turned, [a, b.swapaxes(1, 2)]), expected, rtol=1e-14)


def test_a_residual_has_the_shape_of_a_batched_output_and_a_bias_that_of_its_last_axis() -> None:
    args = {"b": 4, "m": 3, "n": 2, "k": 5}
    a, b = np.ones((4, 3, 5), np.float32), np.ones((4, 5, 2), np.float32)
    residual, bias = np.arange(24, dtype=np.float32).reshape(4, 3, 2), np.array([10.0, 20.0], np.float32)
    found = compute(Workload.of("batch_matmul_nn", args, epilogue=["add", "bias"]), [a, b, residual, bias])
    assert (found == 5.0 + residual + bias).all()


@pytest.mark.parametrize("op", sorted(OPS))
def test_a_sum_over_nothing_is_zero(op: str) -> None:
    extents = {"b": 5, "m": 3, "n": 2, "k": 0}
    operands = op_named(op).contraction.left, op_named(op).contraction.right
    inputs = [np.ones([extents[axis] for axis in operand.axes], np.float32) for operand in operands]
    found = compute(Workload.of(op, dict.fromkeys(op_named(op).args, "T")), inputs)
    assert found.shape[-2:] == (3, 2)
    assert (found == 0).all()


def test_it_computes_in_float64() -> None:
    assert compute(workload("dense"), [X, W]).dtype == np.float64
    huge = np.full((3, 2), 1e30, np.float32)
    assert np.isfinite(compute(workload("dense"), [huge, np.full((2, 2), 1e30, np.float32)])).all()


def test_epilogues_apply_in_order_with_their_operands() -> None:
    bias, residual = np.array([10.0, -10.0], np.float32), np.ones((3, 2), np.float32)
    plain = compute(workload("dense"), [X, W])
    assert (compute(workload("dense", "bias", "relu"), [X, W, bias]) == np.maximum(plain + bias, 0)).all()
    assert (compute(workload("dense", "relu", "bias"), [X, W, bias]) == np.maximum(plain, 0) + bias).all()
    both = compute(workload("dense", "add", "bias"), [X, W, residual, bias])
    assert (both == plain + residual + bias).all()


def test_gelu_is_the_erf_form_and_gelu_tanh_the_other() -> None:
    plain = compute(workload("dense"), [X, W])
    erf = [[0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in row] for row in plain]
    assert np.allclose(compute(workload("dense", "gelu"), [X, W]), erf, rtol=1e-15)
    other = compute(workload("dense", "gelu_tanh"), [X, W])
    assert np.allclose(other, erf, atol=1e-2)
    assert not np.allclose(other, erf, atol=1e-9)


@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.parametrize("name", sorted(EPILOGUES))
def test_every_epilogue_has_a_reference_for_every_operator(op: str, name: str) -> None:
    extents = {"b": 5, "m": 3, "n": 2, "k": 4}
    fused = Workload.of(op, {axis: extents[axis] for axis in op_named(op).args}, epilogue=[name])
    inputs = [np.ones([extents[axis] for axis in operand.axes], np.float32) for operand in fused.operands[:-1]]
    assert compute(fused, inputs).shape == tuple(extents[axis] for axis in fused.operands[-1].axes)


def test_the_tolerance_lies_between_rounding_and_mistakes() -> None:
    rng = np.random.default_rng(0)
    for k in (16, 768, 3072):
        x, w = (rng.uniform(-1, 1, (8, k)).astype(np.float32) for _ in range(2))
        shape = Workload.of("dense", {"m": 8, "n": 8, "k": k})
        expected = compute(shape, [x, w])
        rtol, atol = tolerance(shape, k)
        assert np.allclose(x @ w.T, expected, rtol=rtol, atol=atol)
        assert not np.allclose(x[:, 1:] @ w[:, 1:].T, expected, rtol=rtol, atol=atol)


def test_contractions_know_what_they_sum_over_and_what_they_repeat() -> None:
    for name, op in OPS.items():
        assert op.contraction.reduction_axes == ("k",)
        assert op.contraction.batch_axes == (("b",) if name.startswith("batch_") else ())
        assert set(op.args) == {*op.contraction.spatial_axes, "k"}


def test_operators_are_found_by_name() -> None:
    for name, op in OPS.items():
        assert op_named(name) is op_named(op) is op
        assert str(op) == name
        assert set(op.contraction.reduction_axes).isdisjoint(op.contraction.spatial_axes)
        assert "Call: library(" in op.doc
    with pytest.raises(ValueError, match="one of: batch_matmul_nn, batch_matmul_nt, dense, matmul"):
        op_named("denze")
