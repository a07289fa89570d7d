"""Attention as PyTorch traces it on GPUs: the operators of its kernels there, and what it spells out without one.

Tensors on a GPU are fake ones; what is spelled out runs on the CPU, too, where PyTorch is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from shapewright.models.fx import lift
from shapewright.models.lifted import Lifting
from tests.shapewright.models.checking import TARGET, recorded, reference

aten = torch.ops.aten
Function = Callable[..., Any]
QUERIES, KEYS = (2, 4, 5, 16), (2, 4, 7, 16)
ATTENTION = functional.scaled_dot_product_attention


def traced(function: Function, *inputs: Tensor) -> Any:
    module = make_fx(function)(*inputs)
    module.graph.eliminate_dead_code()
    return module


def on_gpu(function: Function, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> Lifting:
    with FakeTensorMode():
        module = traced(function, *(torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes))
    return lift(module, frozenset(), target=TARGET)


def on_cpu(function: Function, *inputs: Tensor) -> Lifting:
    return lift(traced(function, *inputs), frozenset(), target=TARGET)


def halves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


OPERATORS: dict[str, Function] = {
    "efficient": lambda q, k, v, causal=False: aten._scaled_dot_product_efficient_attention(
        q, k, v, None, True, is_causal=causal
    )[0],
    "flash": lambda q, k, v, causal=False: aten._scaled_dot_product_flash_attention(q, k, v, is_causal=causal)[0],
    "cudnn": lambda q, k, v, causal=False: aten._scaled_dot_product_cudnn_attention(
        q, k, v, None, False, is_causal=causal
    )[0],
}


@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize("causal", [False, True])
def test_operators_of_gpus_are_the_workload_that_the_one_of_cpus_is(kind: str, causal: bool) -> None:
    keys = QUERIES if causal else KEYS
    (found,) = on_gpu(lambda q, k, v: OPERATORS[kind](q, k, v, causal=causal), QUERIES, keys, keys).ops
    (known,) = on_cpu(lambda q, k, v: ATTENTION(q, k, v, is_causal=causal), *halves(QUERIES, keys, keys)).ops
    assert found.workload == known.workload


@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_their_masks_are_added(kind: str) -> None:
    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        if kind == "efficient":
            return aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0]
        return aten._scaled_dot_product_cudnn_attention(q, k, v, mask, False)[0]

    shapes = QUERIES, KEYS, KEYS, (2, 4, 5, 7)
    (found,) = on_gpu(masked, *shapes).ops
    (known,) = on_cpu(lambda q, k, v, mask: ATTENTION(q, k, v, attn_mask=mask), *halves(*shapes)).ops
    assert found.workload == known.workload


@pytest.mark.parametrize("kind", ["flash", "cudnn"])
def test_what_they_hide_of_unequal_lengths_is_not_known(kind: str) -> None:
    lifting = on_gpu(lambda *qkv: OPERATORS[kind](*qkv, causal=True), QUERIES, KEYS, KEYS)
    assert not lifting.ops
    assert any("not as many queries as keys" in each.reason for each in lifting.left)


def test_dropout_stays() -> None:
    lifting = on_gpu(lambda *qkv: aten._scaled_dot_product_flash_attention(*qkv, 0.1)[0], QUERIES, KEYS, KEYS)
    assert not lifting.ops
    assert any("dropout" in each.reason for each in lifting.left)


# -- spelled out ------------------------------------------------------------------------------------------------------
def _heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.view(2, -1, 4, 16).transpose(1, 2) for each in (q, k, v))
    return ATTENTION(q, k, v).transpose(1, 2).reshape(2, -1, 64)


SPELLED: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "plain": (ATTENTION, [QUERIES, KEYS, KEYS]),
    "scaled": (lambda q, k, v: ATTENTION(q, k, v, scale=0.5), [QUERIES, KEYS, KEYS]),
    "unscaled": (lambda q, k, v: ATTENTION(q, k, v, scale=1.0), [QUERIES, KEYS, KEYS]),
    "heads": (_heads, [(2, 5, 64), (2, 7, 64), (2, 7, 64)]),
    "added": (lambda q, k, v, mask: ATTENTION(q, k, v, attn_mask=mask), [QUERIES, KEYS, KEYS, (2, 1, 5, 7)]),
    "hidden": (lambda q, k, v, x: ATTENTION(q, k, v, attn_mask=x > 0), [QUERIES, KEYS, KEYS, (2, 1, 5, 7)]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", SPELLED)
def test_float32_in_between_is_the_workload_of_short_floats(kind: str, dtype: torch.dtype) -> None:
    function, shapes = SPELLED[kind]
    inputs = halves(*shapes, dtype=dtype)
    (known,) = on_cpu(function, *inputs).ops
    assert {known.workload.tensors[name].dtype for name in "qkv"} == {str(dtype).removeprefix("torch.")}
    with sdpa_kernel(SDPBackend.MATH):
        module = traced(function, *inputs)
    assert aten._safe_softmax.default in [node.target for node in module.graph.nodes]
    (found,) = lift(module, frozenset(), target=TARGET).ops
    assert found.workload == known.workload
    values = recorded(module, inputs)
    computed = reference(found, {name: widened(value) for name, value in values.items()}, {})
    close = 2e-3 if dtype == torch.float16 else 2e-2
    np.testing.assert_allclose(np.asarray(computed, np.float32), widened(values[found.output]), atol=close)


def widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def test_float32_that_a_model_asks_for_stays() -> None:
    def wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.softmax(q.float() @ k.float().mT, -1) @ v.float()).half()

    (found,) = on_cpu(wide, *halves(QUERIES, KEYS, KEYS)).ops
    assert {found.workload.tensors[name].dtype for name in "qkv"} == {"float32"}


@pytest.mark.parametrize(("outer", "inner"), [("bfloat16", "float16"), ("float16", "bfloat16"), ("float16", "float64")])
def test_dtypes_in_between_other_than_float32_stay(outer: str, inner: str) -> None:
    """Rounding on the way, or none of it, is what the model asks for."""

    def cast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ATTENTION(*(each.to(getattr(torch, inner)) for each in (q, k, v))).to(getattr(torch, outer))

    inputs = halves(QUERIES, KEYS, KEYS, dtype=getattr(torch, outer))
    with sdpa_kernel(SDPBackend.MATH):
        module = traced(cast, *inputs)
    found = {tensor.dtype for op in lift(module, frozenset(), target=TARGET).ops for tensor in op.workload.operands}
    assert found <= {inner}


def test_attention_whose_queries_are_weights_of_another_is_lifted_with_what_is_there() -> None:
    def nested(q: Tensor, k: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(torch.softmax(q @ k, -1) @ u, -1) @ v

    module = traced(nested, *(each.float() for each in halves(*[(2, 2, 4, 4)] * 4)))
    values = recorded(module, halves(*[(2, 2, 4, 4)] * 4, dtype=torch.float32))
    lifting = lift(module, frozenset(), target=TARGET)
    assert lifting.ops
    for op in lifting.ops:
        np.testing.assert_allclose(reference(op, values, {}), values[op.output], atol=1e-4)
