"""The reference in NumPy, checked against sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.ops import EPILOGUES, OPS, op_named
from tuner.ops.reference import compute, tolerance
from tuner.workload import Workload

X = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]], np.float32)
W = np.array([[1.0, -1.0], [2.0, 0.5]], np.float32)


def workload(op: str, *epilogue: str) -> Workload:
    return Workload.of(op, {"m": 3, "n": 2, "k": 2}, epilogue=epilogue)


def test_dense_transposes_the_weight_and_matmul_does_not() -> None:
    assert compute(workload("dense"), [X, W]).tolist() == [[-1.0, 3.0], [7.0, 4.0], [0.25, 1.125]]
    assert compute(workload("matmul"), [X, W]).tolist() == [[5.0, 0.0], [-5.0, -5.0], [1.0, -0.375]]


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


def test_every_epilogue_has_a_reference() -> None:
    shapes = {("n",): (2,), ("m", "n"): (3, 2)}
    for name, epilogue in EPILOGUES.items():
        extra = [] if epilogue.operand is None else [np.ones(shapes[epilogue.operand.axes], np.float32)]
        assert compute(workload("dense", name), [X, W, *extra]).shape == (3, 2)


def test_the_tolerance_lies_between_rounding_and_mistakes() -> None:
    rng = np.random.default_rng(0)
    for k in (16, 768, 3072):
        x, w = (rng.uniform(-1, 1, (8, k)).astype(np.float32) for _ in range(2))
        shape = Workload.of("dense", {"m": 8, "n": 8, "k": k})
        expected = compute(shape, [x, w])
        rtol, atol = tolerance(shape, k)
        assert np.allclose(x @ w.T, expected, rtol=rtol, atol=atol)
        assert not np.allclose(x[:, 1:] @ w[:, 1:].T, expected, rtol=rtol, atol=atol)


def test_operators_are_found_by_name() -> None:
    for name, op in OPS.items():
        assert op_named(name) is op_named(op) is op
        assert str(op) == name
        assert set(op.contraction.reduction_axes).isdisjoint(op.contraction.spatial_axes)
        assert "Call: library(" in op.doc
    with pytest.raises(ValueError, match="one of: dense, matmul"):
        op_named("denze")
