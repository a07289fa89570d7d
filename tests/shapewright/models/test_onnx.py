"""ONNX models: the same workloads as of the PyTorch models that they were exported from, and what is not translated."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.export import Dim
from torch.nn import functional

import shapewright as sw
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.nets import Encoder, Pictures
from tests.shapewright.models.onnx_cases import built, check, reasons_of, values_of
from tests.shares import diagonal, every
from tuner.errors import InvalidInput
from tuner.program.language.dims import parse_dim


def converted(model: Any, example: Any, name: str, axes: dict[int, str], opset: int = 17, **options: Any) -> Any:
    """By PyTorch's exporter that needs no further package."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), file, dynamo=False, opset_version=opset, input_names=[name],
            dynamic_axes={name: axes}, **options,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


@pytest.mark.parametrize("kind", every(2, ["encoder", "pictures"]))
def test_a_model_has_the_same_workloads_from_onnx_and_from_torch(kind: str) -> None:
    torch.manual_seed(0)
    model, example, axes = {
        "encoder": (Encoder().eval(), torch.zeros(2, 5, dtype=torch.long), {0: "batch", 1: "length"}),
        "pictures": (Pictures().eval(), torch.randn(2, 3, 16, 16), {0: "batch"}),
    }[kind]
    dims = {axis: Dim(name, min=1, max=8) for axis, name in axes.items()}
    own = sw.extract(model, (example,), (dims,), target=TARGET)
    proto = converted(model, example, "given", axes)
    found = sw.extract(proto, shape_vars={name: range(1, 9) for name in axes.values()}, target=TARGET)
    assert {task.workload.key: task.count for task in found} == {task.workload.key: task.count for task in own}
    assert [task.shape_vars for task in found] == [task.shape_vars for task in own]


@pytest.mark.parametrize("centred", [["c", "c"], ["c", "d"]], ids=["once", "twice"])
@pytest.mark.parametrize("vectors", ["gb", "g", ""])
def test_a_layer_norm_that_is_spelled_out_is_one(vectors: str, centred: list[str]) -> None:
    """PyTorch's exporter does so before operator set 17, and centres once."""
    numbers = {"last": np.array([-1]), "two": np.float32(2), "eps": np.float32(1e-5)}
    constants = {name: np.random.default_rng(0).standard_normal(8).astype(np.float32) for name in vectors}
    nodes = [
        helper.make_node("ReduceMean", ["x", "last"], ["m"]),
        *(helper.make_node("Sub", ["x", "m"], [name]) for name in dict.fromkeys(centred)),
        helper.make_node("Pow", [centred[0], "two"], ["q"]),
        helper.make_node("ReduceMean", ["q", "last"], ["v"]),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Div", [centred[1], "s"], ["n"]),
        *([helper.make_node("Mul", ["n", "g"], ["y"])] if "g" in vectors else []),
        *([helper.make_node("Add", ["y", "b"], ["z"])] if "b" in vectors else []),
    ]
    model = built(nodes, {"x": ("rows", 8)}, {**numbers, **constants})
    found = sw.extract(model, shape_vars={"rows": range(1, 5)}, target=TARGET)
    if vectors:
        whole = helper.make_node("LayerNormalization", ["x", *vectors], ["y"])
        own = sw.extract(built([whole], {"x": ("rows", 8)}, constants), shape_vars={"rows": range(1, 5)}, target=TARGET)
        assert [task.workload.key for task in found] == [task.workload.key for task in own]
    assert [str(task.workload).partition("(")[0] for task in found] == ["layer_norm"]
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32) + 5
    check(model, [values_of(model, [x])])


def test_what_is_centred_for_others_too_is_an_rms_norm() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x", "last"], ["m"]),
        helper.make_node("Sub", ["x", "m"], ["c"]),
        helper.make_node("Mul", ["c", "c"], ["q"]),
        helper.make_node("ReduceMean", ["q", "last"], ["v"]),
        helper.make_node("Add", ["v", "eps"], ["e"]),
        helper.make_node("Sqrt", ["e"], ["s"]),
        helper.make_node("Div", ["c", "s"], ["n"]),
        helper.make_node("Mul", ["n", "g"], ["y"]),
        helper.make_node("Add", ["y", "g"], ["z"]),
        helper.make_node("MatMul", ["z", "c"], ["o"]),
    ]
    constants = {"last": np.array([-1]), "eps": np.float32(1e-5), "g": np.arange(8, dtype=np.float32)}
    model = built(nodes, {"x": (8, 8)}, constants)
    x = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    assert {"c", "z"} <= check(model, [values_of(model, [x])], minimum=1).compared
    labels = [str(task.workload).partition("(")[0] for task in sw.extract(model, target=TARGET)]
    assert "rms_norm" in labels


