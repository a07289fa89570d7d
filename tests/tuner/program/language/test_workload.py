"""Workloads: symbols, sizes, work, and an identity that depends on what is computed alone."""

from __future__ import annotations

import json
import math
import pickle
import re
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.program_strategies import PROGRAMS, SHAPES, WORKLOADS
from tuner.program.job.build import make_workload, workload_from_json
from tuner.program.language.program import Program
from tuner.program.language.workload import Workload

ARGS = {"m": "16*T", "n": 2304, "k": 768}
DENSE = "out[m, n] = sum(k) x[m, k] * w[n, k]"


def build(program: str, extents: dict[str, Any], **fields: Any) -> Workload:
    return workload_from_json({"program": program, "extents": extents, **fields})


def test_a_hash_is_kept_and_stays_in_its_process() -> None:
    workload = make_workload("dense", ARGS)
    again = pickle.loads(pickle.dumps(workload)) if hash(workload) else workload
    assert "_hash" in vars(workload)
    assert "_hash" not in vars(again)
    assert (again, hash(again)) == (workload, hash(workload))
    assert len({workload, again, make_workload("dense", {**ARGS, "n": 3})}) == 2


# -- symbols and sizes --------------------------------------------------------------------------------------------
def test_a_workload_works_on_symbols() -> None:
    workload = make_workload("dense", ARGS, epilogue=["bias", "gelu", "add"])
    assert workload.variables == {"T"}
    assert workload.symbols == ("m",)
    assert workload.dims({"T": 3}) == {"m": 48}
    assert workload.axis_sizes({"m": 5}) == {"m": 5, "n": 2304, "k": 768}
    assert [operand.name for operand in workload.operands] == ["x", "w", "bias", "residual", "out"]
    assert [operand.shape({"m": 5}) for operand in workload.operands] == [
        (5, 768),
        (2304, 768),
        (2304,),
        (5, 2304),
        (5, 2304),
    ]
    assert str(workload) == "dense(m=16*T, n=2304, k=768) + bias + gelu + add"
    assert repr(workload) == f"<Workload {workload}>"


def test_equal_extents_are_one_symbol() -> None:
    square = make_workload("matmul", {"m": "S", "n": "S", "k": "S"})
    assert square.symbols == ("m",)
    assert square.axis_sizes({"m": 7}) == {"m": 7, "n": 7, "k": 7}
    mixed = make_workload("matmul", {"m": "T", "n": "2*T", "k": "T+T-T"})
    assert mixed.symbols == ("m", "n")
    assert mixed.dims({"T": 4}) == {"m": 4, "n": 8}


def test_an_axis_that_is_summed_over_may_be_dynamic() -> None:
    context = make_workload("batch_matmul_nn", {"b": 192, "m": "T", "n": 64, "k": "T"})
    assert context.symbols == ("n",)  # the second axis of the program: m
    assert context.dims({"T": 5}) == {"n": 5}


def test_sizes_that_are_no_axis_are_symbols_of_their_own() -> None:
    workload = build("out[t] = table[ids[t]]", {"t": "T"}, shapes={"table": ["V"]})
    assert workload.symbols == ("m", "d1")
    assert workload.dims({"T": 3, "V": 50}) == {"m": 3, "d1": 50}
    assert workload.tensors["table"].shape({"m": 3, "d1": 50}) == (50,)
    assert build("out[t] = table[ids[t]]", {"t": "T"}, shapes={"table": ["T"]}).symbols == ("m",)


def test_work_is_counted_by_stages() -> None:
    dense = make_workload("dense", {"m": "T", "n": 5, "k": 7})
    assert dense.flops({"m": 3}) == 2 * 3 * 5 * 7
    assert dense.points({"m": 3}) == 3 * 5 * 7
    assert dense.bytes_moved({"m": 3}) == 4 * (3 * 7 + 5 * 7 + 3 * 5)
    assert dense.flops({"m": 0}) == dense.points({"m": 0}) == 0
    softmax = make_workload("softmax", {"m": 2, "n": 3}, "bfloat16")
    assert softmax.flops({}) == 6 * 1 + 6 * 2 + 6 * 1 + 6 * 1
    assert softmax.bytes_moved({}) == 2 * 12


