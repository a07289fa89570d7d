"""Workloads from job files: every field checked, every refusal an InvalidInput that is told quickly and shortly."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuner.program_strategies import PROGRAMS, TAME_PROGRAMS, op_args
from tuner.errors import InvalidInput
from tuner.program.catalogue import OPS
from tuner.program.job.build import OP_FIELDS, PROGRAM_FIELDS, ProgramOp, make_workload, workload_from_json
from tuner.program.language.instance import program_key
from tuner.program.language.shape_vars import ShapeVar

CAPSULE = {
    "program": "c[b, k, p, q, i, j] = sum(h, r, s, m) a[b, h, 2*p + r, 2*q + s, i, m] * w[k, h, r, s, m, j]",
    "extents": {"b": "B", "k": 32, "p": 6, "q": 6, "i": 4, "j": 4, "h": 8, "r": 3, "s": 3, "m": 4},
    "constant": ["w"],
    "padded": {},
    "outputs": ["c"],
    "shapes": {},
    "dtype": "float32",
}
GATHER = {"program": "out[i] = x[rows[i]] + y[i]", "extents": {"i": "T"}, "shapes": {"x": [9]}}


def refused(data: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        workload_from_json(data)
    return caught.value


def test_the_contracts_example_is_a_workload() -> None:
    workload = workload_from_json(CAPSULE)
    assert [tensor.shape(workload.dims({"B": 3})) for tensor in workload.operands] == [
        (3, 8, 13, 13, 4, 4),
        (32, 8, 3, 3, 4, 4),
        (3, 32, 6, 6, 4, 4),
    ]
    assert [tensor.name for tensor in workload.operands if tensor.constant] == ["w"]
    assert workload.variables == {"B"}


@given(PROGRAMS | TAME_PROGRAMS)
def test_a_program_comes_back_from_its_json(data: dict[str, Any]) -> None:
    workload = workload_from_json(data)
    text = json.dumps(workload.to_json(), allow_nan=False)
    again = workload_from_json(json.loads(text))
    assert again == workload
    assert again.to_json() == workload.to_json()
    assert again.key == workload.key


def test_a_program_in_python_is_the_same_workload() -> None:
    t = ShapeVar("T", range(1, 9))
    op = ProgramOp(
        "out[i] = x[rows[i]] + y[i - 1]",
        constant=("x",),
        padded=(("y", -math.inf),),
        outputs=("out",),
        shapes=(("x", (9,)), ("y", (2 * t,))),
        domain=(("y", (0.0, 1.0)),),
    )
    workload = make_workload(op, {"i": 2 * t}, {"x": "float16"}, ("relu",))
    again = workload_from_json(json.loads(json.dumps(workload.to_json(), allow_nan=False)))
    assert again == workload
    assert dict(workload.padding) == {"y": -math.inf}
    assert dict(workload.domain) == {"y": (0.0, 1.0)}
    assert workload.to_json()["extents"] == {"i": "2*T"}
    assert str(op) == "program"


def test_padding_is_a_number_or_an_infinity() -> None:
    base = {"program": "out[i] = x[i - 1]", "extents": {"i": 4}, "shapes": {"x": [4]}}
    for given_value, value in ((0, 0.0), (1.5, 1.5), ("-inf", -math.inf), ("inf", math.inf), (-3, -3.0)):
        assert dict(workload_from_json({**base, "padded": {"x": given_value}}).padding) == {"x": value}
    integers = {"int8": (-128, 127), "uint8": (0, 255), "int64": (-(2**63), 2**63 - 1024), "bool": (0, 1)}
    for dtype, (least, most) in integers.items():
        for text, value in (("-inf", least), ("inf", most)):
            workload = workload_from_json({**base, "padded": {"x": text}, "dtype": dtype})
            assert dict(workload.padding) == {"x": value}


@pytest.mark.parametrize(
    ("value", "dtype"), [(1.5, "int8"), (128, "int8"), (-1, "uint8"), (2, "bool"), (2**63, "int64")]
)
def test_padding_is_a_value_of_the_tensors_dtype(value: float, dtype: str) -> None:
    data = {"program": "out[i] = x[i - 1]", "extents": {"i": 4}, "shapes": {"x": [4]}, "padded": {"x": value}}
    error = refused({**data, "dtype": dtype})
    assert error.field == "padded.x"
    assert f"is no value of {dtype}" in error.problem


ARGS = {"m": "16*T", "n": 8, "k": 8}
LONG = "z" * 5000
WRONG: list[tuple[dict[Any, Any], str, str, str]] = [
    ({"extents": None}, "extents.i", "is missing", "the axis i"),
    ({"extents": []}, "extents", "[] is not a mapping", "{m: 16*T"),
    ({"extents": "T"}, "extents", "'T' is not a mapping", "{m: 16*T"),
    ({"extents": {1: 2}}, "extents", "1 is not a name", "{m: 16*T"),
    ({"extents": {"i": 3, "z": 1}}, "extents.z", "no such axis", "axes: i"),
    ({"extents": {"i": 3, LONG: 1}}, "extents", "no such axis", "axes: i"),
    ({"extents": {f"a{n}": 1 for n in range(500)}}, "extents", "500 extents", "at most"),
    ({"extents": {"i": None}}, "extents.i", "None is not a dim", "16*T"),
    ({"extents": {"i": -1}}, "extents.i", "the extent of i is -1", "0 or more"),
    ({"extents": {"i": 2**40}}, "extents.i", "too large", "at most"),
    ({"extents": {"i": "T//0"}}, "extents.i", "divides by 0", "positive"),
    ({"extents": {"i": "(A+B)*(C+D)*(E+F)*(G+H)*(I+J)*(K+L)*(M+N)"}}, "extents.i", "characters long", "at most"),
    ({"constant": "x"}, "constant", "'x' is not a list", "any of: x"),
    ({"constant": ["x", "x"]}, "constant.x", "given twice", "once"),
    ({"constant": ["out"]}, "constant.out", "is not an input", "inputs: x, rows, y"),
    ({"constant": [["x"]]}, "constant", "is not an input", "inputs: x"),
    ({"constant": ["rows"]}, "constant.rows", "used as an index", "leave it out"),
    ({"padded": ["x"]}, "padded", "is not a mapping", "{x: 0}"),
    ({"padded": {"z": 0}}, "padded.z", "is not a tensor", "tensors: out, x"),
    ({"padded": {"x": "0"}}, "padded.x", "'0' is not a number", "-inf"),
    ({"padded": {"x": None}}, "padded.x", "None is not a number", "-inf"),
    ({"padded": {"x": True}}, "padded.x", "True is not a number", "-inf"),
    ({"padded": {"x": math.nan}}, "padded.x", "nan is not a number", "-inf"),
    ({"padded": {"x": 10**400}}, "padded.x", "is not a number", "-inf"),
    ({"shapes": []}, "shapes", "is not a mapping", "{x: [b"),
    ({"shapes": {"out": [1]}}, "shapes.out", "is not an input", "inputs: x"),
    ({"shapes": {"x": 9}}, "shapes.x", "9 is not a list", "as in"),
    ({"shapes": {"x": "9"}}, "shapes.x", "'9' is not a list", "as in"),
    ({"shapes": {"x": [1, 2]}}, "shapes.x", "2 dims are given", "one size"),
    ({"shapes": {"x": [None]}}, "shapes.x", "None is not a dim", "16*T"),
    ({"shapes": {"x": [1] * 5000}}, "shapes.x", "5000 dims are given", "one size"),
    ({"domain": {"x": 1}}, "domain.x", "1 is not an interval", "[0, 1]"),
    ({"domain": {"x": [1, 0]}}, "domain.x", "[1, 0] is not an interval", "lesser end"),
    ({"domain": {"x": [0, math.inf]}}, "domain.x", "is not an interval", "finite"),
    ({"domain": {"x": [0, math.nan]}}, "domain.x", "nan is not a number", "[0, 1]"),
    ({"domain": {"x": ["a", "b"]}}, "domain.x", "'a' is not a number", "[0, 1]"),
    ({"domain": {"z": [0, 1]}}, "domain.z", "is not an input", "inputs: x"),
    ({"outputs": "out"}, "outputs", "is not a list", "any of: out"),
    ({"dtype": None}, "dtype", "None is not a dtype", "float32"),
    ({"dtype": {"x": "f4"}}, "dtype.x", "'f4' is not a dtype", "float32"),
    ({"epilogue": 3}, "epilogue", "3 is not a list", "any of: bias"),
    ({"program": None}, "program", "NoneType is not text", "out[m]"),
    ({"program": "out[i] = "}, "program", "line 1, column 10", "a number"),
    ({"op": "dense"}, "program", "op and program are both given", "one of them"),
    ({"args": {}}, "args", "is not a field", "fields: program, extents"),
    ({LONG: 1}, "'zzz", "is not a field", "fields: program"),
    ({3: 1}, "3", "is not a field", "fields: program"),
]


@pytest.mark.parametrize(("change", "field", "problem", "remedy"), WRONG)
def test_a_wrong_field_is_named(change: dict[Any, Any], field: str, problem: str, remedy: str) -> None:
    error = refused({**GATHER, **change})
    assert error.field.startswith(field) if field.startswith("'") else error.field == field
    assert problem in error.problem
    assert remedy in error.remedy
    assert len(str(error)) < 600


def test_an_extent_that_no_operand_tells_is_refused() -> None:
    data = {"program": "a[i, j] = x[i]; out[i] = sum(j) a[i, j]", "extents": {"i": 3, "j": "T"}}
    error = refused(data)
    assert "cannot be read from any tensor's shape" in error.problem


@pytest.mark.parametrize("data", [None, 3, "dense", [], True, b"x"])
def test_a_workload_is_a_mapping(data: object) -> None:
    assert "is not a mapping" in refused(data).problem


@pytest.mark.parametrize(
    ("change", "field", "problem", "remedy"),
    [
        ({"op": "convolve"}, "op", "'convolve' is not in the catalogue", "one of: attention"),
        ({"op": None}, "op", "not in the catalogue", "one of"),
        ({"op": ["dense"]}, "op", "not in the catalogue", "one of"),
        ({"op": "batch_matmul_nt"}, "args", "batch_matmul_nt got m, n, k", "needs: b, m, n, k"),
        ({"args": ARGS | {"z": 3}}, "args", "dense got m, n, k, z", "needs: m, n, k"),
        ({"args": ARGS | {"m": "16*T.__class__"}}, "args.m", "not an integer expression", "16*T"),
        ({"args": ARGS | {"k": True}}, "args.k", "True is not a dim", "16*T"),
        ({"args": ARGS | {"m": "(Ab+Bc)*(Cd+De)*(Ef+Fg)*(Gh+Hi)*(Ij+Jk)"}}, "args.m", "characters long", "at most 200"),
        ({"args": None}, "args", "dense got None", "needs: m, n, k"),
        ({"args": [LONG]}, "args", "dense got ['zzz", "needs: m, n, k"),
        ({"args": {}}, "args", "dense got nothing", "needs: m, n, k"),
        ({"args": {1: 2}}, "args", "dense got 1", "needs: m, n, k"),
        ({"args": dict.fromkeys(map(str, range(5000)))}, "args", "dense got 0, 1, 2", "needs: m, n, k"),
        ({"dtype": "float8"}, "dtype", "'float8' is not a dtype", "float32"),
        ({"dtype": {"y": "float32"}}, "dtype", "'y' is not a tensor", "tensors: out, x, w"),
        ({"layout": "nk"}, "layout", "is not a field", "fields: op, args"),
        ({"program": "out[m] = x[m]"}, "program", "both given", "one of them"),
    ],
)
def test_a_wrong_field_of_an_operator_is_named(change: dict[str, Any], field: str, problem: str, remedy: str) -> None:
    error = refused({"op": "dense", "args": ARGS, **change})
    assert error.field == field
    assert problem in error.problem
    assert remedy in error.remedy
    assert len(str(error)) < 600


def test_a_workload_names_an_operator_or_a_program() -> None:
    assert refused({"args": {}}).field == "op"


def test_a_job_may_count_and_name_a_workload() -> None:
    assert workload_from_json({**GATHER, "count": 12, "name": "embedding"}) == workload_from_json(GATHER)


def test_a_program_that_prints_longer_than_allowed_is_refused() -> None:
    text = "out[m] = x[m]" + "".join(f"; o{n}[m] = x[m]" + "+1e15" * 29 for n in range(30))
    assert "canonical form" in refused({"program": text.replace(" ", ""), "extents": {"m": 3}}).problem


# -- anything at all ----------------------------------------------------------------------------------------------
DEEP: Any = [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]
NUMBERS = (0, -1, 3, 2**31, 2**70, 10**400, 1.5, math.nan, math.inf, -0.0)
TEXTS = ("", "T", "m", "x", "16*T", "-inf", "\x00", "\ud800", LONG, "(" * 150, "T//0", "*".join(["(A+B+C+D+E)"] * 12))
VALUES = st.sampled_from([None, True, *NUMBERS, *TEXTS]) | st.text(max_size=8)
NAMES = st.sampled_from(["x", "m", "T", "", LONG])
ANYTHING = st.recursive(
    VALUES | st.just(DEEP).map(copy.deepcopy),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
BASES: list[dict[str, Any]] = [
    *({"op": op, "args": op_args(op, **{OPS[op].args[0]: "T"}), "epilogue": ["bias"]} for op in sorted(OPS)),
    CAPSULE,
    GATHER,
]


@st.composite
def mangled(draw: st.DrawFn) -> Any:
    """A workload with a value, at any depth, put in the place of another one, or a field too many."""
    data: Any = copy.deepcopy(draw(st.sampled_from(BASES) | PROGRAMS))
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(_places(data)))
        parent[key] = draw(ANYTHING)
    if draw(st.booleans()):
        data[draw(st.sampled_from((*OP_FIELDS, *PROGRAM_FIELDS)))] = draw(ANYTHING)
    return data


def _places(data: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value."""
    items = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    return [(data, key) for key, _ in items] + [place for _, value in items for place in _places(value)]


