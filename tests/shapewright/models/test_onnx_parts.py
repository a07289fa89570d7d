"""Parts of tensors in ONNX: heads of one product are read where they lie, as in PyTorch's own models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

import shapewright as sw
from shapewright.models.onnx_model import from_onnx
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.onnx_cases import built, check, values_of
from tests.shapewright.models.test_heads import BATCH, FORMS, LENGTH, WIDTH, Joined
from tests.shapewright.models.test_onnx import converted
from tests.shares import chosen

SPELLED = [name for name in FORMS if name not in ("chunks of heads", "copied in another order")]
"""The exporter computes the sizes of the others at run time."""


def _attention_of(tasks: sw.ModelTasks) -> Any:
    (found,) = (task for task in tasks if str(task.workload).startswith("attention"))
    return found.workload


@pytest.mark.parametrize("name", chosen(["split", "selected"], SPELLED))
def test_heads_of_one_product_are_the_workload_of_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, example = Joined(FORMS[name][0]).eval(), torch.randn(2, 5, WIDTH)
    own = sw.extract(model, (example,), ({0: BATCH, 1: LENGTH},), target=TARGET)
    proto = converted(model, example, "given", {0: "batch", 1: "length"})
    found = sw.extract(proto, shape_vars={"batch": range(1, 5), "length": range(1, 33)}, target=TARGET)
    assert _attention_of(found).key == _attention_of(own).key
    assert not found.left
    check(proto, [values_of(proto, [np.random.default_rng(0).standard_normal((3, 7, WIDTH)).astype("float32")])])


def _node(op: str, *inputs: str, to: Any = ("y",), **attrs: Any) -> Any:
    return helper.make_node(op, list(inputs), list(to), **attrs)


def _slice(axes: list[int], starts: list[int], steps: list[int] | None = None) -> dict[str, Any]:
    ends = [1000] * len(axes)
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps or [1] * len(axes)}
    return {name: np.array(value, np.int64) for name, value in given.items()}


SLICED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "from the front": (_slice([2], [8]), {"axis": 2, "start": 8, "keep": True}),
    "from the end": (_slice([-1], [-8]), {"axis": 2, "start": 16, "keep": True}),
    "two axes": (_slice([1, 2], [1, 8]), {}),
    "every other element": (_slice([2], [8], [2]), {}),
}


@pytest.mark.parametrize("name", SLICED)
def test_a_slice_is_a_part_of_one_axis(name: str) -> None:
    constants, attrs = SLICED[name]
    nodes = [_node("Slice", "x", "starts", "ends", "axes", "steps"), _node("Relu", "y", to=("z",))]
    graph = from_onnx(built(nodes, {"x": (2, 3, 24)}, constants)).graph
    assert (graph["y"].op, dict(graph["y"].attrs)) == ("part", attrs)


def test_a_slice_of_an_early_operator_set_has_attributes() -> None:
    nodes = [_node("Slice", "x", starts=[8], ends=[16], axes=[2]), _node("Relu", "y", to=("z",))]
    graph = from_onnx(built(nodes, {"x": (2, 3, 24)}, opset=9)).graph
    assert dict(graph["y"].attrs) == {"axis": 2, "start": 8, "keep": True}


def test_what_a_split_gives_lies_one_behind_the_other() -> None:
    split = _node("Split", "x", "sizes", to=("a", "", "c"), axis=-1)
    nodes = [split, _node("Add", "a", "c", to=("z",))]
    graph = from_onnx(built(nodes, {"x": (2, 3, 24)}, {"sizes": np.array([8, 8, 8], np.int64)})).graph
    assert dict(graph["a"].attrs) == {"axis": 2, "start": 0, "keep": True}
    assert dict(graph["c"].attrs) == {}, "how much is left out is not said"


def test_one_index_leaves_out_its_axis_and_several_are_no_part() -> None:
    one = from_onnx(built([_node("Gather", "x", "at", axis=1)], {"x": (2, 3, 24)}, {"at": np.array(-1)})).graph
    assert (one["y"].op, dict(one["y"].attrs)) == ("part", {"axis": 1, "start": 2, "keep": False})
    several = from_onnx(built([_node("Gather", "x", "at", axis=1)], {"x": (2, 3, 24)}, {"at": np.array([1])})).graph
    assert several["y"].op == "unknown"
