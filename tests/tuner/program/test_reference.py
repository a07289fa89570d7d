"""The reference in NumPy: every operator against its formula, and any program against loops written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.tuner.program.language.loops import looped
from tuner.errors import InvalidInput
from tuner.program.catalogue import EPILOGUES, OPS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.arrays import NUMPY
from tuner.program.language.workload import Workload
from tuner.program.reference import blocks, compute, expected, products, stages

Array = NDArray[Any]
ARGS = {"b": 2, "m": 3, "n": 5, "k": 4, "o": 4, "i": 3, "j": 5, "h": 3, "w": 4, "r": 2, "s": 3, "c": 2, "t": 3, "e": 2}
EXTRA = {"d": 3}
SMALL = {"b": 1, "d": 2, "t": 2, "s": 2, "o": 2}
"""Of convolutions in 3 dims, whose loops are long."""
VARIANTS: Sequence[tuple[str, Mapping[str, Any]]] = (
    *((name, {}) for name in OPS),
    *((name, dict.fromkeys(op.args, 1)) for name, op in OPS.items()),
    ("conv2d", {"pad": 1, "stride": 2}),
    ("conv2d", {"pad": 2, "dilation": 2, "groups": 2, "layout": "nhwc"}),
    ("conv3d", {"pad": 1}),
    ("conv2d", {"c": 6, "o": 9, "groups": 3, "pad": 1}),
    ("conv2d_transpose", {"pad": 1, "stride": 2}),
    ("conv2d_transpose", {"stride": 2, "dilation": 2, "groups": 2, "layout": "nhwc"}),
    ("max_pool2d", {"pad": 1, "stride": 2}),
    ("avg_pool2d", {"pad": 1}),
    ("attention", {"causal": True, "scale": 0.5}),
    ("attention", {"causal": True, "i": 5, "j": 3}),
    *((name, {"m": 0}) for name, op in OPS.items() if "m" in op.args),
    *((name, {"k": 0}) for name, op in OPS.items() if "k" in op.args),
    ("softmax", {"n": 0}),
    ("reduce_max", {"n": 0}),
    ("reduce_sum", {"n": 0}),
    ("conv2d", {"b": 0}),
    ("conv2d", {"c": 0}),
    ("attention", {"j": 0}),
    ("moe_dense", {"t": 0}),
)


def workload_of(
    op: str, args: Mapping[str, Any] = {}, dtype: Any = "float32", epilogue: Sequence[str] = ()
) -> Workload:
    sizes = {**ARGS, **EXTRA, **(SMALL if "3d" in op else {})}
    defaults = {name: sizes[name] for name in OPS[op].args}
    return make_workload(op, {**defaults, **args}, dtype, epilogue)


def inputs_of(workload: Workload, dims: Mapping[str, int] = {}, seed: int = 0) -> list[Array]:
    """Random ones; integers a bit out of the range of small dims, to see them clamped."""
    rng = np.random.default_rng(seed)

    def made(dtype: str, shape: tuple[int, ...]) -> Array:
        if NUMPY[dtype].kind in "iu":
            return rng.integers(0 if dtype == "uint8" else -1, 4, shape).astype(dtype)
        values: Array = rng.uniform(-1, 1, shape).astype(np.float32)
        return (values > 0) if dtype == "bool" else values.astype(NUMPY[dtype])

    return [made(tensor.dtype, tensor.shape(dims)) for tensor in workload.inputs]


def assert_same(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


# -- operators ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("op", "args"), VARIANTS, ids=str)
def test_every_operator_is_what_its_loops_compute(op: str, args: Mapping[str, Any]) -> None:
    workload = workload_of(op, args)
    inputs = inputs_of(workload)
    assert_same(compute(workload, inputs, {}), looped(workload, inputs, {}))


@pytest.mark.parametrize("name", sorted(EPILOGUES))
def test_every_epilogue_is_what_its_loops_compute(name: str) -> None:
    for op in ("dense", "batch_matmul_nn", "conv2d", "depthwise_conv2d"):
        workload = workload_of(op, epilogue=[name, "relu"])
        inputs = inputs_of(workload)
        assert_same(compute(workload, inputs, {}), looped(workload, inputs, {}))


def test_products_are_numpys() -> None:
    x, w = inputs_of(workload_of("dense"))
    assert_same(compute(workload_of("dense"), [x, w], {}), [x.astype(float) @ w.astype(float).T])
    x, y = inputs_of(workload_of("batch_matmul_nn"))
    assert_same(compute(workload_of("batch_matmul_nn"), [x, y], {}), [x.astype(float) @ y.astype(float)])
    assert_same(compute(workload_of("batch_matmul_nt"), [x, y.swapaxes(1, 2)], {}), [x.astype(float) @ y.astype(float)])


def test_attention_is_the_softmax_of_scores_times_values() -> None:
    workload = workload_of("attention", {"causal": True})
    q, k, v = (array.astype(float) for array in inputs_of(workload))
    scores = 3**-0.5 * q @ k.swapaxes(2, 3)
    hidden = np.arange(5) > np.arange(3)[:, None] + 2
    weights = np.exp(np.where(hidden, -np.inf, scores))
    (out,) = compute(workload, inputs_of(workload), {})
    assert_same([out], [weights / weights.sum(-1, keepdims=True) @ v])


def test_a_convolution_is_windows_times_filters() -> None:
    workload = workload_of("conv2d", {"pad": 1, "stride": 2})
    x, weight = (array.astype(float) for array in inputs_of(workload))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (2, 3), (2, 3))
    (out,) = compute(workload, [x, weight], {})
    assert_same([out], [np.einsum("bcpqrs,ocrs->bopq", windows[:, :, ::2, ::2], weight)])


def test_norms_are_their_formulas() -> None:
    x, gamma, beta = (array.astype(float) for array in inputs_of(workload_of("layer_norm")))
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    assert_same(compute(workload_of("layer_norm"), [x, gamma, beta], {}), [normal * gamma + beta])
    root = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    assert_same(compute(workload_of("rms_norm"), [x, gamma], {}), [root * gamma])


# -- programs -----------------------------------------------------------------------------------------------------
def program(text: str, extents: Mapping[str, Any], **fields: Any) -> Workload:
    return workload_from_json({"program": text, "extents": dict(extents), **fields})


@pytest.mark.parametrize(
    ("reducer", "dtype", "value"),
    [
        ("sum", "float32", 0), ("prod", "float32", 1), ("max", "float32", -math.inf), ("min", "float32", math.inf),
        ("sum", "int8", 0), ("prod", "int32", 1), ("max", "int32", -(2**31)), ("min", "int32", 2**31 - 1),
        ("max", "int8", -128), ("min", "uint8", 255), ("max", "bool", False), ("min", "bool", True),
    ],
)  # fmt: skip
def test_reductions_over_nothing_have_their_neutral_element(reducer: str, dtype: str, value: float) -> None:
    workload = program(f"out[m] = {reducer}(k) x[m, k]", {"m": 2, "k": "T"}, dtype=dtype)
    (out,) = compute(workload, [np.zeros((2, 0), dtype)], dict.fromkeys(workload.symbols, 0))
    assert out.tolist() == [value, value]


def test_nan_and_infinity_propagate() -> None:
    workload = program("a[m] = max(k) x[m, k]\nb[m] = min(k) x[m, k]\nc[m] = sum(k) x[m, k]", {"m": 3, "k": 2})
    x = np.array([[math.nan, 1], [math.inf, 2], [-math.inf, math.inf]], np.float32)
    a, b, c = compute(workload, [x], {})
    np.testing.assert_array_equal(a, [math.nan, math.inf, math.inf])
    np.testing.assert_array_equal(b, [math.nan, 2, -math.inf])
    np.testing.assert_array_equal(c, [math.nan, math.inf, math.nan])


def test_reads_outside_a_padded_tensor_give_its_padding() -> None:
    for dtype, value, low in (("float32", 7, 7), ("float32", "-inf", -math.inf), ("int8", "-inf", -128)):
        text = "out[m] = x[m - 1]\nback[m] = x[2 - m]\nhalf[m] = x[m // 2 - 1]"
        workload = program(text, {"m": 5}, padded={"x": value}, shapes={"x": [3]}, dtype=dtype)
        out, back, half = compute(workload, [np.array([1, 2, 3], dtype)], {})
        assert out.tolist() == [low, 1, 2, 3, low]
        assert back.tolist() == [3, 2, 1, low, low]
        assert half.tolist() == [low, low, 1, 1, 2]


def test_indices_from_tensors_are_clamped() -> None:
    workload = program("out[t, n] = w[row[t], n]", {"t": 4, "n": 2}, shapes={"w": [3, 2]})
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert compute(workload, [w, np.array([1, -5, 99, 2], np.int32)], {})[0][:, 0].tolist() == [2, 0, 4, 4]
    empty = program("out[t, n] = w[row[t], n]", {"t": 4, "n": 2}, shapes={"w": ["E", 2]})
    assert compute(empty, [w[:0], np.zeros(4, np.int32)], {"d0": 0})[0].tolist() == [[0, 0]] * 4


def test_integers_wrap_around_at_32_bits() -> None:
    x = np.array([2**31 - 1, 2, -(2**31)], np.int32)
    text = "a[m] = x[m] + 1\nb[m] = x[m] * x[m]\nc[] = sum(m) x[m] * x[m]\nd[] = prod(m) x[m]"
    a, b, c, d = compute(program(text, {"m": 3}, dtype="int32"), [x], {})
    assert a.dtype == np.int32
    assert a.tolist() == [-(2**31), 3, -(2**31) + 1]
    assert b.tolist() == [1, 4, 0]
    assert (int(c), int(d)) == (5, 0)


def test_sums_of_large_integers_are_exact() -> None:
    x = np.full((3, 400), 2**31 - 1, np.int64)
    (out,) = compute(program("out[m] = sum(k) x[m, k] * x[m, k]", {"m": 3, "k": 400}, dtype="int64"), [x], {})
    exact = 400 * (2**31 - 1) ** 2
    assert out.tolist() == [(exact + 2**63) % 2**64 - 2**63] * 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("out[] = where(x[] == y[], 1, 0)", 1),
        ("out[] = where(x[] <= y[], 1, 0)", 1),
        ("out[] = min(x[], y[])", 2.0**24),
        ("out[] = where(y[] < 0, y[], x[])", 2.0**24),
        ("out[] = min(y[], 16777217)", 2.0**24),
    ],
)
def test_integers_beside_floats_are_rounded_as_in_a_kernel(text: str, wanted: float) -> None:
    workload = workload_from_json({"program": text, "dtype": {"x": "int64", "y": "float32"} if "x[" in text else {}})
    given: dict[str, Array] = {"x": np.array(2**24 + 1, np.int64), "y": np.array(2.0**24, np.float32)}
    (out,) = expected(workload, [given[tensor.name] for tensor in workload.inputs], {})
    assert float(out.value) == wanted
    assert not out.wrong(np.asarray(wanted, NUMPY[workload.outputs[0].dtype])).any()


def test_division_and_remainder_round_down_and_shifts_keep_the_sign() -> None:
    x = np.array([-7, 7, -8], np.int32)
    text = "a[m] = x[m] // 4\nb[m] = x[m] % 4\nc[m] = x[m] >> 1\nd[m] = x[m] & 5 | 8\ne[m] = x[m] / 2"
    result = compute(program(text, {"m": 3}, dtype={"x": "int32"}), [x], {})
    lists = [[-2, 1, -2], [1, 3, 0], [-4, 3, -4], [9, 13, 8], [-3.5, 3.5, -4]]
    assert [array.tolist() for array in result] == lists


def test_casts_round_and_truncate() -> None:
    x = np.array([1.999, -1.999, 1 + 2**-9], np.float32)
    text = """
        a[m] = cast(x[m], int32)
        b[m] = cast(x[m], bfloat16) * 1.0
        c[m] = cast(x[m] > 0.0, float32)
        d[m] = round(x[m] + 0.5)
    """
    a, b, c, d = compute(program(text, {"m": 3}), [x], {})
    assert a.tolist() == [1, -1, 1]
    assert b.tolist() == [2, -2, 1]
    assert c.tolist() == [1, 0, 1]
    assert d.tolist() == [2, -1, 2]


def test_a_quantised_product_is_exact() -> None:
    text = "acc[m, n] = sum(k) cast(x[m, k], int32) * cast(w[n, k], int32)\nout[m, n] = cast(acc[m, n], float32) * s[n]"
    workload = program(
        text, {"m": 3, "n": 4, "k": 300}, dtype={"x": "uint8", "w": "int8", "s": "float32"}, outputs=["acc", "out"]
    )
    rng = np.random.default_rng(0)
    x, w = rng.integers(0, 256, (3, 300)).astype(np.uint8), rng.integers(-128, 128, (4, 300)).astype(np.int8)
    acc, out = compute(workload, [x, w, np.full(4, 0.5, np.float32)], {})
    np.testing.assert_array_equal(acc, x.astype(int) @ w.astype(int).T)
    np.testing.assert_array_equal(out, acc / 2)


def test_nibbles_are_unpacked() -> None:
    text = "out[m, n] = sum(k) x[m, k] * (cast((w[n, k//2] >> (4*(k % 2))) & 15, float32) - 8.0) * s[n, k//4]"
    workload = program(text, {"m": 3, "n": 4, "k": 8}, dtype={"x": "float32", "w": "uint8", "s": "float32"})
    rng = np.random.default_rng(0)
    x, s = rng.uniform(-1, 1, (3, 8)).astype(np.float32), rng.uniform(-1, 1, (4, 2)).astype(np.float32)
    w = rng.integers(0, 256, (4, 4)).astype(np.uint8)
    weights = (np.stack([w & 15, w >> 4], 2).reshape(4, 8) - 8.0) * s.repeat(4, axis=1)
    assert_same(compute(workload, [x, w, s], {}), [x.astype(float) @ weights.T])


@pytest.mark.parametrize("dims", [{"m": 2}, {"m": 5}, {"m": 0}])
def test_a_mask_compares_axes_extents_and_segments(dims: Mapping[str, int]) -> None:
    text = "s[i, j] = where((seg[i] == seg[j]) & (j <= i), d[i, j] * extent(i), -inf)"
    workload = program(text, {"i": "T", "j": "T"}, dtype={"seg": "int32"})
    inputs = inputs_of(workload, dims)
    assert_same(compute(workload, inputs, dims), looped(workload, inputs, dims))


def test_inputs_of_other_shapes_and_dims_that_read_outside_are_refused() -> None:
    workload = workload_of("dense", {"m": "T"})
    with pytest.raises(InvalidInput, match=r"shape \(3, 4\)"):
        compute(workload, inputs_of(workload, {"m": 2}), {"m": 3})
    shifted = program("out[m] = x[m + 2]", {"m": "T"}, shapes={"x": ["S"]})
    with pytest.raises(InvalidInput, match="reads outside"):
        compute(shifted, [np.zeros(3, np.float32)], {"m": 2, "d1": 3})


# -- blocks -------------------------------------------------------------------------------------------------------
BLOCKED: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("conv2d", {"pad": 1, "stride": 2}),
    ("conv2d", {"c": 6, "o": 9, "groups": 3}),
    ("conv2d_transpose", {"groups": 2, "stride": 2, "b": 1, "o": 2, "h": 2, "w": 2}),
    ("attention", {"causal": True}),
    ("max_pool2d", {"pad": 1}),
    *((op, {}) for op in ("layer_norm", "dense", "bilinear", "moe_dense", "softmax")),
)


@pytest.mark.parametrize(("op", "args"), BLOCKED, ids=str)
@pytest.mark.parametrize("elements", [20, 100, 400])
def test_what_is_computed_in_blocks_is_the_same(
    monkeypatch: pytest.MonkeyPatch, op: str, args: Mapping[str, Any], elements: int
) -> None:
    workload = workload_of(op, args)
    inputs = inputs_of(workload)
    whole = expected(workload, inputs, {})
    monkeypatch.setattr(blocks, "MAX_ELEMENTS", elements)
    for one, other in zip(expected(workload, inputs, {}), whole, strict=True):
        np.testing.assert_allclose(one.value, other.value, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(one.limit, other.limit, rtol=1e-6)


@pytest.mark.parametrize(
    "sizes", [{"k": 256, "p": 13, "q": 13, "i": 8, "j": 8}, {"m": 5000, "n": 7}, {"m": 3}, {"m": 0}]
)
def test_a_sample_is_of_few_boxes_however_many_axes_there_are(sizes: dict[str, int]) -> None:
    """Each reads all that boxes share: thousands of them took a minute for a second's work."""
    boxes = blocks.sampled(sizes, 0.1)
    assert len(boxes) <= 2 * blocks.SAMPLE_RUNS
    assert all(0 <= begin < end <= sizes[axis] for box in boxes for axis, (begin, end) in box.items())
    whole = math.prod(sizes.values())
    points = sum(math.prod(end - begin for begin, end in box.values()) for box in boxes)
    assert 0.1 * whole <= points + 1 <= 0.25 * whole + 17
    if boxes:
        assert all(begin == 0 for begin, _ in boxes[0].values())
    if len(boxes) > 1:
        assert all(end == sizes[axis] for axis, (_, end) in boxes[1].items())


