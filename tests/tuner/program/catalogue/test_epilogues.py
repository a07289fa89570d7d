"""Epilogues: stages appended to programs of every rank."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.program_strategies import op_args
from tuner.errors import InvalidInput
from tuner.program.catalogue import EPILOGUES, OPS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.workload import Workload

ARGS = {"m": "16*T", "n": 2304, "k": 768}


def names(workload: Workload) -> list[str]:
    return [tensor.name for tensor in workload.operands]


def build(program: str, extents: dict[str, Any], epilogue: Any, **fields: Any) -> Workload:
    return workload_from_json({"program": program, "extents": extents, "epilogue": epilogue, **fields})


def test_stages_are_appended_and_the_last_one_keeps_the_outputs_name() -> None:
    workload = make_workload("dense", ARGS, epilogue=["bias", "relu", "add"])
    assert str(workload.program).split("\n") == [
        "out_0[m, n] = sum(k) x[m, k] * w[n, k]",
        "out_1[m, n] = out_0[m, n] + bias[n]",
        "out_2[m, n] = where(out_1[m, n] < 0, 0, out_1[m, n])",
        "out[m, n] = out_2[m, n] + residual[m, n]",
    ]
    assert names(workload) == ["x", "w", "bias", "residual", "out"]
    assert str(workload) == "dense(m=16*T, n=2304, k=768) + bias + relu + add"


@pytest.mark.parametrize(
    ("op", "channel"),
    [
        ("dense", 1),
        ("gemv", 0),
        ("batch_matmul_nt", 2),
        ("conv1d", 1),
        ("conv2d", 1),
        ("conv3d", 1),
        ("conv2d_transpose", 1),
        ("depthwise_conv2d", 1),
        ("max_pool2d", 1),
        ("attention", 3),
        ("reduce_sum", 0),
    ],
)
def test_bias_runs_over_the_channel_axis(op: str, channel: int) -> None:
    workload = make_workload(op, op_args(op), epilogue=["bias", "add"])
    out = workload.outputs[0].shape({})
    assert workload.tensors["bias"].shape({}) == (out[channel],)
    assert workload.tensors["residual"].shape({}) == out


def test_bias_follows_the_layout() -> None:
    nhwc = make_workload("conv2d", op_args("conv2d", layout="nhwc"), epilogue=["bias"])
    assert nhwc.tensors["bias"].shape({}) == (6,)
    assert nhwc.outputs[0].shape({})[-1] == 6


@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.parametrize("name", sorted(EPILOGUES))
def test_every_operator_takes_every_epilogue(op: str, name: str) -> None:
    plain, fused = make_workload(op, op_args(op)), make_workload(op, op_args(op), epilogue=[name])
    assert fused.program.outputs == plain.program.outputs
    assert fused.outputs == plain.outputs
    operand = [EPILOGUES[name].operand] if EPILOGUES[name].operand else []
    assert names(fused) == [*names(plain)[:-1], *operand, names(plain)[-1]]
    assert fused.key != plain.key


@pytest.mark.parametrize("rank", range(5))
def test_programs_of_every_rank_take_an_epilogue(rank: int) -> None:
    axes = ", ".join("abcd"[:rank])
    extents = {axis: 2 + n for n, axis in enumerate("abcd"[:rank])}
    workload = build(f"out[{axes}] = sum(k) x[{', '.join([*'abcd'[:rank], 'k'])}]", {**extents, "k": 9}, ["gelu"])
    assert workload.outputs[0].shape({}) == tuple(extents.values())
    if rank:
        with_bias = build(f"out[{axes}] = y[{axes}]", extents, ["bias"])
        assert with_bias.tensors["bias"].shape({}) == (1 + rank,)
    else:
        with pytest.raises(InvalidInput, match="the output out has no axes"):
            build("out[] = sum(k) x[k]", {"k": 9}, ["bias"])


def test_names_of_the_program_are_left_alone() -> None:
    workload = build("out_0[m] = x[m]; out[m] = out_0[m] * 2", {"m": 4}, ["relu", "relu"])
    assert workload.program.tensors[-1] == "out"
    assert len(set(workload.program.tensors)) == 5
    long = build(f"{'t' * 40}[m] = x[m]", {"m": 4}, ["relu"])
    assert long.outputs[0].name == "t" * 40


def test_integers_stay_integers() -> None:
    workload = make_workload(
        "dense", ARGS, {"x": "int8", "w": "int8", "out": "int32", "bias": "int32"}, ["bias", "relu"]
    )
    assert {workload.tensors[name].dtype for name in workload.program.intermediates} == {"int32"}


def test_a_dtype_of_the_operand_may_be_given() -> None:
    workload = make_workload("dense", ARGS, {"x": "bfloat16", "bias": "float32"}, ["bias"])
    assert workload.tensors["bias"].dtype == "float32"


def test_errors_of_a_fused_program_point_into_the_program_with_its_stages() -> None:
    with pytest.raises(InvalidInput) as caught:
        build("out[i] =   x[i]   +   x[i - 1]", {"i": 4}, ["relu"])
    assert "line 1, column 23" in caught.value.problem
    assert "out_0[i] = x[i] + x[i - 1]" in caught.value.problem


@pytest.mark.parametrize(
    ("program", "epilogue", "problem"),
    [
        ("out[m] = x[m]", "relu", "'relu' is not a list of names"),
        ("out[m] = x[m]", [1], "[1] is not a list of names"),
        ("out[m] = x[m]", {"relu": 1}, "is not a list of names"),
        ("out[m] = x[m]", ["swish"], "'swish' is not known"),
        ("out[m] = x[m]", ["s" * 5000], "is not known"),
        ("out[m] = x[m]", ["relu"] * 9, "9 entries"),
        ("out[m] = x[m]", ["bias", "bias"], "bias stands twice"),
        ("out[m] = x[m] * bias[m]", ["bias"], "the program has a tensor bias of its own"),
        ("out[m] = x[m]; two[m] = x[m]", ["relu"], "the program has 2 outputs"),
        ("\n".join(f"t{n}[m] = x[m]" + (f" + t{n - 1}[m]" if n else "") for n in range(32)), ["relu"], "32 stages"),
    ],
)
def test_wrong_epilogues_are_refused(program: str, epilogue: Any, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        build(program, {"m": 4}, epilogue)
    assert caught.value.field == "epilogue"
    assert problem in caught.value.problem
    assert caught.value.remedy
    assert len(str(caught.value)) < 400


def test_an_output_that_is_read_takes_no_epilogue() -> None:
    with pytest.raises(InvalidInput, match="the program has 2 outputs"):
        build("a[m] = x[m]; b[m] = a[m]", {"m": 4}, ["relu"], outputs=["a", "b"])
