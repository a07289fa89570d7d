"""The catalogue: each operator against the contract's table, its text, shapes, settings and refusals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import shapewright as sw
from tests.every_op import RANGES
from tests.tuner.program_strategies import op_args
from tuner.errors import InvalidInput
from tuner.measure.verification.inputs import random_inputs
from tuner.program.catalogue import EPILOGUES, OPS, op_named
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload
from tuner.program.reference import compute

WINDOWED = {"b": 2, "c": 4, "h": 9, "w": 8, "r": 3, "s": 2}
CONV = {**WINDOWED, "o": 6}

# What is promised: op -> args, then operands in order: (name, shape), * for constants; the last is the output.
TABLE: dict[str, tuple[dict[str, Any], list[tuple[str, tuple[int, ...]]]]] = {
    "dense": ({"m": 5, "n": 7, "k": 3}, [("x", (5, 3)), ("w*", (7, 3)), ("out", (5, 7))]),
    "matmul": ({"m": 5, "n": 7, "k": 3}, [("x", (5, 3)), ("y", (3, 7)), ("out", (5, 7))]),
    "batch_matmul_nn": (
        {"b": 2, "m": 5, "n": 7, "k": 3},
        [("x", (2, 5, 3)), ("y", (2, 3, 7)), ("out", (2, 5, 7))],
    ),
    "batch_matmul_nt": (
        {"b": 2, "m": 5, "n": 7, "k": 3},
        [("x", (2, 5, 3)), ("y", (2, 7, 3)), ("out", (2, 5, 7))],
    ),
    "gemv": ({"n": 7, "k": 3}, [("w", (7, 3)), ("x", (3,)), ("y", (7,))]),
    "bilinear": (
        {"b": 2, "o": 3, "i": 4, "j": 5},
        [("u", (2, 4)), ("w*", (3, 4, 5)), ("v", (2, 5)), ("y", (2, 3))],
    ),
    "conv1d": (
        {"b": 2, "c": 4, "w": 8, "o": 6, "s": 3},
        [("x", (2, 4, 8)), ("weight*", (6, 4, 3)), ("out", (2, 6, 6))],
    ),
    "conv2d": (CONV, [("x", (2, 4, 9, 8)), ("weight*", (6, 4, 3, 2)), ("out", (2, 6, 7, 7))]),
    "conv3d": (
        {"b": 2, "c": 4, "d": 7, "h": 9, "w": 8, "o": 6, "t": 2, "r": 3, "s": 2},
        [("x", (2, 4, 7, 9, 8)), ("weight*", (6, 4, 2, 3, 2)), ("out", (2, 6, 6, 7, 7))],
    ),
    "group_conv2d": (
        {**CONV, "groups": 2},
        [("x", (2, 4, 9, 8)), ("weight*", (6, 2, 3, 2)), ("out", (2, 6, 7, 7))],
    ),
    "dilated_conv2d": (
        {**CONV, "dilation": 2},
        [("x", (2, 4, 9, 8)), ("weight*", (6, 4, 3, 2)), ("out", (2, 6, 5, 6))],
    ),
    "conv1d_transpose": (
        {"b": 2, "c": 4, "w": 8, "o": 6, "s": 3, "stride": 2},
        [("x", (2, 4, 8)), ("weight*", (4, 6, 3)), ("out", (2, 6, 17))],
    ),
    "conv2d_transpose": (
        {**CONV, "stride": 2, "pad": 1},
        [("x", (2, 4, 9, 8)), ("weight*", (4, 6, 3, 2)), ("out", (2, 6, 17, 14))],
    ),
    "conv3d_transpose": (
        {"b": 2, "c": 4, "d": 3, "h": 4, "w": 5, "o": 6, "t": 2, "r": 3, "s": 2},
        [("x", (2, 4, 3, 4, 5)), ("weight*", (4, 6, 2, 3, 2)), ("out", (2, 6, 4, 6, 6))],
    ),
    "depthwise_conv2d": (
        {**WINDOWED, "stride": 2, "pad": 1},
        [("x", (2, 4, 9, 8)), ("weight*", (4, 3, 2)), ("out", (2, 4, 5, 5))],
    ),
    "max_pool2d": (WINDOWED, [("x", (2, 4, 9, 8)), ("out", (2, 4, 7, 7))]),
    "avg_pool2d": ({**WINDOWED, "stride": 2}, [("x", (2, 4, 9, 8)), ("out", (2, 4, 4, 4))]),
    "softmax": ({"m": 5, "n": 7}, [("x", (5, 7)), ("out", (5, 7))]),
    "layer_norm": ({"m": 5, "n": 7}, [("x", (5, 7)), ("gamma", (7,)), ("beta", (7,)), ("out", (5, 7))]),
    "rms_norm": ({"m": 5, "n": 7}, [("x", (5, 7)), ("gamma", (7,)), ("out", (5, 7))]),
    "reduce_sum": ({"m": 5, "n": 7}, [("x", (5, 7)), ("out", (5,))]),
    "reduce_max": ({"m": 5, "n": 7}, [("x", (5, 7)), ("out", (5,))]),
    "reduce_mean": ({"m": 5, "n": 7}, [("x", (5, 7)), ("out", (5,))]),
    "attention": (
        {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6},
        [("q", (2, 3, 4, 6)), ("k", (2, 3, 5, 6)), ("v", (2, 3, 5, 6)), ("out", (2, 3, 4, 6))],
    ),
    "ragged_attention": (
        {"b": 2, "h": 3, "i": 4, "j": 5, "d": 6},
        [
            ("q", (4, 3, 6)),
            ("k", (5, 3, 6)),
            ("v", (5, 3, 6)),
            ("cu_seqlens_q", (3,)),
            ("cu_seqlens_k", (3,)),
            ("out", (4, 3, 6)),
        ],
    ),
    "dense_int4": (
        {"m": 5, "n": 7, "k": 9, "group": 4},
        [("x", (5, 9)), ("w*", (7, 5)), ("s*", (7, 3)), ("out", (5, 7))],
    ),
    "moe_dense": (
        {"t": 5, "e": 3, "n": 7, "k": 4},
        [("x", (5, 4)), ("w*", (3, 7, 4)), ("expert", (5,)), ("out", (5, 7))],
    ),
}


def operands(workload: Workload) -> list[tuple[str, tuple[int, ...]]]:
    return [(tensor.name + "*" * tensor.constant, tensor.shape({})) for tensor in workload.operands]


@pytest.mark.parametrize("op", sorted(TABLE))
def test_operands_stand_in_the_order_and_shapes_of_the_contract(op: str) -> None:
    args, expected = TABLE[op]
    assert operands(make_workload(op, args)) == expected


@pytest.mark.parametrize("op", sorted(TABLE))
def test_the_args_are_those_of_the_contract(op: str) -> None:
    given = [name for name in TABLE[op][0] if name not in OPS[op].settings]
    spatial = {"conv2d": "b c h w o r s", "attention": "b h i j d", "moe_dense": "t e n k", "bilinear": "b o i j"}
    assert sorted(OPS[op].args) == sorted(given)
    if op in spatial:
        assert " ".join(OPS[op].args) == spatial[op]


def test_defaults_are_those_of_the_contract() -> None:
    conv = {name: setting.default for name, setting in OPS["conv2d"].settings.items()}
    assert conv == {"stride": 1, "pad": 0, "dilation": 1, "groups": 1, "layout": "nchw"}
    for op in ("conv1d", "conv3d", "conv2d_transpose", "group_conv2d", "dilated_conv2d", "conv1d_transpose"):
        assert {name: setting.default for name, setting in OPS[op].settings.items()} == conv
    for op in ("depthwise_conv2d", "max_pool2d", "avg_pool2d"):
        assert {"stride", "pad"} <= set(OPS[op].settings)
    assert OPS["layer_norm"].settings["eps"].default == OPS["rms_norm"].settings["eps"].default == 1e-5
    assert OPS["attention"].settings["causal"].default is False
    assert repr(1 / math.sqrt(6)) in str(make_workload("attention", TABLE["attention"][0]).program)


@pytest.mark.parametrize("op", sorted(OPS))
def test_an_operator_says_what_it_is_and_brings_an_example(op: str) -> None:
    assert OPS[op].doc
    assert set(OPS[op].args) <= set(OPS[op].example) <= {*OPS[op].args, *OPS[op].settings}
    assert set() < make_workload(op, OPS[op].example).variables <= set(RANGES)


@pytest.mark.parametrize("op", sorted(OPS))
def test_an_operator_is_the_workload_that_its_program_spells_out(op: str) -> None:
    workload = make_workload(op, op_args(op, **{OPS[op].args[0]: "16*T"}))
    spelled = workload_from_json(
        {
            "program": str(workload.program),
            "extents": {name: str(dim) for name, dim in workload.extents if name in workload.program.axes},
            "constant": list(workload.constants),
            "padded": {name: value if math.isfinite(value) else str(value) for name, value in workload.padding},
            "shapes": {name: [str(dim) for dim in shape] for name, shape in workload.shapes},
            "dtype": dict(workload.dtypes),
        }
    )
    assert spelled.key == workload.key
    assert spelled.canonical == workload.canonical


@pytest.mark.parametrize("op", sorted(OPS))
def test_an_operator_comes_back_from_its_json(op: str) -> None:
    workload = make_workload(op, op_args(op), "bfloat16", ["relu"])
    again = workload_from_json(workload.to_json())
    assert again == workload
    assert again.key == workload.key
    assert str(workload).startswith(f"{op}(")
    assert str(workload).endswith(" + relu")


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_arg_may_be_dynamic_that_a_call_can_tell(op: str) -> None:
    # The scale of attention follows from d, and no operand of a pool has its window's shape.
    constant = {
        "attention": ("d",),
        "ragged_attention": ("d",),
        "max_pool2d": ("r", "s"),
        "avg_pool2d": ("r", "s"),
    }.get(op, ())
    for name in OPS[op].args:
        if name in constant:
            with pytest.raises(InvalidInput, match="T"):
                make_workload(op, op_args(op, **{name: "T"}))
        else:
            assert make_workload(op, op_args(op, **{name: "T"})).variables == {"T"}, name


# -- convolutions -------------------------------------------------------------------------------------------------
def test_conv2d_is_written_as_one_would() -> None:
    conv = make_workload("conv2d", CONV)
    assert str(conv.program) == "out[b, o, p, q] = sum(c, r, s) x[b, c, p + r, q + s] * weight[o, c, r, s]"
    strided = make_workload("conv2d", {**CONV, "stride": 2, "pad": 1, "dilation": 3})
    assert "x[b, c, 2 * p + 3 * r - 1, 2 * q + 3 * s - 1]" in str(strided.program)


def test_only_what_is_read_outside_is_padded() -> None:
    assert make_workload("conv2d", CONV).padding == ()
    assert make_workload("conv2d", {**CONV, "h": "T"}).padding == ()
    assert make_workload("conv2d", {**CONV, "pad": 1}).padding == (("x", 0.0),)
    assert make_workload("max_pool2d", {**WINDOWED, "pad": 1}).padding == (("x", -math.inf),)
    assert make_workload("conv2d_transpose", CONV).padding == (("x", 0.0),)


def test_padding_of_integers_is_their_least_value() -> None:
    assert make_workload("max_pool2d", {**WINDOWED, "pad": 1}, "int8").padding == (("x", -128.0),)
    assert make_workload("max_pool2d", {**WINDOWED, "pad": 1}, "uint8").padding == (("x", 0.0),)


@pytest.mark.parametrize("op", ["conv2d", "conv2d_transpose"])
def test_nhwc_moves_the_channels_of_x_and_out_only(op: str) -> None:
    args = {**CONV, "stride": 2, "pad": 1, "groups": 2}
    nchw, nhwc = make_workload(op, args), make_workload(op, {**args, "layout": "nhwc"})
    for moved in (0, 2):
        (name, (b, c, h, w)), (same, shape) = operands(nchw)[moved], operands(nhwc)[moved]
        assert (same, shape) == (name, (b, h, w, c))
    assert operands(nchw)[1] == operands(nhwc)[1]
    assert nchw.key != nhwc.key


def test_groups_of_one_channel_are_depthwise() -> None:
    grouped = make_workload("conv2d", {**CONV, "o": 4, "groups": 4})
    assert dict(operands(grouped))["weight*"] == (4, 1, 3, 2)
    assert "x[b, c + o, p + r, q + s]" in str(grouped.program)


def test_a_window_that_just_does_not_fit_gives_an_empty_output() -> None:
    assert dict(operands(make_workload("conv2d", {**CONV, "h": 2})))["out"] == (2, 6, 0, 7)


def test_names_for_kinds_of_convolution_are_conv2d() -> None:
    args = {**CONV, "groups": 2, "dilation": 2}
    assert make_workload("group_conv2d", args).key == make_workload("conv2d", args).key
    assert make_workload("dilated_conv2d", args).key == make_workload("conv2d", args).key


def test_a_transposed_convolution_reads_only_where_a_step_hits() -> None:
    single = make_workload("conv2d_transpose", CONV)
    assert "where" not in str(single.program)
    strided = str(make_workload("conv2d_transpose", {**CONV, "stride": 2, "pad": 1}).program)
    assert "where(((p + 1 - r) % 2 == 0) & ((q + 1 - s) % 2 == 0), " in strided
    assert "x[b, c, (p + 1 - r) // 2, (q + 1 - s) // 2]" in strided
    grouped = str(make_workload("conv2d_transpose", {**CONV, "groups": 2}).program)
    assert "weight[2 * (o // 3) + c, o % 3, r, s]" in grouped.replace("c + 2 * (o // 3)", "2 * (o // 3) + c")


@pytest.mark.parametrize(("stride", "pad", "dilation"), list(itertools.product([1, 2, 3], [0, 1, 2], [1, 2])))
def test_a_transposed_convolution_undoes_the_sizes_of_a_convolution(stride: int, pad: int, dilation: int) -> None:
    args = {"b": 1, "c": 2, "w": 13, "o": 2, "s": 3, "stride": stride, "pad": pad, "dilation": dilation}
    narrow = operands(make_workload("conv1d", args))[-1][1][-1]
    wide = operands(make_workload("conv1d_transpose", {**args, "w": narrow}))[-1][1][-1]
    assert 13 - stride < wide <= 13


@pytest.mark.parametrize("op", ["conv1d", "conv2d", "conv2d_transpose"])
def test_there_are_as_many_groups_as_channels_where_these_are_many(op: str) -> None:
    args = op_args(op) | {"c": 4096, "o": 4096, "groups": 4096}
    assert make_workload(op, args).outputs[0].dims[1].constant == 4096


def test_a_dynamic_plane_keeps_its_symbols() -> None:
    conv = make_workload("conv2d", {**CONV, "h": "H", "w": "W", "r": 3, "s": 3, "pad": 1})
    dims = conv.dims({"H": 5, "W": 6})
    assert [tensor.shape(dims) for tensor in conv.operands] == [(2, 4, 5, 6), (6, 4, 3, 3), (2, 6, 5, 6)]
    assert len(conv.symbols) == 2  # out is as large as x
    halved = make_workload("conv2d", {**CONV, "h": "H", "w": "W", "r": 3, "s": 3, "pad": 1, "stride": 2})
    assert len(halved.symbols) == 4
    assert halved.outputs[0].shape(halved.dims({"H": 5, "W": 6})) == (2, 6, 3, 3)


# -- others -------------------------------------------------------------------------------------------------------
def test_causal_attention_hides_the_later_keys() -> None:
    causal = make_workload("attention", TABLE["attention"][0] | {"causal": True, "scale": 0.5})
    assert "where(j <= i + (extent(j) - extent(i)), 0.5 * dots[b, h, i, j], -inf)" in str(causal.program)


@pytest.mark.parametrize(
    ("settings", "scores"),
    [
        ({"window": 7, "causal": True}, "where((j <= {own}) & (j > {own} - 7), 0.5 * dots[b, h, i, j], -inf)"),
        ({"window": 7}, "where((j > {own} - 7) & (j < {own} + 7), 0.5 * dots[b, h, i, j], -inf)"),
        ({"softcap": 30}, "30.0 * tanh(0.5 * dots[b, h, i, j] / 30.0)"),
    ],
)
def test_windows_and_caps_are_parts_of_the_scores(settings: dict[str, Any], scores: str) -> None:
    of = make_workload("attention", TABLE["attention"][0] | {"scale": 0.5} | settings)
    assert scores.replace("{own}", "i + (extent(j) - extent(i))") in str(of.program)


def test_heads_may_share_keys() -> None:
    shared = make_workload("attention", TABLE["attention"][0] | {"h": 6, "kv_heads": 2})
    assert operands(shared) == [("q", (2, 6, 4, 6)), ("k", (2, 2, 5, 6)), ("v", (2, 2, 5, 6)), ("out", (2, 6, 4, 6))]
    same = make_workload("attention", TABLE["attention"][0] | {"kv_heads": 3})
    assert same.key == make_workload("attention", TABLE["attention"][0]).key


def ragged_by_hand(inputs: Sequence[Any], causal: bool) -> Any:
    """Sequence by sequence; other rows are 0."""
    q, k, v, at, of = inputs
    out = np.zeros(q.shape)
    for s in range(len(at) - 1):
        rows, keys = slice(at[s], at[s + 1]), slice(of[s], of[s + 1])
        scores = np.einsum("ihd,jhd->hij", q[rows], k[keys], dtype=np.float64) / math.sqrt(q.shape[-1])
        if causal:
            i, j = np.ogrid[: scores.shape[1], : scores.shape[2]]
            scores[:, j - scores.shape[2] > i - scores.shape[1]] = -np.inf
        with np.errstate(all="ignore"):
            e = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e9))
            mixed = np.einsum("hij,jhd->ihd", e, v[keys]) / e.sum(axis=-1).T[..., None]
        out[rows] = np.nan_to_num(mixed, nan=0.0)
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys"), [([0, 6, 6, 11, 20], [0, 9, 12, 12, 25]), ([0, 20], [0, 25]), ([2, 5, 17], [1, 1, 25])]
)
def test_sequences_of_a_ragged_batch_see_their_own_keys(causal: bool, rows: list[int], keys: list[int]) -> None:
    args = {"b": len(rows) - 1, "h": 2, "i": 20, "j": 25, "d": 4, "causal": causal}
    workload = make_workload("ragged_attention", args)
    inputs = [*random_inputs(workload, {})[:3], np.array(rows, np.int32), np.array(keys, np.int32)]
    np.testing.assert_allclose(compute(workload, inputs, {})[0], ragged_by_hand(inputs, causal), atol=1e-6)


def test_eps_is_part_of_the_program() -> None:
    assert "1e-05" in str(make_workload("rms_norm", {"m": 1, "n": 2}).program)
    assert "1e-12" in str(make_workload("layer_norm", {"m": 1, "n": 2, "eps": 1e-12}).program)
    assert "0.0)" in str(make_workload("rms_norm", {"m": 1, "n": 2, "eps": 0}).program)


def test_bfloat16_means_in_and_out_with_wider_sums() -> None:
    workload = make_workload("layer_norm", {"m": 5, "n": 7}, "bfloat16")
    assert {tensor.dtype for tensor in workload.operands} == {"bfloat16"}
    assert {workload.tensors[name].dtype for name in workload.program.intermediates} == {"float32"}


@pytest.mark.parametrize(
    ("op", "change", "field", "problem", "remedy"),
    [
        ("conv2d", {"stride": 0}, "args.stride", "0 is not allowed", "an integer from 1"),
        ("conv2d", {"stride": True}, "args.stride", "True is not allowed", "an integer"),
        ("conv2d", {"stride": "2"}, "args.stride", "'2' is not allowed", "an integer"),
        ("conv2d", {"stride": [2, 2]}, "args.stride", "[2, 2] is not allowed", "an integer"),
        ("conv2d", {"pad": -1}, "args.pad", "-1 is not allowed", "from 0 to 1024"),
        ("conv2d", {"layout": "chwn"}, "args.layout", "'chwn' is not allowed", "nchw or nhwc"),
        ("conv2d", {"layout": ["nchw"]}, "args.layout", "is not allowed", "nchw or nhwc"),
        ("conv2d", {"groups": 2**20 + 1}, "args.groups", "1048577 is not allowed", "from 1 to 1048576"),
        ("conv2d", {"groups": 3}, "args.groups", "3 groups do not divide c=4 and o=6", "multiples of groups"),
        ("conv2d", {"groups": 2, "c": "C"}, "args.groups", "c=C", "constants"),
        ("conv2d_transpose", {"groups": 4}, "args.groups", "4 groups do not divide", "multiples"),
        ("conv2d", {"h": 1}, "args", "the extent of p is -1", "0 or more"),
        ("conv2d", {"h": 2**31 - 1, "pad": 3}, "args", "too large", "at most"),
        ("conv2d", {"z": 1}, "args", "conv2d got b, c", "may have: stride, pad"),
        ("softmax", {"n": -3}, "args.n", "the extent of n is -3", "0 or more"),
        ("rms_norm", {"eps": -1}, "args.eps", "-1 is not allowed", "0 or more"),
        ("rms_norm", {"eps": math.nan}, "args.eps", "nan is not allowed", "0 or more"),
        ("rms_norm", {"eps": math.inf}, "args.eps", "inf is not allowed", "0 or more"),
        ("attention", {"causal": 1}, "args.causal", "1 is not allowed", "true or false"),
        ("attention", {"scale": "x"}, "args.scale", "'x' is not allowed", "a number"),
        ("attention", {"d": "D"}, "args.scale", "d=D is dynamic", "give scale"),
        ("attention", {"window": 0}, "args.window", "0 is not allowed", "an integer from 1"),
        ("attention", {"softcap": 0}, "args.softcap", "0 is not allowed", "a number above 0"),
        ("attention", {"h": 3, "kv_heads": 2}, "args.kv_heads", "2 heads of keys beside 3 of queries", "a multiple of"),
        ("ragged_attention", {"h": "H", "kv_heads": 2}, "args.kv_heads", "beside H of queries", "constant"),
        ("dense", {"m": "T//0"}, "args.m", "divides by 0", "positive constant"),
        ("dense", {"m": [1] * 5000}, "args.m", "is not a dim", "16*T"),
    ],
)
def test_wrong_args_are_refused(op: str, change: dict[str, Any], field: str, problem: str, remedy: str) -> None:
    args = op_args(op) | {"r": 3, "s": 2} if op.startswith("conv") else op_args(op)
    with pytest.raises(InvalidInput) as caught:
        make_workload(op, args | change)
    assert caught.value.field == field
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy
    assert len(str(caught.value)) < 500


def test_operators_are_found_by_name() -> None:
    assert op_named("dense") is OPS["dense"]
    assert op_named(OPS["dense"]) is OPS["dense"]
    assert str(OPS["dense"]) == "dense"
    others: list[object] = ["unheard of", None, ["dense"], {}, 3, "d" * 5000]
    for name in others:
        with pytest.raises(InvalidInput, match=r"op: .* is not in the catalogue \(one of: attention, avg_pool2d"):
            op_named(name)


@pytest.mark.parametrize("name", sorted(EPILOGUES))
def test_an_epilogue_says_what_it_does(name: str) -> None:
    assert EPILOGUES[name].doc


def test_no_synonym_is_the_name_of_another_operator() -> None:
    assert {word for op in OPS.values() for word in op.synonyms}.isdisjoint(OPS)


def test_an_operator_that_python_knows_by_another_name_is_suggested() -> None:
    with pytest.raises(AttributeError, match=r"no operator 'linear' \(did you mean dense\?\)"):
        _ = sw.ops.linear
