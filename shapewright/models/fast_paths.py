"""Decompositions of ATen's fused operators behind ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention``.

PyTorch's modules call them in inference. They are opaque to whoever compiles; spelled out, their products, norms and
attention are found as those of any model. The forms are those of the modules themselves.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shapewright.models.einsum import einsum

FAST_PATHS = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
MASKS = WORDS, BATCH, HEADS = 0, 1, 2
"""Types of masks: [queries, keys], [batch, keys], [batch, heads, queries, keys]; True hides."""


def fast_paths() -> dict[Any, Callable[..., Any]]:
    """Decompositions of the fast paths, by overload."""
    import torch  # noqa: PLC0415 - for those who have a model of it

    aten = torch.ops.aten
    return {
        aten._native_multi_head_attention.default: _attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }


@contextmanager
def spelled_out(graph: Any) -> Iterator[None]:
    """A context in which a graph of TorchDynamo is traced with its fast paths and ``einsum`` spelled out: inside of
    them, too, autocast chooses the dtypes, which it cannot where operators of ATen are decomposed."""
    import torch  # noqa: PLC0415

    forms = fast_paths()
    opaque_forms = {getattr(torch, name): forms[getattr(torch.ops.aten, name).default] for name in FAST_PATHS}
    opaque_forms[torch.functional.einsum] = einsum
    with calling(graph, {opaque: _called(form, opaque) for opaque, form in opaque_forms.items()}):
        yield


@contextmanager
def calling(graph: Any, others: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """A context in which a graph, and those inside of it, call ``others`` in the place of functions."""
    import torch  # noqa: PLC0415

    changed = [
        (module, node, function)
        for module in graph.modules() if isinstance(module, torch.fx.GraphModule)
        for function in others
        for node in module.graph.find_nodes(op="call_function", target=function)
    ]  # fmt: skip
    try:
        for _, node, function in changed:
            node.target = others[function]
        _recompile(module for module, _, _ in changed)
        yield
    finally:
        for _, node, function in changed:
            node.target = function
        _recompile(module for module, _, _ in changed)


def _recompile(modules: Iterable[Any]) -> None:
    for module in dict.fromkeys(modules):
        module.recompile()


def _called(form: Callable[..., Any], opaque: Callable[..., Any]) -> Callable[..., Any]:
    """``form`` where it is one of the operator's, else the operator."""

    # Inductor wants the function of a node to have a name.
    @functools.wraps(opaque, updated=())
    def called(*given: Any, **named: Any) -> Any:
        result = form(*given, **named)
        return opaque(*given, **named) if result is NotImplemented else result

    return called


def _attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """Self-attention of [batch, words, embed_dim]; NotImplemented where it is anything else."""
    if need_weights or query is not key or key is not value or (mask is not None and mask_type not in MASKS):
        return NotImplemented
    out = _attended(query, num_head, (qkv_weight, qkv_bias, proj_weight, proj_bias), mask, mask_type)
    return _with_hidden_rows(out, mask, mask_type).contiguous(), query.new_empty(0)


def _encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    from torch.nn import functional  # noqa: PLC0415

    if mask is not None and mask_type not in MASKS:
        return NotImplemented

    def attended(x: Any) -> Any:
        return _attended(x, num_heads, (qkv_weight, qkv_bias, proj_weight, proj_bias), mask, mask_type)

    def fed_forward(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def added(x: Any, more: Any) -> Any:
        # ATen adds in place of the second: under autocast its dtype stays.
        return (x + more).to(more.dtype)

    if norm_first:
        x = added(src, attended(first(src)))
        out = added(x, fed_forward(second(x)))
    else:
        x = first(added(src, attended(src)))
        out = second(added(x, fed_forward(x)))
    return _with_hidden_rows(out, mask, mask_type).contiguous()


def _attended(x: Any, heads: int, weights: tuple[Any, ...], mask: Any, mask_type: int | None) -> Any:
    """Attention as ``nn.MultiheadAttention`` computes it elsewhere."""
    import torch  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    in_weight, in_bias, out_weight, out_bias = weights
    masks = {}
    if mask is not None:
        # What is not 0 hides, whatever the mask's dtype.
        added = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask != 0, -math.inf)
        if mask_type == BATCH:
            masks = {"key_padding_mask": added}
        else:
            masks = {"attn_mask": added if mask_type == WORDS else added.flatten(0, 1)}
    words = x.transpose(1, 0)
    out, _ = functional.multi_head_attention_forward(
        words, words, words, x.shape[-1], heads, in_weight, in_bias, None, None, False, 0.0, out_weight, out_bias,
        training=False, need_weights=False, **masks,
    )  # fmt: skip
    return out.transpose(1, 0)


def _with_hidden_rows(out: Any, mask: Any, mask_type: int | None) -> Any:
    """NaN for the words that see none, as ATen's operators have it."""
    if mask is None:
        return out
    hidden = (mask != 0).all(-1)
    by_word = {WORDS: lambda: hidden[None, :], BATCH: lambda: hidden[:, None], HEADS: lambda: hidden.any(1)}
    return out.masked_fill(by_word[mask_type or WORDS]()[..., None], math.nan)