@pytest.mark.parametrize("elements", [60, 2**22])
def test_a_sample_of_rows_is_what_the_whole_has_there(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """The first and the last row are of it. Of other rows nothing is said."""
    workload = workload_of("attention", {"b": 2, "h": 3, "i": 40, "j": 21, "causal": True})
    inputs = inputs_of(workload)
    (whole,) = expected(workload, inputs, {})
    monkeypatch.setattr(blocks, "MAX_ELEMENTS", elements)
    (part,) = expected(workload, inputs, {}, share=0.2)
    is_known = np.isfinite(part.limit)
    rows = is_known[..., 0]
    assert (is_known == rows[..., None]).all()
    assert rows[0, 0, 0] & rows[-1, -1, -1]
    assert 30 <= rows.sum() <= 48
    np.testing.assert_allclose(part.value[is_known], whole.value[is_known], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(part.limit[is_known], whole.limit[is_known], rtol=1e-6)


def test_what_shares_no_axis_is_computed_as_a_whole() -> None:
    workload = program("t[m, n] = exp(x[m, n])\nout[m, n] = t[m, n] + t[n, m]", {"m": 5, "n": 5})
    (part,) = expected(workload, inputs_of(workload), {}, share=0.01)
    assert np.isfinite(part.limit).all()


@pytest.mark.parametrize("o", [1, 3, 7, 12])
def test_runs_that_share_what_they_read_are_what_their_loops_compute(o: int) -> None:
    """Also where the last run is shorter, the axis is read beside its quotient, and nothing else has it."""
    text = "y[b, o] = sum(c) x[b, o // 3, c] * w[o, c]\nz[b, o] = sum(c) x[b, o // 3, c] * w[o // 3 + o, c]"
    groups = -(-o // 3)
    shapes = {"x": [2, groups, 4], "w": [o + groups, 4]}
    workload = program(f"{text}\nt[b, o] = sum(c) x[b, o // 3, c]", {"b": 2, "o": o, "c": 4}, shapes=shapes)
    inputs = inputs_of(workload)
    assert_same(compute(workload, inputs, {}), looped(workload, inputs, {}))


def test_a_group_is_a_product_of_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is not repeated for every channel of a group."""
    workload = workload_of("conv2d", {"b": 3, "c": 8, "o": 16, "h": 9, "w": 9, "groups": 2})
    sizes: list[list[int]] = []

    def spied(factors: Sequence[tuple[Array, tuple[str, ...]]], kept: Sequence[str]) -> Array:
        sizes.append(sorted(array.size for array, _ in factors))
        return products.sum_of_products(factors, kept)

    monkeypatch.setattr(stages, "sum_of_products", spied)
    compute(workload, inputs_of(workload), {})
    window = 4 * ARGS["r"] * ARGS["s"]
    places = 3 * (9 - ARGS["r"] + 1) * (9 - ARGS["s"] + 1)
    assert sizes == [[8 * window, places * window]] * 2


LOOKED_UP: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("y[t, n] = sum(k) x[t, k] * w[e[t], n, k]", {}),
    ("y[n, t] = sum(k) x[t, k] * w[n, e[t], k]", {"shapes": {"w": ["n", 4, "k"]}}),
    ("s[t] = sum(k) x[t, k]; y[t, n] = sum(k) s[t] * x[t, k] * w[e[t], n, k]", {}),
    ("h[t, n] = sum(k) x[t, k] * w[e[t], n, k]; y[t, n] = h[t, n] + b[e[t], n]", {"shapes": {"b": [4, "n"]}}),
    # The order of rows counts, or they are reduced: each stays where it is.
    ("y[t, n] = sum(k) x[t, k] * w[e[t], n, k] * t", {}),
    ("y[t, n] = sum(k) x[t, k] * x[n, k] * w[e[t], n, k]", {"shapes": {"x": ["t + 9", "k"]}}),
    ("y[n] = sum(t, k) x[t, k] * w[e[t], n, k]", {}),
    ("y[t, n] = sum(k) x[t, k] * w[e[t], n, k]", {"shapes": {"x": ["t + 2", "k"]}}),
)


@pytest.mark.parametrize(("text", "fields"), LOOKED_UP)
@pytest.mark.parametrize("elements", [40, 2**22])
def test_rows_that_look_up_are_what_their_loops_compute(
    monkeypatch: pytest.MonkeyPatch, text: str, fields: Mapping[str, Any], elements: int
) -> None:
    monkeypatch.setattr(blocks, "MAX_ELEMENTS", elements)
    shapes = {"w": [4, "n", "k"], **fields.get("shapes", {})}
    workload = program(text, {"t": 9, "n": 3, "k": 5}, shapes=shapes)
    inputs = inputs_of(workload)
    wanted = looped(workload, inputs, {})
    assert_same(compute(workload, inputs, {}), wanted)
    assert not any(one.wrong(other).any() for one, other in zip(expected(workload, inputs, {}), wanted, strict=True))


def test_the_rows_of_an_expert_are_a_product_of_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[set[str]] = []

    def noted(factors: Sequence[products.Factor], kept: Sequence[str]) -> Array:
        taken.append({axis for _, axes in factors[1:] for axis in axes})
        return products.sum_of_products(factors, kept)

    monkeypatch.setattr(stages, "sum_of_products", noted)
    workload = workload_of("moe_dense", {"t": 40, "e": 3})
    compute(workload, inputs_of(workload), {})
    assert taken == [{"n", "k"}] * 5  # one for each value that is drawn, -1 to 3


def test_a_scan_of_blocks_covers_products_and_extremes_of_long_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = program("a[m] = prod(k) x[m, k]\nb[m] = min(k) x[m, k]", {"m": 2, "k": 9}, dtype="int32")
    inputs = inputs_of(workload)
    monkeypatch.setattr(blocks, "MAX_ELEMENTS", 20)
    assert_same(compute(workload, inputs, {}), looped(workload, inputs, {}))


# -- bounds -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", sorted(OPS))
def test_a_result_in_float32_is_within_the_bounds_and_they_are_small(op: str) -> None:
    workload = workload_of(op)
    inputs = inputs_of(workload)
    (wanted,) = expected(workload, inputs, {})
    (result,) = looped(workload, inputs, {}, real=np.float32)
    assert not wanted.wrong(result).any()
    assert wanted.limit.max() < 1e-4
    assert wanted.wrong(result + 0.01).all()


@pytest.mark.parametrize("k", [16, 768, 3072, 30_000])
def test_the_bound_of_a_sum_lies_between_rounding_and_a_product_too_few(k: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-1, 1, (8, k)).astype(np.float32) for _ in range(2))
    workload = make_workload("dense", {"m": 8, "n": 8, "k": k})
    (wanted,) = expected(workload, [x, w], {})
    in_turn = np.zeros((8, 8), np.float32)
    for column in range(k):
        in_turn += x[:, column, None] * w[None, :, column]
    assert not wanted.wrong(in_turn).any()
    assert wanted.wrong(in_turn - x[:, :1] * w[None, :, 0]).mean() > 0.7


SOFTMAX = """
    top[i] = max(j) x[i, j]
    e[i, j] = {exponential}
    z[i] = sum(j) e[i, j]
"""
WEIGHTED = {
    "over the sum": "o[i, f] = sum(j) e[i, j] * v[j, f]\nout[i, f] = o[i, f] / z[i]",
    "weights": "w[i, j] = e[i, j] / z[i]\nout[i, f] = sum(j) v[j, f] * w[i, j]",
}
EXPONENTIAL = {
    "all": "exp(x[i, j] - top[i])",
    "some hidden": "where(x[i, j] < -1.0, 0.0, exp(x[i, j] - top[i]))",
}
SCORES: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "apart": lambda rng, shape: rng.uniform(-1, 1, shape),
    "equal": lambda rng, shape: np.zeros(shape),
    "one of them large": lambda rng, shape: np.where(np.arange(shape[1]) == 0, 8.0, rng.uniform(-1, 1, shape)),
}


@pytest.mark.parametrize("weighted", WEIGHTED)
@given(
    st.sampled_from(["bfloat16", "float16"]), st.sampled_from(sorted(EXPONENTIAL)), st.sampled_from(sorted(SCORES)),
    st.one_of(st.integers(1, 12), st.integers(13, 600)), st.floats(0.0, 9.0), st.floats(-1.0, 1.0),
    st.integers(0, 2**32),
)  # fmt: skip
def test_exponentials_that_a_kernel_rounds_stay_within_the_bounds(
    weighted: str, dtype: str, exponential: str, scores: str, columns: int, scale: float, shift: float, seed: int
) -> None:
    """Where values and results are short floats, and for values that no rounding knows of: ROUNDED_UNITS."""
    text = SOFTMAX.format(exponential=EXPONENTIAL[exponential]) + WEIGHTED[weighted]
    workload = program(text, {"i": 4, "j": columns, "f": 16}, dtype=dtype)
    short, rng = NUMPY[dtype], np.random.default_rng(seed)
    x = (scale * SCORES[scores](rng, (4, columns))).astype(short)
    v = (rng.uniform(-1, 1, (columns, 16)) + shift).astype(short)
    (wanted,) = expected(workload, [x, v] if workload.inputs[1].name == "v" else [v, x], {})

    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    if exponential != "all":
        e = np.where(wide < -1.0, 0.0, e)
    total = e.astype(short).astype(np.float64) @ v.astype(np.float64)
    with np.errstate(invalid="ignore"):
        result = (total / e.sum(axis=1, keepdims=True)).astype(short)
    assert not wanted.wrong(result).any()


@pytest.mark.parametrize("k", [1, 5, 64, 3072])
def test_factors_that_a_workload_lets_kernels_round_stay_within_the_bounds(k: int) -> None:
    """To TF32 where it says so, and no further: neither without it, nor to 8 bits."""
    rng = np.random.default_rng(k)
    x, w = (rng.uniform(-1, 1, (60, k)).astype(np.float32) for _ in range(2))
    args: dict[str, Any] = {"m": 60, "n": 60, "k": k}
    (wanted,) = expected(workload_from_json({"op": "dense", "args": args, "tf32": True}), [x, w], {})
    (exact,) = expected(make_workload("dense", args), [x, w], {})
    assert np.array_equal(wanted.value, exact.value)
    bits = [((each.view(np.int32) + 0x1000) & -8192).view(np.float32) for each in (x, w)]
    rounded = bits[0] @ bits[1].T
    assert not wanted.wrong(rounded).any()
    assert not wanted.wrong(x @ w.T).any()
    assert exact.wrong(rounded).any()
    short = [each.astype(NUMPY["bfloat16"]).astype(np.float32) for each in (x, w)]
    assert wanted.wrong(short[0] @ short[1].T).any()


def test_a_long_sum_of_positive_terms_may_round_more() -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (4, 100_000)).astype(np.float32)
    (wanted,) = expected(make_workload("reduce_sum", {"m": 4, "n": 100_000}), [x], {})
    assert not wanted.wrong(np.add.accumulate(x, axis=1)[:, -1]).any()


def test_outputs_and_intermediates_of_16_bits_are_rounded() -> None:
    fields = {"dtype": {"x": "float32", "t": "bfloat16", "out": "float32"}}
    workload = program("t[m] = x[m] * 3.0\nout[m] = t[m] + 1.0", {"m": 50}, **fields)
    x = np.linspace(-1, 1, 50, dtype=np.float32)
    (wanted,) = expected(workload, [x], {})
    rounded = (x * np.float32(3)).astype(NUMPY["bfloat16"]).astype(np.float32) + np.float32(1)
    assert not wanted.wrong(rounded).any()
    assert not wanted.wrong(x * 3 + 1).any()
    assert wanted.wrong(rounded + 0.02).all()


def test_what_rounding_decides_may_be_either() -> None:
    text = """
        y[m] = x[m] * 0.1
        floor_[m] = floor(y[m] * 10.0)
        sign[m] = where(y[m] < 0.5, -1.0, 1.0)
        whole[m] = cast(y[m], int32)
    """
    workload = program(text, {"m": 3}, outputs=["floor_", "sign", "whole"])
    floors, signs, wholes = expected(workload, [np.array([5.0, 7.3, 10.0], np.float32)], {})
    assert not floors.wrong(np.array([4.0, 7.0, 9.0])).any()
    assert floors.wrong(np.array([3.0, 8.0, 11.5])).all()
    assert not signs.wrong(np.array([-1.0, 1.0, 1.0])).any()
    assert signs.wrong(np.array([3.5, -1.0, -1.0])).all()
    assert not wholes.wrong(np.array([0, 0, 0])).any()
    assert wholes.wrong(np.array([1, 1, 3])).all()


def test_integers_that_no_float_decides_are_exact() -> None:
    (wanted,) = expected(
        program("out[m] = sum(k) x[m, k]", {"m": 2, "k": 3}, dtype="int32"), [np.ones((2, 3), np.int32)], {}
    )
    assert wanted.limit.tolist() == [0, 0]


def test_equal_infinities_and_nans_match() -> None:
    (wanted,) = expected(program("out[m] = log(x[m])", {"m": 4}), [np.array([0, -1, 1, 2], np.float32)], {})
    assert wanted.wrong(np.array([-math.inf, math.nan, 0, math.log(2)])).tolist() == [False] * 4
    assert wanted.wrong(np.array([math.nan, -math.inf, math.nan, math.inf])).tolist() == [True] * 4


# -- any program --------------------------------------------------------------------------------------------------
INDICES = st.sampled_from(
    ["i", "j", "k", "i + j", "2*i - 1", "k - j", "j // 2", "(i + k) % 3", "1", "3 - i", "row[j]", "row[k]"]
)
LEAVES = st.one_of(
    st.builds("x[{}, {}]".format, INDICES, INDICES),
    st.builds("y[{}]".format, INDICES),
    st.sampled_from(["i", "k", "extent(j)", "2", "0.5", "-1.5", "cast(row[j], float32)", "cast(y[i], int32)"]),
)


def _grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, parts, st.sampled_from(["+", "-", "*", "*"]), parts),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), parts, parts),
        st.builds("{}({})".format, st.sampled_from(["abs", "tanh", "sigmoid", "exp", "-", "erf", "floor"]), parts),
        st.builds("where({} {} {}, {}, {})".format, parts, st.sampled_from(["<", "<=", "=="]), parts, parts, parts),
        st.builds("where(({0} < {1}) & ({1} < {2}), {0}, {2})".format, parts, parts, parts),
    )


BODIES = st.recursive(LEAVES, _grown, max_leaves=8)
REDUCERS = st.sampled_from(["sum", "max", "min", "prod"])
SIZES = st.integers(0, 3)


@settings(max_examples=50, deadline=None)
@given(BODIES, BODIES, REDUCERS, SIZES, SIZES, SIZES, st.sampled_from([1, 30, 10**6]), st.integers(0, 99))
def test_any_program_is_what_its_loops_compute(
    inner: str, outer: str, reducer: str, i: int, j: int, k: int, elements: int, seed: int
) -> None:
    text = f"""
        t[i, j] = {reducer}(k) ({inner}) * y[k]
        out[i, j, k] = {outer} - t[i, j]
        last[j] = t[2, j] * row[j] + x[0, j] * y[0]
    """
    fields = {
        "padded": {"x": 2, "y": 0.5, "t": -1},
        "shapes": {"x": [3, 4], "y": [4], "row": [4]},
        "outputs": ["out", "last"],
    }
    workload = program(text, {"i": i, "j": j, "k": k}, dtype={"row": "int32"}, **fields)
    inputs = inputs_of(workload, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MAX_ELEMENTS", elements)
        result = expected(workload, inputs, {})
    for one, wanted in zip(result, looped(workload, inputs, {}), strict=True):
        assert one.value.shape == wanted.shape
        # Sums in another order may fall on the other side of a comparison: there the bound says so.
        close = np.isclose(one.value, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)
        assert (close | ~one.wrong(wanted)).all()
        assert not np.isnan(one.limit).any()


def test_loops_are_independent_of_the_reference() -> None:
    workload = program("out[m] = sum(k) x[m, k] * y[k]", {"m": 2, "k": 3})
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    assert looped(workload, [x, y], {})[0].tolist() == [3, 12]