@given(mangled() | ANYTHING)
def test_any_json_is_a_workload_or_refused(data: Any) -> None:
    try:
        workload = workload_from_json(data)
    except InvalidInput as error:
        assert error.problem
        assert len(str(error)) < 3000
    else:
        assert json.dumps(workload.to_json())
        assert workload_from_json(workload.to_json()).key == workload.key


def test_products_of_float32_may_be_in_tf32() -> None:
    """It is part of what is computed: a workload with it is another one, and its instances are."""
    dense = {"op": "dense", "args": {"m": "16*T", "n": 8, "k": 4}, "epilogue": ["bias"]}
    plain, coarse = workload_from_json(dense), workload_from_json({**dense, "tf32": True})
    assert coarse.tf32 and not plain.tf32 and not workload_from_json({**dense, "tf32": False}).tf32
    assert coarse.key != plain.key
    assert str(coarse) == f"{plain}, tf32"
    for again in (workload_from_json(coarse.to_json()), workload_from_json(coarse.canonical)):
        assert again.tf32 and again.key == coarse.key
    assert "tf32" not in plain.canonical
    assert program_key(coarse.canonical) != program_key(plain.canonical)


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "softmax", "args": {"m": "T", "n": 64}},
        {"op": "rms_norm", "args": {"m": "T", "n": 64}},
        {"op": "dense", "args": {"m": "T", "n": 8, "k": 4}, "dtype": "float16"},
        {"op": "attention", "args": {"b": 1, "h": 2, "i": "T", "j": "T", "d": 16}, "dtype": "bfloat16"},
    ],
)
def test_tf32_is_refused_where_no_product_is_of_float32(fields: dict[str, Any]) -> None:
    error = refused({**fields, "tf32": True})
    assert error.field == "tf32"
    assert "product of float32" in error.problem
    assert refused({**fields, "tf32": "yes"}).problem == "'yes' is neither true nor false"