def test_the_reference_takes_longer_for_what_is_no_matrix_product() -> None:
    dense = make_workload("dense", {"m": "T", "n": 5, "k": 7})
    assert dense.work({"m": 3}) == dense.flops({"m": 3})
    texts = ("out[m] = x[m] + y[m]", "out[m] = exp(x[m])", "out[m] = erf(x[m]) + y[m]")
    add, exp, erf = (build(text, {"m": 8}).work({}) for text in texts)
    assert 8 < add < exp < erf


def test_indices_comparisons_selections_and_casts_are_no_work() -> None:
    body = "where(2*m - 1 < 3, cast(x[2*m + 1], float64), -x[m])"
    assert build(f"out[m] = {body}", {"m": 4}).flops({}) == 4 * 3  # 2*m, - 1, -x


@given(WORKLOADS, SHAPES)
def test_sizes_of_tensors_follow_from_symbols(workload: Workload, values: dict[str, int]) -> None:
    dims = workload.dims(values)
    assert set(dims) == set(workload.symbols)
    for tensor in workload.tensors.values():
        assert all(size >= 0 for size in tensor.shape(dims))
    assert workload.bytes_moved(dims) == sum(tensor.bytes(dims) for tensor in workload.operands)
    assert set(workload.axis_sizes(dims)) == set(workload.program.axes)


def test_reads_that_only_sizes_can_tell_are_consistent_or_not() -> None:
    workload = build("out[i, j] = x[i, j] * y[extent(i) - 1 - j]", {"i": "T", "j": "S"}, shapes={"y": ["T"]})
    assert workload.is_consistent(workload.dims({"T": 4, "S": 4}))
    assert not workload.is_consistent(workload.dims({"T": 3, "S": 4}))


# -- identity -----------------------------------------------------------------------------------------------------
def test_the_key_names_what_is_computed_and_nothing_else() -> None:
    workload = make_workload("dense", ARGS)
    assert re.fullmatch(r"wl-[0-9a-f]{16}", workload.key)
    others = [
        make_workload("matmul", ARGS),
        make_workload("dense", ARGS | {"n": 2305}),
        make_workload("dense", ARGS | {"n": "N"}),
        make_workload("dense", ARGS | {"n": "16*T"}),
        make_workload("dense", ARGS, "bfloat16"),
        make_workload("dense", ARGS, {"x": "bfloat16"}),
        make_workload("dense", ARGS, epilogue=["bias"]),
        make_workload("dense", ARGS, epilogue=["bias", "relu"]),
        make_workload("dense", ARGS, epilogue=["relu", "bias"]),
        build(DENSE, ARGS),
        build(DENSE, ARGS, constant=["w"], shapes={"w": [2304, 800]}),
    ]
    assert len({other.key for other in others} | {workload.key}) == len(others) + 1


@pytest.mark.parametrize("extent", ["16*T", "T*8*2", "16*S", "T", "T + 3", "T//2", "Rows"])
def test_expressions_of_an_extent_belong_to_the_search(extent: str) -> None:
    assert make_workload("dense", ARGS | {"m": extent}).key == make_workload("dense", ARGS).key


