"""Values, shapes and names of ONNX files: what is known of them is what ONNX's evaluator computes, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import shapewright as sw
from shapewright.models import onnx_operators
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.onnx_cases import built, check, compared, reasons_of, values_of
from tests.shapewright.models.test_onnx_meanings import EXP, X, node
from tuner.errors import InvalidInput
from tuner.program.language.dims import parse_dim


def shape_of(model: Any, name: str) -> tuple[Any, ...] | None:
    return from_onnx(model).graph[name].shape


# -- constants ------------------------------------------------------------------------------------------------------
SCALARS = {
    "bool": np.array(True),
    "text": np.array("word", dtype=object),
    "complex": np.array(1 + 2j, dtype=np.complex64),
    "int4": onnx.numpy_helper.to_array(helper.make_tensor("c", TensorProto.INT4, [], [3])),
    "float8": onnx.numpy_helper.to_array(helper.make_tensor("c", TensorProto.FLOAT8E4M3FN, [], [3.0])),
    "not a number": np.float32("nan"),
    "infinite": np.float32("-inf"),
    "uint64": np.array(2**64 - 1, np.uint64),
}


@pytest.mark.parametrize("is_node", [True, False])
@pytest.mark.parametrize("case", SCALARS)
def test_constants_of_any_dtype_are_read(case: str, is_node: bool) -> None:
    constant = onnx.numpy_helper.from_array(SCALARS[case], "c")
    model = built([node("Relu"), EXP], {"x": (3, 4)})
    if is_node:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=constant))
    else:
        model.graph.initializer.append(constant)
    assert len(sw.extract(model, target=TARGET)) == 1


CONSTANTS = [
    {"value_string": "word"}, {"value_strings": ["a", "b"]}, {"value_int": 3}, {"value_ints": [1, 2]},
    {"value_float": 0.5}, {"value_floats": [0.5, 2.0]}, {"value_string": b"\xff"},
    {"sparse_value": helper.make_sparse_tensor(helper.make_tensor("c", TensorProto.FLOAT, [1], [2.0]),
                                               helper.make_tensor("i", TensorProto.INT64, [1], [1]), [4])},
]  # fmt: skip


@pytest.mark.parametrize("attrs", CONSTANTS, ids="-".join)
def test_constants_of_every_form_are_read(attrs: dict[str, Any]) -> None:
    model = built([helper.make_node("Constant", [], ["c"], **attrs), node("Relu"), EXP], {"x": (3, 4)})
    assert len(sw.extract(model, target=TARGET)) == 1
    constant = from_onnx(model).graph["c"]
    assert constant.op == "constant"
    assert len(constant.shape or ()) == (0 if next(iter(attrs)) in ("value_string", "value_int", "value_float") else 1)


def test_a_constant_without_a_value_or_with_two_is_left() -> None:
    for attrs in ({}, {"value_int": 1, "value_float": 1.0}):
        model = built([node("Relu"), EXP], {"x": (3, 4)})
        model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], **attrs))
        assert "values" in reasons_of(model)["c"]


def test_sparse_initializers_are_constants() -> None:
    value = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    sparse = helper.make_sparse_tensor(value, helper.make_tensor("i", TensorProto.INT64, [1], [1]), [4])
    model = built([node("Mul", "xw"), EXP], {"x": (3, 4)})
    model.graph.sparse_initializer.append(sparse)
    assert from_onnx(model).graph["w"].op == "constant"


# -- numbers --------------------------------------------------------------------------------------------------------
def number(value: Any, *nodes: Any, **more: Any) -> Any:
    """x times what ``nodes`` make of ``value``, the last of which gives ``n``; then an exponential."""
    return built([*nodes, node("Mul", "xn"), EXP], {"x": (3, 4)}, {"v": value, **more})


NUMBERS = {
    "rounded towards zero": (np.float32(2.7), [node("Cast", "v", "i", to=7), node("Cast", "i", "n", to=1)]),
    "negative, rounded": (np.float32(-2.7), [node("Cast", "v", "i", to=6), node("Cast", "i", "n", to=1)]),
    "out of range": (np.float32(1e20), [node("Cast", "v", "i", to=6), node("Cast", "i", "n", to=1)]),
    "a truth": (np.float32(2.7), [node("Cast", "v", "i", to=9), node("Cast", "i", "n", to=1)]),
    "16 bits": (np.float32(2.7001), [node("Cast", "v", "i", to=10), node("Cast", "i", "n", to=1)]),
    "brain float": (np.float32(2.7001), [node("Cast", "v", "i", to=16), node("Cast", "i", "n", to=1)]),
    "double": (np.float64(0.1), [node("Cast", "v", "n", to=1)]),
    "a byte that wraps": (np.int64(300), [node("Cast", "v", "i", to=2), node("Cast", "i", "n", to=1)]),
    "not a number": (np.float32(-1.0), [node("Sqrt", "v", "n")]),
    "infinite": (np.float32(0.0), [node("Reciprocal", "v", "n")]),
    "single precision": (np.float32(16777216.0), [node("Add", ["v", "one"], "s"), node("Sub", "sv", "n")]),
    "a root": (np.float32(8.0), [node("Sqrt", "v", "s"), node("Reciprocal", "s", "n")]),
}


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_computed_as_their_dtype_does(case: str) -> None:
    value, nodes = NUMBERS[case]
    if case == "out of range":
        assert "n" not in {each.name for each in from_onnx(number(value, *nodes)).graph if each.op == "scalar"}
    else:
        assert "z" in compared(number(value, *nodes, one=np.float32(1.0)), X * 0.1).compared


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize(("left", "right"), [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, 3), (7, 0)])
def test_quotients_of_integers_are_rounded_towards_zero(dtype: str, left: int, right: int) -> None:
    if dtype == "uint8" and min(left, right) < 0:
        return
    value, part = np.array(left, dtype), np.array(right, dtype)
    model = number(value, node("Div", ["v", "p"], "i"), node("Cast", "i", "n", to=1), p=part)
    if right:
        assert "z" in compared(model, X, right=np.exp(X * int(left / right))).compared
    else:
        assert from_onnx(model).graph["i"].op != "scalar"


def test_integers_that_overflow_do_so_as_onnx_has_it() -> None:
    big = np.array(2**31 - 1, np.int32)
    model = number(big, node("Add", ["v", "v"], "i"), node("Cast", "i", "n", to=1))
    assert "z" in compared(model, X, right=np.exp(X * -2.0)).compared


def test_sizes_that_became_floats_are_no_integers() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Gather", "si", "g"), node("Cast", "g", "f", to=1), node("Div", "fh", "q"),
        node("Mul", "xq"), EXP,
    ]  # fmt: skip
    constants = {"i": np.array(0), "h": np.float32(2.0)}
    for dims in ((3, 4), ("b", 4)):
        compared(built(nodes, {"x": dims}, constants), X)


def test_integers_of_two_axes_are_followed_along_the_right_one() -> None:
    pair, other = np.array([3, 2]), np.array([4, 1])
    nodes = [
        node("Unsqueeze", "pa", "u"), node("Unsqueeze", "qa", "v"), node("Concat", "uv", "c", axis=1),
        node("Gather", "ci", "r", axis=0), node("Reshape", "xr"), EXP,
    ]  # fmt: skip
    model = built(nodes, {"x": (3, 4)}, {"p": pair, "q": other, "a": np.array([1]), "i": np.array(0)})
    assert shape_of(model, "y") == (parse_dim("3"), parse_dim("4"))
    assert "z" in compared(model, X).compared


def test_sizes_that_may_be_negative_are_not_divided() -> None:
    nodes = [
        node("Shape", "x", "s", end=1), node("Sub", "sf", "d"), node("Div", "dt", "q"),
        node("Concat", "qm", "w", axis=0), node("Reshape", "xw"), EXP,
    ]  # fmt: skip
    constants = {"f": np.array([5]), "t": np.array([2]), "m": np.array([-1])}
    model = built(nodes, {"x": ("b", 4)}, constants)
    assert shape_of(model, "y") != (parse_dim("(b-5)//2"), parse_dim("4*b"))


# -- shapes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Pow"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1), (1, 1, 1, 1)])
def test_a_number_of_more_axes_gives_its_axes_to_the_result(op: str, shape: tuple[int, ...]) -> None:
    constant = {"c": np.full(shape, 2.0, np.float32)}
    summed = node("ReduceSum", "ta", "s", keepdims=0)
    nodes = [node(op, "xc"), node("Transpose", "y", "t"), summed, node("Neg", "s", "z")]
    model = built(nodes, {"x": (3, 4)}, {**constant, "a": np.array([-1])})
    found = compared(model, X)
    assert len(shape_of(model, "y") or ()) == max(2, len(shape))
    assert found.compared
    swapped = built([node(op, "cx"), EXP], {"x": (3, 4)}, constant)
    compared(swapped, np.abs(X))


def test_norms_keep_the_axes_that_a_number_in_them_brings() -> None:
    eps = {"e": np.full((1, 1, 1, 1), 1e-5, np.float32), "g": np.ones(4, np.float32)}
    nodes = [
        node("Mul", "xx", "q"), node("ReduceMean", "q", "m", axes=[-1]), node("Add", "me", "p"), node("Sqrt", "p", "r"),
        node("Div", "xr", "n"), node("Mul", "gn", "y"), EXP,
    ]  # fmt: skip
    assert shape_of(built(nodes, {"x": (3, 4)}, eps, 13), "y") == tuple(map(parse_dim, ("1", "1", "3", "4")))
    compared(built(nodes, {"x": (3, 4)}, eps, 13), X)


@pytest.mark.parametrize("sizes", [(3, 3), (1, 3), (3, 1)])
def test_two_symbols_that_may_be_one_are_not_taken_for_one(sizes: tuple[int, int]) -> None:
    inputs = {"x": ("a", 4), "w": ("b", 4)}
    nodes = [node("Add", "xw"), node("Neg", "y", "n"), node("ReduceSum", ["n", "axes"], "s"), node("Neg", "s", "z")]
    model = built(nodes, inputs, {"axes": np.array([1])})
    assert "one of them may be 1" in compared(model, X[: sizes[0]], X[: sizes[1]]).left["y"]
    product = built([node("MatMul", "xw")], {"x": ("a", 4, 8), "w": ("b", 8, 4)})
    assert "one of them may be 1" in reasons_of(product)["y"]
    fixed = built([node("Add", "xw"), EXP], {"x": ("a", 4), "w": (3, 4)})
    compared(fixed, X[: sizes[0]], X)
    assert "y" in compared(built([node("Add", "xw"), EXP], {"x": ("a", 4), "w": ("a", 4)}), X, X).compared


def test_an_input_without_a_shape_has_none() -> None:
    model = built([node("Neg"), EXP], {"x": None})
    assert shape_of(model, "x") is None
    compared(model, X)
    assert "not known" in reasons_of(model)["y"]
    given = built([node("Softmax"), EXP], {"x": ()})
    assert shape_of(given, "x") == ()
    assert reasons_of(given)["y"]


STALE: dict[str, tuple[Any, Any, Any]] = {
    "an earlier batch": ((1, 4), ("b", 4), ("b", 4)),
    "another fixed batch": ((1, 4), (3, 4), (3, 4)),
    "a batch that has no name": ((1, 4), (None, 4), ("x_0", 4)),
    "other axes": ((4,), ("b", 4), ("b", 4)),
    "what is so": (("b", 4), ("b", 4), ("b", 4)),
    "what is not known": ((-1, 4), ("b", 4), ("b", 4)),
}


@pytest.mark.parametrize("place", ["c", "t", "z"])
@pytest.mark.parametrize("case", STALE)
def test_sizes_that_contradict_the_inputs_are_not_believed(case: str, place: str) -> None:
    """Who makes an input dynamic leaves behind what the file says of values in between, and of outputs."""
    declared, given, right = STALE[case]
    nodes = [node("CumSum", ["x", "axis"], ["c"]), node("Tanh", "c", "t"), node("CumSum", ["t", "axis"], ["z"])]
    model = built(nodes, {"x": given}, {"axis": np.array(1)})
    value = helper.make_tensor_value_info(place, TensorProto.FLOAT, declared)
    if place == "z":
        model.graph.output[0].CopyFrom(value)
    else:
        model.graph.value_info.append(value)
    for name in "ctz":
        assert shape_of(model, name) == tuple(map(parse_dim, map(str, right)))
    check(model, [values_of(model, [X])], minimum=1)


def test_what_a_file_says_of_an_unknown_operators_value_is_believed() -> None:
    own = node("Own", domain="acme")
    model = built([own, EXP], {"x": ("b", 4)})
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ("b", 8)))
    assert shape_of(model, "z") == (parse_dim("b"), parse_dim("8"))


@pytest.mark.parametrize("dims", [(-1, 4), (None, 4), ("", 4), ("-1", 4), ("?", 4), ("3", 4), ("None", 4), ("a-b", 4)])
def test_a_size_that_is_not_given_is_a_symbol(dims: tuple[Any, ...]) -> None:
    model = built([node("Neg", ["1"]), EXP], {"1": dims})
    first, _ = shape_of(model, "1") or (None, None)
    assert first is not None
    assert first.constant is None
    read = from_onnx(model)
    if dims[0] != "a-b":
        assert read.places[str(first)] == [("1", 0)]
        (task,) = sw.extract(model, shape_vars={"rows": range(1, 5)}, target=TARGET)
        assert task.workload.variables == {"rows"}
        compared(model, X)


def test_sizes_of_different_inputs_are_different_symbols() -> None:
    sizes = {"x": None, "w": "x_0", "other one": "the batch", "v": "the_batch_0"}
    model = built([node("Neg"), EXP], {name: (size, 4) for name, size in sizes.items()})
    symbols = [str((shape_of(model, name) or ())[0]) for name in sizes]
    assert len(set(symbols)) == 4
    assert symbols[1] == "x_0"


@pytest.mark.parametrize("name", ["batch size", "if", "weight", "n" * 60, "ä", "7", "weight*2", "Max(1, s0)"])
def test_a_dim_of_any_name_can_be_given_its_sizes(name: str) -> None:
    """By the name that is told where it is missing: shape variables cannot have every name."""
    model = built([node("Neg"), EXP], {"x": (name, "other", 4)})
    with pytest.raises(InvalidInput, match=r"\(x:0\)") as caught:
        sw.extract(model, shape_vars={"other": range(1, 5)}, target=TARGET)
    symbol = caught.value.field.removeprefix("shape_vars.")
    (task,) = sw.extract(model, shape_vars={"other": range(1, 5), symbol: range(1, 3)}, target=TARGET)
    assert task.workload.variables == {"other", symbol}


def test_a_size_that_is_not_given_is_that_of_no_other_dim() -> None:
    inputs = {"a b": (None, 4), "w": ("a b_0", 4), "v": ("a_b_0 + 1", 4), "u-t": (None, 4), "u": (None, 4)}
    model = built([node("Neg", ["a b"]), EXP], inputs)
    symbols = [str((shape_of(model, name) or ())[0]) for name in inputs]
    assert len(set(symbols)) == len(inputs)
    assert [symbols[at] for at in (2, 3, 4)] == ["a_b_0+1", "u_t_0", "u_0"]


def test_squeezing_every_axis_of_size_1_needs_sizes() -> None:
    assert "dynamic" in compared(built([node("Squeeze"), EXP], {"x": ("a", 1)}), X[:, :1]).left["y"]
    assert "z" in compared(built([node("Squeeze"), EXP], {"x": (3, 1)}), X[:, :1]).compared


# -- names ----------------------------------------------------------------------------------------------------------
def test_an_initializer_that_is_an_input_is_only_its_default() -> None:
    w = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    for version, op in ((3, "constant"), (4, "input"), (10, "input")):
        model = built([node("MatMul", "xw")], {"x": (3, 4), "w": (4, 5)}, {"w": w}, 11, ir_version=version)
        assert from_onnx(model).graph["w"].op == op
        check(model, [values_of(model, [X, w])])
    axes = built([node("ReduceSum", "xa"), node("Neg", "y", "z")], {"x": (3, 4)}, {"a": np.array([1])})
    axes.graph.input.append(helper.make_tensor_value_info("a", TensorProto.INT64, [1]))
    assert "axes is computed at run time" in reasons_of(axes)["y"]


BROKEN = {
    "two nodes": ([node("Relu"), node("Exp"), node("Neg", "y", "z")], {"x": (3, 4)}, {}, "two values are called 'y'"),
    "a weight": ([node("Relu"), EXP], {"x": (3, 4)}, {"y": np.float32(1)}, "two values are called 'y'"),
    "nothing": ([node("Relu", "q"), EXP], {"x": (3, 4)}, {}, "Relu reads 'q'"),
    "later": ([node("Exp", "y", "z"), node("Relu"), node("Neg", "z", "o")], {"x": (3, 4)}, {}, "Exp reads 'y'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_graph_that_could_not_run_is_refused_with_what_is_wrong(case: str) -> None:
    nodes, inputs, constants, message = BROKEN[case]
    with pytest.raises(InvalidInput) as caught:
        sw.extract(built(nodes, inputs, constants), target=TARGET)
    assert message in str(caught.value) or "inconsistent" in str(caught.value)
    assert caught.value.field == "model"


def test_an_output_that_nothing_computes_is_refused() -> None:
    model = built([node("Relu")], {"x": (3, 4)})
    model.graph.output.append(helper.make_tensor_value_info("gone", TensorProto.FLOAT, None))
    with pytest.raises(InvalidInput, match="the model returns 'gone'"):
        sw.extract(model, target=TARGET)


def test_what_a_branch_reads_from_outside_has_a_further_reader() -> None:
    def branch(op: str, out: str) -> Any:
        return helper.make_graph(
            [node(op, "h", out)], op, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)]
        )

    chosen = helper.make_node("If", ["c"], ["i"], then_branch=branch("Relu", "t"), else_branch=branch("Neg", "e"))
    nodes = [node("Neg", "x", "h"), node("Exp", "h", "y"), chosen, node("Add", "yi", "z")]
    model = built(nodes, {"x": (3, 4)}, {"c": np.array(True)})
    found = compared(model, X)
    assert "If" in found.left["i"]
    assert from_onnx(model).graph.readers("h") == {"y", "i"}


def test_a_branch_that_returns_a_value_of_outside_reads_it() -> None:
    def branch(out: str) -> Any:
        return helper.make_graph([], out, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])

    chosen = helper.make_node("If", ["c"], ["i"], then_branch=branch("h"), else_branch=branch("x"))
    nodes = [node("Neg", "x", "h"), node("Exp", "h", "y"), chosen, node("Add", "yi", "z")]
    model = built(nodes, {"x": (3, 4)}, {"c": np.array(True)})
    assert from_onnx(model).graph.readers("h") == {"y", "i"}


@pytest.mark.causes_defects
def test_a_defect_of_a_translation_leaves_one_node(monkeypatch: Any) -> None:
    def broken(call: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setitem(onnx_operators.TRANSLATIONS, "Relu", broken)
    model = built([node("Relu", "x", "r"), node("Neg", "r", "y"), EXP], {"x": (3, 4)})
    found = compared(model, X)
    assert "ZeroDivisionError" in found.left["r"]
    assert {"y", "z"} <= found.compared


def test_integers_are_not_computed_in_floats() -> None:
    ends = node("Cast", "x", "i", to=7), node("Cast", "k", "y", to=1)
    nodes = [ends[0], node("Div", "it", "j"), node("Mul", "jj", "k"), ends[1], EXP]
    found = compared(built(nodes, {"x": (3, 4)}, {"t": np.array(2)}), 3 * X)
    assert found.compared <= {"z"}
    assert {"i", "j", "k"} <= set(found.left)
