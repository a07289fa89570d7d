"""Rivals compute what the operators of the catalogue do, or say why they do not apply."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.calls import DoesNotApply, inputs_of
from benchmarks.harness.suite import PUBLISHED, benchmarks_of, names_of
from benchmarks.kernels import DEFAULT_RIVALS
from benchmarks.rivals import VENDORS, contender
from tuner.program.catalogue import OPS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.reference import compute
from tuner.program.target import native

pytest.importorskip("torch", reason="torch is not installed: pip install 'shapewright[bench]'")

from benchmarks.rivals import torch_kernels
from benchmarks.rivals.torch_kernels import OF_BYTES, saturates

EXTENTS = {"b": 3, "m": "T", "n": 7, "k": 9}
CONV = {"b": "T", "c": 8, "h": 9, "w": 7, "o": 4, "r": 3, "s": 2, "stride": 2}
SHAPE = {"T": 5}
APPLY = {
    "dense": {"mm", "linear", "mkl", "onednn"},
    "matmul": {"mm", "onednn"},
    "batch_matmul_nn": {"bmm"},
    "batch_matmul_nt": {"bmm"},
    "softmax": set(),
}
NOT_CONSTANT = {"program": "out[i, j] = sum(p) a[i, p] * b[j, p]", "extents": {"i": "T", "j": 7, "p": 9}}


MOST, MOST_OF_PRODUCTS = 8, {"n": 32, "k": 32}
"""Of an extent of a published operator, whose own sizes take seconds. Groups of four bits need 32."""


def workload_of(op: str) -> Workload:
    return make_workload(op, {axis: EXTENTS[axis] for axis in OPS[op].args})


def smaller(workload: Workload) -> Workload:
    """The workload with no constant extent above its MOST."""
    data = workload.to_json()
    sizes = "args" if "args" in data else "extents"
    cut = {
        axis: min(size, MOST_OF_PRODUCTS.get(axis, MOST)) if type(size) is int else size
        for axis, size in data[sizes].items()
    }
    return workload_from_json({**data, sizes: cut})


def check(name: str, workload: Workload, shape: dict[str, int]) -> None:
    """What the rival computes is what the reference does."""
    result: Any = contender(name, workload, None, 1)(shape)()
    (expected,) = compute(workload, inputs_of(workload, shape), workload.dims(shape))
    # Operators with channels last give a view.
    is_short = str(getattr(result, "dtype", "")) in ("torch.bfloat16", "torch.float16")
    values = np.asarray(result.float() if is_short else result)
    assert sorted(values.shape) == sorted(expected.shape)
    values = values if values.shape == expected.shape else np.moveaxis(values, 1, -1)
    tolerance = 2e-2 if is_short else 1e-4
    expected = np.asarray(expected, np.float64)
    # Sums of rounded products are off by a share of the usual sum, whatever is left of this one.
    usual = max(1.0, float(expected.std())) if is_short else 1.0
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance * usual)


@pytest.mark.parametrize("name", DEFAULT_RIVALS.split(","))
@pytest.mark.parametrize("op", sorted(APPLY))
def test_a_rival_computes_the_workload_or_does_not_apply(op: str, name: str) -> None:
    workload = workload_of(op)
    if name not in APPLY[op]:
        with pytest.raises(DoesNotApply):
            contender(name, workload, None, 1)
        return
    check(name, workload, SHAPE)


@pytest.mark.parametrize("name", ["mm", "linear", "onednn"])
def test_roles_are_those_of_the_program_not_of_the_catalogues_names(name: str) -> None:
    check(name, workload_from_json(NOT_CONSTANT), SHAPE)


@pytest.mark.parametrize("name", ["mm", "linear", "mkl", "onednn", "torch"])
def test_an_epilogue_would_be_left_out_so_it_is_refused(name: str) -> None:
    workload = make_workload("dense", {"m": "T", "n": 7, "k": 9}, epilogue=["bias"])
    with pytest.raises(DoesNotApply, match="epilogue"):
        contender(name, workload, None, 1)


def test_every_default_rival_is_one() -> None:
    assert set(DEFAULT_RIVALS.split(",")) <= set(VENDORS)


@pytest.mark.parametrize("op", names_of(["all"]))
def test_pytorchs_kernel_computes_the_operator(op: str) -> None:
    workload = benchmarks_of(op, native(), 1)[0].task.workload
    if op in OF_BYTES and saturates(native().hardware):
        with pytest.raises(DoesNotApply, match="saturate"):
            contender("torch", workload, None, 1)
        return
    check("torch", workload, {"T": 3})


@pytest.mark.parametrize("op", PUBLISHED["operators"])
def test_rivals_compute_the_published_operators(op: str) -> None:
    whole = [benchmark.task.workload for benchmark in benchmarks_of(op, native(), 1)]
    for workload in {each.key: each for each in map(smaller, whole)}.values():
        check("torch", workload, {"T": 3})
        for name in ("mkl", "onednn"):
            # Whether they apply may depend on the CPU: float16 is packed for those that compute it.
            with suppress(DoesNotApply):
                check(name, workload, {"T": 3})


@pytest.mark.parametrize("way", ["first", "second"])
def test_both_ways_to_a_capsule_convolution_compute_it(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    times = {"first": 1.0, "second": 1.0, way: 0.5}
    monkeypatch.setattr(torch_kernels, "alternate", lambda calls, **limits: times)
    check("torch", smaller(benchmarks_of("capsule_matrices", native(), 1)[0].task.workload), {"T": 2})


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("conv2d", {**CONV, "layout": "nhwc"}),
        ("conv2d_transpose", {"b": "T", "c": 8, "h": 5, "w": 4, "o": 4, "r": 3, "s": 2, "groups": 2, "layout": "nhwc"}),
        ("attention", {"b": 2, "h": 3, "i": "T", "j": "T", "d": 8, "causal": True, "scale": 0.25}),
        ("avg_pool2d", {"b": "T", "c": 3, "h": 9, "w": 7, "r": 3, "s": 2, "stride": 2, "pad": 1}),
    ],
)
def test_settings_reach_pytorch(op: str, args: dict[str, Any]) -> None:
    check("torch", make_workload(op, args), SHAPE)


def test_a_program_that_pytorch_has_no_kernel_for_is_refused() -> None:
    with pytest.raises(DoesNotApply, match="PyTorch has no kernel"):
        contender("torch", workload_from_json(NOT_CONSTANT), None, 1)


@pytest.mark.parametrize(
    "op",
    [
        "conv2d", "conv3d", "conv2d_transpose", "depthwise_conv2d", "dense_int4", "fused_conv2d_bias_relu",
        "fused_dense_bias_gelu", "moe_dense",
    ],
)  # fmt: skip
def test_onednn_packs_weights_and_fuses_activations(op: str) -> None:
    check("onednn", benchmarks_of(op, native(), 1)[0].task.workload, {"T": 3})


def test_onednn_packs_for_channels_last() -> None:
    check("onednn", make_workload("conv2d", {**CONV, "layout": "nhwc"}), SHAPE)


def test_torch_compile_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "COMPILE_LIMIT_S", 0.0)
    with pytest.raises(DoesNotApply, match=r"torch\.compile took longer than 0 s"):
        contender("compile", workload_of("softmax"), None, 1)(SHAPE)


@pytest.mark.soak
def test_torch_compile_takes_the_weight_of_each_shape() -> None:
    """One whose dims depend on the shape is none of what is frozen at the first call."""
    workload = make_workload("dense", {"m": 3, "n": "2*T", "k": 9})
    rival = contender("compile", workload, None, 1)
    for size in (3, 8):
        inputs = inputs_of(workload, {"T": size})
        (wanted,) = compute(workload, inputs, workload.dims({"T": size}))
        np.testing.assert_allclose(np.asarray(rival({"T": size})()), wanted, rtol=1e-4, atol=1e-4)


def test_a_deadline_ends_what_is_under_way() -> None:
    with pytest.raises(DoesNotApply, match="too long"), torch_kernels.deadline(0.01, "too long"):
        time.sleep(30)
    with torch_kernels.deadline(30, "too long"):
        pass