class Idioms(nn.Module):  # type: ignore[misc]
    """What exporters spell out: heads that are repeated, masks, statistics over several axes, sizes in arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.norm = nn.Linear(16, 16), nn.Linear(16, 8), nn.GroupNorm(2, 4)

    def forward(self, x: Any) -> Any:
        b, s, width = x.shape
        q = self.q(x).view(b, s, 4, width // 4).transpose(1, 2)
        kv = self.kv(x).view(b, s, 2, 4).transpose(1, 2)
        kv = kv[:, :, None].expand(b, 2, 2, s, 4).reshape(b, 4, s, 4)
        mask = torch.full((s, s), -1e4).triu(1)
        scores = torch.softmax(q @ kv.transpose(-1, -2) / (width // 4) ** 0.5 + mask, -1)
        mixed = functional.gelu(self.norm(scores @ kv)) * torch.clamp(q, min=0.0)
        var, mean = torch.var_mean(mixed, (-2, -1), keepdim=True, correction=0)
        normal = functional.silu((mixed - mean) * torch.rsqrt(var + 1e-5))
        return normal.transpose(1, 2).flatten(2).mean(1) * (s // 2) + torch.square(x).sum((1, 2), keepdim=True)[:, 0]


NETS: dict[str, tuple[Any, Any, dict[int, str]]] = {
    "encoder": (Encoder, torch.arange(10).reshape(2, 5), {0: "batch", 1: "length"}),
    "pictures": (Pictures, torch.randn(2, 3, 16, 16), {0: "batch"}),
    "idioms": (Idioms, torch.randn(2, 5, 16), {0: "batch", 1: "length"}),
}


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "unfolded": (14, {"do_constant_folding": False}),
    "folded": (18, {}),
    "weights-as-inputs": (18, {"keep_initializers_as_inputs": True}),
}


@pytest.mark.parametrize(("kind", "way"), diagonal(NETS, WAYS, every=3))
def test_what_exporters_write_is_right(kind: str, way: str) -> None:
    opset, options = WAYS[way]
    torch.manual_seed(0)
    make, example, axes = NETS[kind]
    model = make().eval()
    proto = converted(model, example, "given", axes, opset, **options)
    with torch.no_grad():
        values = values_of(proto, [example.numpy()])
        np.testing.assert_allclose(values[proto.graph.output[0].name], model(example).numpy(), atol=1e-3)
    found = check(proto, [values])
    assert len(found.compared) >= 4


def test_a_model_in_training_has_no_norms_of_inference() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU())
    training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    proto = converted(model.train(), torch.randn(2, 3, 8, 8), "given", {0: "batch"}, **training)
    told = " ".join(reasons_of(proto).values())
    assert "statistics are those of the batch" in told
    assert "it drops elements" in told


def made(nodes: list[Any], inputs: dict[str, tuple[Any, ...]], weights: dict[str, tuple[int, ...]]) -> Any:
    """A model whose weights are in another file, as large models have them: they are not read."""
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [_external(name, shape) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _external(name: str, shape: tuple[int, ...]) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def test_weights_that_lie_elsewhere_are_not_read_and_names_may_be_any(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)
    model = made([node, helper.make_node("Relu", ["y"], ["z"])], {"x": ("the batch", 16)}, {"w": (8, 16), "b": (8,)})
    path = tmp_path / "small.onnx"
    path.write_bytes(model.SerializeToString())
    (task,) = sw.extract(path, shape_vars={"B": range(1, 5)}, target=TARGET)
    assert str(task.workload) == "dense(m=B, n=8, k=16) + bias + relu"
    assert task.places == ("y",)


@pytest.mark.parametrize("is_node", [False, True], ids=["initializers", "nodes"])
def test_shapes_that_lie_elsewhere_are_read(is_node: bool, tmp_path: Path) -> None:
    constants = {"shape": np.array([-1, 16]), "half": np.float32(0.5), "w": np.ones((16, 16), np.float32)}
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
        helper.make_node("Max", ["z", "half"], ["o"]),
    ]
    if is_node:
        values = {name: onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()}
        nodes = [*(helper.make_node("Constant", [], [name], value=each) for name, each in values.items()), *nodes]
    model, path = built(nodes, {"x": ("b", 2, 16)}, {} if is_node else constants), tmp_path / "small.onnx"
    options: dict[str, Any] = {"size_threshold": 0, "convert_attribute": True}
    onnx.save(model, path, save_as_external_data=True, location="small.data", **options)
    (task,) = sw.extract(path, shape_vars={"b": range(1, 5)}, target=TARGET)
    assert str(task.workload) == "dense(m=2*b, n=16, k=16) + maximum"
    (tmp_path / "small.data").unlink()
    assert not len(sw.extract(path, shape_vars={"b": range(1, 5)}, target=TARGET)), "not known any more"


def test_shapes_that_are_computed_are_followed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Gather", ["all", "zero"], ["first"], axis=0),
        helper.make_node("Concat", ["first", "minus", "width"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["split"]),
        helper.make_node("MatMul", ["split", "w"], ["out"]),
    ]
    model = made(nodes, {"x": ("b", "s", 12)}, {"w": (4, 6)})
    for name, value in (("zero", 0), ("minus", -1), ("width", 4)):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [1], [value]))
    (task,) = sw.extract(model, shape_vars={"b": range(1, 3), "s": range(1, 3)}, target=TARGET)
    (rows,) = task.workload.symbol_exprs.values()
    assert rows == parse_dim("3*b*s")


LEFT = {
    "pads": (helper.make_node("ConvTranspose", ["x", "w"], ["y"], pads=[0, 0, 1, 1]), "differ between the sides"),
    "auto_pad": (helper.make_node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_UPPER"), "auto_pad"),
    "unknown": (helper.make_node("CumSum", ["x", "axis"], ["y"]), "CumSum: the operator has no translation"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_left_has_its_reason(case: str) -> None:
    node, reason = LEFT[case]
    model = made([node], {"x": ("b", 4, 8, 8)}, {"w": (4, 4, 3, 3)})
    model.graph.initializer.append(helper.make_tensor("axis", TensorProto.INT64, [], [1]))
    found = sw.extract(model, shape_vars={"b": range(1, 3)}, target=TARGET)
    assert not len(found)
    assert reason in found.left[0].reason


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\xff\xfe not a model")
    with pytest.raises(InvalidInput, match=r"broken\.onnx"):
        sw.extract(path)
    graph = made([helper.make_node("Relu", ["x"], ["y"])], {"x": ("b", 8)}, {}).graph
    for without_a_graph in (b"", onnx.ModelProto(ir_version=8).SerializeToString(), graph.SerializeToString()):
        path.write_bytes(without_a_graph)
        with pytest.raises(InvalidInput, match="no graph") as caught:
            sw.extract(path)
        assert caught.value.field == "model"


def test_the_values_of_weights_are_not_given_to_onnxs_inference(monkeypatch: Any) -> None:
    """It takes no more than 2 GiB, and a model in memory may be larger."""
    given: list[Any] = []
    original = onnx.shape_inference.infer_shapes

    def infer(proto: Any, **options: Any) -> Any:
        given.append(proto)
        return original(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer)
    wide, mask, shape = np.ones((256, 256), np.float32), np.ones((16, 16), bool), np.array([-1, 256])
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"]), helper.make_node("MatMul", ["y", "wide"], ["z"])]
    model = built(nodes, {"x": ("b", 256)}, {"wide": wide, "mask": mask, "shape": shape})
    before = model.SerializeToString()
    (task,) = sw.extract(model, shape_vars={"b": range(1, 5)}, target=TARGET)
    assert str(task.workload) == "dense(m=b, n=256, k=256)"
    assert given
    for light in given:
        assert light.ByteSize() < len(before) - wide.nbytes
        kept = {each.name for each in light.graph.initializer if each.data_location != TensorProto.EXTERNAL}
        assert kept == {"mask", "shape"}
    assert model.SerializeToString() == before
