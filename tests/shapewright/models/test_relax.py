"""Relax modules: the same workloads as of PyTorch, and loops that are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.export import Dim
from torch.nn import functional
from tvm import relax, tirx

import shapewright as sw
from tests.shapewright.models.checking import TARGET
from tests.shapewright.models.relax_modules import alike, branches, joined_heads, turned
from tuner.errors import InvalidInput

WEIGHTS = {"w": (32, 32), "bias": (32,), "gamma": (32,)}


def module(lower: bool = False) -> Any:
    """A dense layer, a norm, attention and a mean, over symbolic batch and length."""
    b, s = tirx.Var("batch", "int64"), tirx.Var("length", "int64")

    def tensor(name: str, *shape: Any) -> Any:
        return relax.Var(name, relax.TensorType(shape, "float32"))

    x, w, bias, gamma = tensor("x", b, s, 32), tensor("w", 32, 32), tensor("bias", 32), tensor("gamma", 32)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, bias, gamma], attrs={"num_input": 1}):
        with builder.dataflow():
            dense = builder.emit(relax.op.matmul(x, relax.op.permute_dims(w)))
            dense = builder.emit(relax.op.nn.gelu(relax.op.add(dense, bias)))
            norm = builder.emit(relax.op.nn.layer_norm(dense, gamma, bias, axes=[-1], epsilon=1e-5))
            heads = builder.emit(relax.op.reshape(norm, (b, s, 2, 16)))
            mixed = builder.emit(relax.op.nn.attention(heads, heads, heads, causal_mask="TopLeft"))
            out = builder.emit_output(relax.op.mean(mixed, axis=[1]))
        builder.emit_func_output(out)
    built = builder.finalize()
    return relax.transform.LegalizeOps()(built) if lower else built


class Same(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Any) -> Any:
        heads = self.norm(functional.gelu(self.dense(x))).view(x.shape[0], x.shape[1], 2, 16).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return mixed.transpose(1, 2).mean(1)


def test_a_module_has_the_same_workloads_from_relax_and_from_torch() -> None:
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=8)}
    own = sw.extract(Same().eval(), (torch.randn(2, 5, 32),), (dims,), target=TARGET)
    found = sw.extract(module(), shape_vars={"batch": range(1, 9), "length": range(1, 9)}, target=TARGET)
    assert [str(task.workload) for task in found] == [str(task.workload) for task in own]
    assert [task.workload.key for task in found] == [task.workload.key for task in own]
    assert not found.left


class Joined(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(32, 96, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = (each.view(*each.shape[:2], 2, 16).transpose(1, 2) for each in self.joined(x).split(32, -1))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


@pytest.mark.parametrize("is_split", [True, False])
def test_heads_of_one_product_are_read_where_they_lie(is_split: bool) -> None:
    dims = {0: Dim("batch", min=1, max=8), 1: Dim("length", min=1, max=8)}
    own = sw.extract(Joined().eval(), (torch.randn(2, 5, 32),), (dims,), target=TARGET)
    ranges = {"batch": range(1, 9), "length": range(1, 9)}
    found = sw.extract(joined_heads(is_split), shape_vars=ranges, target=TARGET)
    first, second = ([str(task.workload.program).partition("scores")[0] for task in each] for each in (found, own))
    assert first == second
    assert not found.left


def test_a_rotary_embedding_is_one_program() -> None:
    (task,) = sw.extract(turned(), shape_vars={"batch": range(1, 9), "length": range(1, 9)}, target=TARGET)
    assert str(task.workload).startswith("rotary")


def test_weights_may_be_constants() -> None:
    values = {name: tvm.runtime.tensor(np.ones(shape, "float32")) for name, shape in WEIGHTS.items()}
    bound = relax.transform.BindParams("main", values)(module())
    ranges = {"batch": range(1, 9), "length": range(1, 9)}
    keys, expected = (
        [task.workload.key for task in sw.extract(each, shape_vars=ranges, target=TARGET)] for each in (bound, module())
    )
    assert keys == expected


def test_loops_are_left_with_the_reason() -> None:
    found = sw.extract(module(lower=True), shape_vars={}, target=TARGET)
    assert not len(found)
    assert all("extract before operators are lowered" in one.reason for one in found.left)


def test_a_module_without_a_main_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no Relax function main"):
        sw.extract(tvm.IRModule({}))


# -- what Relax allows ------------------------------------------------------------------------------------------------
def test_variables_and_sizes_that_are_called_alike_are_told_apart() -> None:
    found = sw.extract(alike(), shape_vars={"n": range(1, 9), "n_1": range(2, 5)}, target=TARGET)
    assert [task.count for task in found] == [1, 1], "their sizes are two"
    assert [[var.name for var in task.shape_vars] for task in found] == [["n"], ["n_1"]]
    assert len({task.workload.key for task in found}) == 1
    assert str(found[0].workload).startswith("dense")


UNKNOWN: dict[str, tuple[relax.Type, str]] = {
    "a shape": (relax.TensorType(ndim=2, dtype="float32"), "shape"),
    "a rank": (relax.TensorType(ndim=-1, dtype="float32"), "shape"),
    "a dtype": (relax.TensorType((4, 8), None), "dtype"),
}
STEPS: dict[str, Any] = {
    "softmax": relax.op.nn.softmax,
    "relu": relax.op.nn.relu,
    "mean": lambda x: relax.op.mean(x, axis=[-1]),
    "whole sum": relax.op.sum,
    "permute": relax.op.permute_dims,
    "norm": lambda x: relax.op.nn.rms_norm(x, relax.const(np.ones(8, "float32")), axes=[-1]),
    "matmul": lambda x: relax.op.matmul(x, relax.const(np.ones((8, 8), "float32"))),
    "add": lambda x: relax.op.add(x, relax.const(np.ones(8, "float32"))),
}


REFUSED_BY_TVM = {("a dtype", "norm")}


@pytest.mark.parametrize(
    ("unknown", "step"), [(one, step) for one in UNKNOWN for step in STEPS if (one, step) not in REFUSED_BY_TVM]
)
def test_what_is_not_known_is_a_reason(unknown: str, step: str) -> None:
    info, reason = UNKNOWN[unknown]
    x = relax.Var("x", info)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(STEPS[step](x))
            out = builder.emit_output(relax.op.exp(relax.op.negative(first)))
        builder.emit_func_output(out)
    found = sw.extract(builder.finalize(), target=TARGET)
    assert not len(found)
    assert all("defect" not in one.reason for one in found.left)
    assert any(reason in one.reason for one in found.left) or step == "permute"


def test_tuples_branches_casts_and_shapes() -> None:
    found = sw.extract(branches(), shape_vars={"n": range(1, 9)}, target=TARGET)
    assert {str(task.workload).partition("(")[0] for task in found} <= {"softmax", "add + softmax"}
    assert sum(task.count for task in found) == 2
    assert all("defect" not in one.reason for one in found.left)


def test_a_call_of_something_else_that_is_called_like_an_operator_is_left() -> None:
    x = relax.Var("x", relax.TensorType((4, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            foreign = relax.Call(relax.ExternFunc("relu"), [x], None, [relax.TensorType((4, 32), "float32")])
            out = builder.emit_output(relax.op.nn.softmax(builder.emit(foreign)))
        builder.emit_func_output(out)
    found = sw.extract(builder.finalize(), target=TARGET)
    assert [str(task.workload).partition("(")[0] for task in found] == ["softmax"]