def test_an_operator_is_its_program() -> None:
    assert build(DENSE, ARGS, constant=["w"]).key == make_workload("dense", ARGS).key
    spelled = "y[a, b] = sum(c) left[a, c] * right[b, c]"
    extents = {"a": "T", "b": 2304, "c": 768}
    assert build(spelled, extents, constant=["right"]).key == make_workload("dense", ARGS).key


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": ["out"]},
        {"shapes": {"x": ["m", "k"]}},
        {"shapes": {"x": ["16*T", 768], "w": [2304, "k"]}},
        {"shapes": {"w": ["n", 768]}},
        {"padded": {"x": 0}},
        {"padded": {"w": "-inf", "out": 1}},
        {"domain": {"x": [0, 1]}},
        {"dtype": {"x": "float32"}},
        {"dtype": {"x": "float32", "w": "float32", "out": "float32"}},
        {"epilogue": []},
        {"epilogue": None},
        {"count": 3, "name": "qkv"},
    ],
)
def test_saying_what_follows_anyway_changes_nothing(fields: dict[str, Any]) -> None:
    assert build(DENSE, ARGS, constant=["w"], **fields).key == make_workload("dense", ARGS).key


def test_padding_that_is_read_is_part_of_it() -> None:
    def window(**fields: Any) -> Workload:
        return build("out[i] = sum(r) x[i + r - 1]", {"i": "T", "r": 3}, shapes={"x": ["T"]}, **fields)

    keys = {window(padded={"x": value}).key for value in (0, 0.0, 1, "-inf", -1)}
    assert len(keys) == 4


def test_the_order_of_constants_is_nothing() -> None:
    program, extents = "out[m] = x[m] * v[m] * w[m]", {"m": 8}
    assert build(program, extents, constant=["v", "w"]).key == build(program, extents, constant=["w", "v"]).key


@given(PROGRAMS)
def test_names_are_no_part_of_the_key(data: dict[str, Any]) -> None:
    workload = workload_from_json(data)
    program = Program.parse(data["program"])
    axes = {name: f"{name}_axis" for name in (*program.axes, *data["extents"])}
    tensors = {name: f"q{number}_{name[0]}" for number, name in enumerate(reversed(program.tensors))}

    def vars_renamed(dim: int | str) -> int | str:
        return re.sub(r"\b[TS]\b", lambda match: f"{match[0]}_size", dim) if isinstance(dim, str) else dim

    def dim_renamed(dim: int | str) -> int | str:
        return axes[dim] if dim in axes else vars_renamed(dim)

    other = workload_from_json(
        {
            "program": str(program.renamed(axes, tensors)),
            "extents": {axes[name]: vars_renamed(dim) for name, dim in data["extents"].items()},
            "shapes": {tensors[name]: list(map(dim_renamed, shape)) for name, shape in data["shapes"].items()},
            "padded": {tensors[name]: value for name, value in data["padded"].items()},
            "constant": [tensors[name] for name in data["constant"]],
            "dtype": {tensors[name]: dtype for name, dtype in workload.dtypes},
        }
    )
    assert other.key == workload.key
    assert other.canonical == workload.canonical


@given(WORKLOADS, SHAPES)
def test_the_canonical_form_is_a_workload_of_the_same_key_and_sizes(workload: Workload, values: dict[str, int]) -> None:
    canonical = workload_from_json(json.loads(json.dumps(workload.canonical, allow_nan=False)))
    assert canonical.canonical == workload.canonical
    assert canonical.key == workload.key
    assert canonical.symbols == workload.symbols
    assert canonical.variables == set(workload.symbols)
    dims = workload.dims(values)
    assert [t.shape(dims) for t in canonical.operands] == [t.shape(dims) for t in workload.operands]
    assert canonical.flops(dims) == workload.flops(dims)
    assert canonical.is_consistent(dims) == workload.is_consistent(dims)


def test_a_scaled_quotient_keeps_its_meaning_through_json() -> None:
    workload = make_workload("dense", ARGS | {"m": "16*(T//2)"})
    assert workload_from_json(workload.to_json()).dims({"T": 5}) == {"m": 32}


def test_infinite_padding_is_text_in_json() -> None:
    workload = build("out[i] = max(r) x[i + r - 1]", {"i": 4, "r": 3}, shapes={"x": [4]}, padded={"x": -math.inf})
    assert workload.canonical["padded"] == {"t1": "-inf"}
    assert workload.to_json()["padded"] == {"x": "-inf"}
