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
