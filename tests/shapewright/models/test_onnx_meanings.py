"""What a node of ONNX means: by its domain, its operator set and everything that it says, not by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from shapewright.models import onnx_schemas
from shapewright.models.lifting import lift_graph
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import Formula, exported, lifting_of
from tests.shapewright.models.onnx_cases import Found, built, compared, reasons_of
from tuner.errors import InvalidInput
from tuner.program.reference import compute

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
EXP = helper.make_node("Exp", ["y"], ["z"])
"""Reads what a test is about: it shows in its shape and in what is fused."""


def node(op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **attrs: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), **attrs)


def left(found: Found, name: str = "y") -> str:
    """The reason for which a node was left."""
    assert name not in found.compared
    return found.left[name]


# -- domains and functions ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", ["Softmax", "Relu", "Identity", "Shape", "Slice", "Split", "Cast", "Constant", "Add"])
@pytest.mark.parametrize("domain", ["acme", "com.microsoft", "ai.onnx.ml"])
def test_an_operator_of_another_domain_is_not_the_standard_one(op: str, domain: str) -> None:
    found = compared(built([node(op, domain=domain), EXP], {"x": (3, 4)}), X, right=np.exp(X))
    assert f"operators of the domain {domain}" in left(found)
    assert "z" not in found.compared


def test_the_standard_domain_has_two_names() -> None:
    model = built([node("Relu", domain="ai.onnx"), EXP], {"x": (3, 4)})
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("ai.onnx", 18)])
    model.graph.node[1].domain = "ai.onnx"
    assert compared(model, X, right=np.exp(np.maximum(X, 0))).compared == {"y", "z"}


@pytest.mark.parametrize("domain", ["", "mine"])
def test_a_function_of_the_model_is_not_the_operator_of_its_name(domain: str) -> None:
    body = [helper.make_node("Neg", ["x"], ["y"])]
    own = helper.make_function(domain, "Relu", ["x"], ["y"], body, [helper.make_opsetid("", 18)])
    model = built([node("Relu", domain=domain), EXP], {"x": (3, 4)}, functions=[own])
    assert "a function of its own" in reasons_of(model)["y"]


# -- attributes and inputs ------------------------------------------------------------------------------------------
QKV = dict.fromkeys("qkv", (1, 2, 4, 8))
UNKNOWN: dict[str, tuple[Any, Any, int]] = {
    "cap": (node("Relu", cap=6.0), {"x": (3, 4)}, 18),
    "broadcast": (node("Add", "xw", axis=0), {"x": (3, 4), "w": (3, 4)}, 18),
    "softcap": (node("Attention", "qkv", softcap=2.0), QKV, 23),
    "softmax_precision": (node("Attention", "qkv", softmax_precision=10), QKV, 23),
    "left_window_size": (node("Attention", "qkv", left_window_size=1), QKV, 25),
    "right_window_size": (node("Attention", "qkv", right_window_size=1, left_window_size=1), QKV, 25),
    "ceil_mode": (
        node("MaxPool", kernel_shape=[2, 2], strides=[3, 3], pads=[1] * 4, ceil_mode=1), {"x": (1, 1, 5, 5)}, 18
    ),
    "stash_type": (node("LayerNormalization", "xw", stash_type=10), {"x": (3, 4), "w": (4,)}, 18),
    "a cache": (node("Attention", ["q", "k", "v", "", "q", "k"]), QKV, 23),
    "axes as of older sets": (node("ReduceSum", axes=[1]), {"x": (3, 4)}, 18),
    "axes as of newer sets": (node("Squeeze", ["x", "a"]), {"x": (3, 1)}, 11),
    "minimum as of older sets": (node("Clip", min=0.0), {"x": (3, 4)}, 18),
    "per position": (node("BatchNormalization", "xwwww", spatial=0), {"x": (3, 4), "w": (4,)}, 8),
    "training": (node("BatchNormalization", "xwwww", training_mode=1), {"x": (3, 4), "w": (4,)}, 15),
    "means of fewer elements apart": (
        node("AveragePool", kernel_shape=[3, 3], dilations=[2, 2], pads=[1] * 4), {"x": (1, 1, 9, 9)}, 19
    ),
    "reflected": (node("Pad", pads=[0, 1, 0, 1], mode="reflect"), {"x": (3, 4)}, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_node_that_says_what_its_translation_does_not_know_is_left(case: str) -> None:
    one, inputs, opset = UNKNOWN[case]
    constants = {"a": np.array([1])} if "a" in one.input else {}
    model = built([one], inputs, constants, opset)
    assert reasons_of(model)["y"]


FORMS = {
    "no input": (node("Relu", ()), "has 0 inputs"),
    "no shape's input": (node("Shape", ()), "has 0 inputs"),
    "too many": (node("Relu", "xx"), "has 2 inputs"),
    "an input left out": (node("Identity", [""]), "input 0 is left out"),
    "a shape's input left out": (node("Shape", [""]), "input 0 is left out"),
    "all inputs left out": (node("Concat", ["", ""], axis=0), "input 0 is left out"),
    "one of several left out": (node("Sum", ["x", ""]), "input 1 is left out"),
    "a cast's input left out": (node("Cast", [""], to=1), "input 0 is left out"),
    "the first input left out": (node("Clip", ["", "x"]), "input 0 is left out"),
    "the second input left out": (node("Attention", ["x", "", "x"]), "input 1 is left out"),
    "a loop's optional inputs": (node("Loop", ["", "", "x"]), "no translation"),
    "a number for a list": (node("Transpose", perm=1), "another type"),
    "a list for a number": (node("Softmax", axis=[1]), "another type"),
    "an axis that is none": (node("Softmax", axis=2), "no axis 2 of 2"),
    "axes that are none": (node("Transpose", perm=[0, 0]), "perm [0, 0] of 2 axes"),
    "windows of other axes": (node("MaxPool", kernel_shape=[2]), "kernel_shape"),
    "no window": (node("MaxPool"), "kernel_shape"),
    "a kernel that is none": (node("Conv", "xx"), "do not agree"),
    "no dtype": (node("Cast"), "another dtype"),
}


@pytest.mark.parametrize("case", FORMS)
def test_a_node_that_has_not_the_form_of_its_operator_is_left(case: str) -> None:
    one, reason = FORMS[case]
    try:
        left_for = reasons_of(built([one], {"x": (3, 4)}, opset=23))["y"]
    except InvalidInput as error:  # ONNX's inference says so first
        left_for = f"inconsistent {error}"
    assert reason in left_for or "inconsistent" in left_for


@pytest.mark.parametrize("number", [0.2, float("nan"), float("inf")])
def test_a_hard_sigmoid_of_another_slope_is_left(number: float) -> None:
    for alpha, beta in ((number, 0.5), (1 / 6, number)):
        one = node("HardSigmoid", alpha=alpha, beta=beta)
        assert "slope" in reasons_of(built([one, EXP], {"x": (3, 4)}))["y"]
    usual = built([node("HardSigmoid", alpha=1 / 6), EXP], {"x": (3, 4)})
    assert "y" in compared(usual, X).compared


def test_an_attribute_with_its_default_says_nothing() -> None:
    one = node("Attention", "qkv", softcap=0.0, qk_matmul_output_mode=0, left_window_size=-1)
    q = np.random.default_rng(0).standard_normal((1, 2, 4, 8))
    assert compared(built([one], QKV, opset=25), q, q, q).compared == {"y"}


@pytest.mark.parametrize("columns", [1, 3, 4])
def test_a_mask_of_fewer_keys_hides_the_others(columns: int) -> None:
    one, mask = node("Attention", "qkvm"), np.zeros((4, columns), np.float32)
    model = built([one], {**QKV, "m": mask.shape}, opset=23)
    q = np.random.default_rng(0).standard_normal((1, 2, 4, 8)).astype(np.float32)
    if columns == 4:
        assert compared(model, q, q, q, mask).compared == {"y"}
    else:
        assert "mask" in left_of(model)


@pytest.mark.parametrize("sees", [True, False, None])
def test_only_a_constant_mask_that_hides_nothing_is_left_out(sees: bool | None) -> None:
    seen = np.full((1, 1, 4, 4), bool(sees)) if sees is not None else np.eye(4, dtype=bool)[None, None]
    least = np.finfo(np.float32).min
    constants = {"seen": seen, "none": np.float32(0.0), "least": np.float32(least), "scale": np.float32(8**-0.5)}
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scaled"]),
        helper.make_node("Where", ["seen", "none", "least"], ["mask"]),
        helper.make_node("Add", ["scaled", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    model = built(nodes, QKV, {name: np.asarray(each) for name, each in constants.items()})
    q = np.random.default_rng(0).standard_normal((1, 2, 4, 8)).astype(np.float32)
    assert "y" in compared(model, q, q, q).compared
    (op,) = (each for each in lift_graph(from_onnx(model).graph).ops if each.output == "y")
    assert ("mask" in {tensor.name for tensor in op.workload.inputs}) == (sees is not True)


@pytest.mark.parametrize("keys", [0, 1, 3])
def test_where_there_is_no_key_rows_are_zero(keys: int) -> None:
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, size, 8)).astype(np.float32) for size in (4, keys, keys))
    shapes = {"q": q.shape, **dict.fromkeys("kv", (1, 2, "keys", 8))}
    model = built(nodes, shapes, {"scale": np.float32(8**-0.5)})
    (op,) = lift_graph(from_onnx(model).graph).ops
    (out,) = compute(op.workload, [q, k, v], op.workload.dims({"keys": keys}))
    scores = q @ k.swapaxes(2, 3) * 8**-0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, weights @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [(3, 1, 4, 4), (1, 1, 1, 4, 4), (2, 1, 1, 4, 4), (1, 1, 3, 4)])
def test_a_mask_to_which_scores_are_broadcast_is_not_left_out(mask: tuple[int, ...]) -> None:
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Where", ["seen", "none", "least"], ["mask"]),
        helper.make_node("Add", ["products", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    constants = {"seen": np.ones(mask, bool), "none": np.float32(0), "least": np.float32(-1e9)}
    q = np.random.default_rng(0).standard_normal((1, 2, 1 if mask[-2] == 3 else 4, 8)).astype(np.float32)
    k = np.random.default_rng(1).standard_normal((1, 2, 4, 8)).astype(np.float32)
    model = built(nodes, {"q": q.shape, **dict.fromkeys("kv", k.shape)}, constants)
    assert "the mask's shape" in left(compared(model, q, k, k))


def test_a_number_is_the_one_that_a_float_holds() -> None:
    """Models write sqrt(2 / pi), exporters what is left of it in float32."""
    keys = set()
    for number in (0.7978845608028654, 0.79788456, float(np.float32(0.7978845608028654))):
        model = built([node("Mul", "xc"), EXP], {"x": (3, 4)}, {"c": np.asarray(number, np.float32)})
        keys |= {op.workload.key for op in lift_graph(from_onnx(model).graph).ops}
    x = torch.randn(3, 4)
    program = exported(Formula(lambda given: torch.exp(given * 0.79788456)), (x,), None)
    keys |= {op.workload.key for op in lifting_of(program).ops}
    assert len(keys) == 1


# -- operator sets --------------------------------------------------------------------------------------------------
def test_an_operator_set_that_is_newer_than_what_is_known_leaves_its_operators(monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(onnx_schemas, "KNOWN_OPSET", 12)
        onnx_schemas._standard.cache_clear()
        found = compared(built([node("Softmax", axis=-1), node("Tanh", "y", "z")], {"x": (3, 4)}), X)
    onnx_schemas._standard.cache_clear()
    assert "operator set 18 is not known" in left(found)
    assert onnx.defs.onnx_opset_version() <= onnx_schemas.KNOWN_OPSET
    beyond = built([node("Relu"), EXP], {"x": (3, 4)}, opset=onnx.defs.onnx_opset_version() + 1)
    assert "is not known" in left(compared(beyond, X, right=np.exp(np.maximum(X, 0))))


def test_two_operator_sets_of_one_domain_mean_nothing() -> None:
    model = built([node("Relu"), EXP], {"x": (3, 4)})
    model.opset_import.append(helper.make_opsetid("ai.onnx", 6))
    assert "2 operator sets" in left(compared(model, X, right=np.exp(np.maximum(X, 0))))


@pytest.mark.parametrize("opset", [1, 6])
def test_operands_are_broadcast_as_their_operator_set_does(opset: int) -> None:
    w = np.arange(3, dtype=np.float32)
    old = {"x": (3, 4), "w": (3,)}
    found = compared(built([node("Add", "xw", axis=0, broadcast=1)], old, opset=opset), X, w, right=X + w[:, None])
    assert "from axis 0" in left(found)
    found = compared(built([node("Add", "xw")], old, opset=opset), X, w, right=X)
    assert "different shapes" in left(found)
    wide = np.arange(4, dtype=np.float32)
    behind = built([node("Add", "xw", broadcast=1), node("Neg", "y", "z")], {"x": (3, 4), "w": (4,)}, opset=opset)
    assert compared(behind, X, wide, right=-(X + wide)).compared >= {"y"}
    same = built([node("Mul", "xw"), node("Neg", "y", "z")], {"x": (3, 4), "w": (3, 4)}, opset=opset)
    assert compared(same, X, X, right=-(X * X)).compared >= {"y"}


@pytest.mark.parametrize("opset", [7, 12, 23])
def test_masks_are_joined_as_their_operator_set_broadcasts(opset: int) -> None:
    joined = built([node("And", "pq"), node("Cast", "y", "z", to=1)], {"x": (3, 4)}, opset=opset)
    joined.graph.input.extend(helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, dims)
                              for name, dims in {"p": (3, 4), "q": (2, 1, 4)}.items())  # fmt: skip
    found = from_onnx(joined).graph["y"]
    assert (found.op, [dim.constant for dim in found.shape or ()]) == ("both", [2, 3, 4])


def test_softmax_before_operator_set_13_is_over_all_axes_from_its_own_on() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    assert "several axes" in left(compared(built([node("Softmax")], {"x": (2, 3, 4)}, opset=11), x, right=x))
    assert compared(built([node("Softmax", axis=2)], {"x": (2, 3, 4)}, opset=11), x).compared == {"y"}
    assert compared(built([node("Softmax")], {"x": (2, 3, 4)}, opset=13), x).compared == {"y"}
    # The default axis of a vector is none of it: then every element is a row.
    assert left(compared(built([node("Softmax")], {"x": (4,)}, opset=11), x[0, 0], right=np.ones(4, np.float32)))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
def test_reductions_have_their_axes_where_their_operator_set_has_them(op: str) -> None:
    right: Any = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min}[op]
    after = node("Neg", "y", "z")
    older, newer = 11, 18
    axes = {"a": np.array([1])}
    old = built([node(op, axes=[1]), after], {"x": (3, 4)}, opset=older)
    assert "y" in compared(old, X, right=-right(X, 1, keepdims=True)).compared
    assert "y" in compared(built([node(op, "xa"), after], {"x": (3, 4)}, axes, newer), X).compared
    dropped = built([node(op, "xa", keepdims=0), after], {"x": (3, 4)}, axes, newer)
    assert "y" in compared(dropped, X).compared
    for none in ({"a": np.zeros(0, np.int64)}, {}):
        inputs = "xa" if none else "x"
        kept = built([node(op, inputs, noop_with_empty_axes=1), node("Exp", "y", "z")], {"x": (3, 4)}, none, newer)
        assert "z" in compared(kept, X, right=np.exp(X)).compared
        whole = built([node(op, inputs), after], {"x": (3, 4)}, none, newer)
        assert "y" not in compared(whole, X, right=-right(X, keepdims=True)).left
    nothing = node(op)
    nothing.attribute.append(helper.make_attribute("axes", [], attr_type=onnx.AttributeProto.INTS))
    assert "empty" in reasons_of(built([nothing], {"x": (3, 4)}, opset=older))["y"]


DROPOUTS: dict[str, tuple[Any, int, Any, bool]] = {
    "of set 6 in training": (node("Dropout"), 6, {}, False),
    "of set 6 at inference": (node("Dropout", is_test=1), 6, {}, True),
    "of set 7": (node("Dropout", ratio=0.3), 7, {}, True),
    "of set 12": (node("Dropout", seed=3), 12, {}, True),
    "told to train": (node("Dropout", "xrt"), 13, {"r": np.float32(0.5), "t": np.array(True)}, False),
    "told not to": (node("Dropout", "xrt"), 13, {"r": np.float32(0.5), "t": np.array(False)}, True),
    "told nothing": (node("Dropout", "xr"), 13, {"r": np.float32(0.5)}, True),
}


@pytest.mark.parametrize("case", DROPOUTS)
def test_dropout_is_nothing_at_inference_alone(case: str) -> None:
    one, opset, constants, is_nothing = DROPOUTS[case]
    model = built([one, EXP], {"x": (3, 4)}, constants, opset)
    assert ("y" in reasons_of(model)) != is_nothing
    if is_nothing:
        assert "z" in compared(model, X, right=np.exp(X)).compared


def test_dropout_that_is_told_at_run_time_is_left() -> None:
    model = built([node("Dropout", "xrt"), EXP], {"x": (3, 4)}, {"r": np.float32(0.5)}, 13)
    model.graph.input.append(helper.make_tensor_value_info("t", onnx.TensorProto.BOOL, ()))
    assert "drops" in left(compared(model, X, right=np.exp(X)))


@pytest.mark.parametrize("opset", [6, 7, 9, 14, 15])
def test_batch_normalization_is_lifted_where_its_operator_set_says_inference(opset: int) -> None:
    image = np.random.default_rng(0).standard_normal((1, 2, 5, 5))
    vector = np.array([0.5, 1.5], np.float32)
    constants = {"w": np.random.default_rng(1).standard_normal((2, 2, 3, 3)).astype(np.float32), "v": vector}
    conv = node("Conv", "xw", "c")
    attrs: dict[str, Any] = {"is_test": 1} if opset < 7 else {}
    plain = built([conv, node("BatchNormalization", "cvvvv", **attrs)], {"x": image.shape}, constants, opset)
    assert "y" in compared(plain, image, right=normalized(image, constants)).compared
    more = node("BatchNormalization", "cvvvv", ["y", "m", "n", "sm", "sv"][: 5 if opset < 14 else 3])
    trained = built([conv, more], {"x": image.shape}, constants, opset)
    if opset < 14:
        assert "those of the batch" in left_of(trained)
    elif opset >= 14:
        trained.graph.node[1].attribute.append(helper.make_attribute("training_mode", 1))
        assert "those of the batch" in left_of(trained)


def left_of(model: Any) -> str:
    return reasons_of(model)["y"]


def normalized(image: Any, constants: dict[str, Any]) -> Any:
    """The convolution and its norm, whose vectors are all the same."""
    conv = torch.nn.functional.conv2d(torch.tensor(image, dtype=torch.float32), torch.tensor(constants["w"]))
    vector = torch.tensor(constants["v"])
    return torch.nn.functional.batch_norm(conv, vector, vector, vector, vector).numpy()


NORMS = {"LayerNormalization": "xvv", "RMSNormalization": "xv", "SimplifiedLayerNormalization": "xv"}
VECTORS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], bool]] = {
    "of the last axis": ((4, 4), -1, (4,), True),
    "of the last axis, with ones": ((4, 4), -1, (1, 4), True),
    "of two axes": ((2, 4, 4), 1, (4, 4), True),
    "of rows": ((4, 4), -1, (4, 1), False),
    "of rows of three axes": ((4, 1, 4), -1, (4, 1, 1), False),
    "of one row's elements each": ((4, 4), -1, (4, 4), False),
    "one number": ((4, 4), -1, (1,), False),
    "of the last one of two axes": ((2, 4, 4), 1, (4,), False),
    "of the first one of two axes": ((2, 4, 4), 1, (4, 1), False),
    "broadcast along an axis of size 1": ((4, 4, 1), 1, (4,), False),
    "of more axes": ((4, 4), -1, (1, 1, 4), False),
}


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("case", VECTORS)
def test_a_norm_has_vectors_of_the_axes_that_it_normalizes(op: str, case: str) -> None:
    shape, axis, own, is_lifted = VECTORS[case]
    rng = np.random.default_rng(0)
    x, vector = (rng.standard_normal(size).astype(np.float32) for size in (shape, own))
    model = built([node(op, NORMS[op], axis=axis)], {"x": shape}, {"v": vector}, 23)
    assert ("y" in reasons_of(model)) != is_lifted
    if is_lifted and not op.startswith("Simplified"):
        assert compared(model, x).compared == {"y"}


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_operators_of_any_number_of_tensors(op: str) -> None:
    one = built([node(op), EXP], {"x": (3, 4)})
    assert "z" in compared(one, X).compared
    two = built([node(op, "xw"), EXP], {"x": (3, 4), "w": (4,)})
    found = compared(two, X, X[0])
    assert ("y" in found.compared) == (op != "Mean")
    three = built([node(op, "xwx"), EXP], {"x": (3, 4), "w": (4,)})
    assert "3 tensors" in left(compared(three, X, X[0]))


def test_an_output_beside_the_first_one_that_is_read_leaves_the_node() -> None:
    image = np.random.default_rng(0).standard_normal((1, 8, 16, 64))
    pool = node("MaxPool", outputs=["y", "i"], kernel_shape=[2, 2])
    read = built([pool, node("Cast", "i", "f", to=1), node("Add", "yf", "z")], {"x": image.shape})
    assert "beside its first output" in left(compared(read, image))
    assert "y" in compared(built([pool, node("Exp", "y", "z")], {"x": image.shape}), image).compared
    lstm = node("LSTM", "xwr", ["", "h"], hidden_size=2)
    weights = {"w": np.ones((1, 8, 4), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    alone = built([lstm, node("Exp", "h", "z")], {"x": (3, 1, 4)}, weights)
    assert "LSTM" in compared(alone, X[:, None]).left["h"]


@pytest.mark.parametrize("opset", [1, 6, 11, 13])
def test_clip_has_its_bounds_where_its_operator_set_has_them(opset: int) -> None:
    attrs: dict[str, Any] = {"min": -0.5, "max": 0.5}
    inputs, constants = "x", {}
    if opset >= 11:
        attrs, inputs, constants = {}, "xlh", {"l": np.float32(-0.5), "h": np.float32(0.5)}
    model = built([node("Clip", inputs, **attrs), EXP], {"x": (3, 4)}, constants, opset)
    assert compared(model, X, right=np.exp(np.clip(X, -0.5, 0.5))).compared == {"y", "z"}
    open_ended = built([node("Clip", "x"), EXP], {"x": (3, 4)}, {}, opset)
    assert "z" in compared(open_ended, X, right=np.exp(X)).compared


@pytest.mark.parametrize("opset", [6, 9, 11])
@pytest.mark.parametrize("shape", [(3, 5), (5,), (1, 5), (3, 1), (1,)])
def test_the_addend_of_a_product_is_broadcast_as_its_operator_set_does(opset: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    w, c = rng.standard_normal((4, 5)).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
    model = built([node("Gemm", "xwc"), EXP], {"x": (3, 4)}, {"w": w, "c": c}, opset)
    found = compared(model, X, right=np.exp(X @ w + c))
    if opset == 6 and shape != (3, 5):
        assert "C is not" in left(found)
        model = built([node("Gemm", "xwc", broadcast=1), EXP], {"x": (3, 4)}, {"w": w, "c": c}, opset)
        compared(model, X, right=np.exp(X @ w + c))
