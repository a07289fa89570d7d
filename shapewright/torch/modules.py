"""Modules of PyTorch whose forward calls tuned libraries, and PyTorch's own where no library fits.

Each is a subclass of the module that it replaces, with the same parameters under the same names, so that state dicts,
hooks and whoever asks for its type see no difference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from shapewright.torch.tuned_module import LAYOUT, Tuned

MASKED = (
    "a mask of a TransformerEncoderLayer is of floats, one of two, or hides all from a word: PyTorch's fast path ran"
)


def linear(module: Tuned, part: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear`` by the library of ``part``, which has the bias or not."""
    plan = module.plan(part, x, weight, bias)
    if plan is None:
        return functional.linear(x, weight, bias)
    sizes = [*x.shape[:-1], weight.shape[0]]
    if bias is not None and module.bound[part].inputs == 3:
        return module.called(plan, [x, weight, bias], sizes, lambda: functional.linear(x, weight, bias))
    out = module.called(plan, [x, weight], sizes, lambda: functional.linear(x, weight))
    return out if bias is None else out + bias


class TunedLinear(Tuned, nn.Linear):  # type: ignore[misc]
    """Part ``linear``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear(self, "linear", input, self.weight, self.bias)


class TunedLayerNorm(Tuned, nn.LayerNorm):  # type: ignore[misc]
    """Part ``layer_norm``."""

    SETTINGS = ("normalized_shape", "eps")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("layer_norm", input, self.weight, self.bias)
        if plan is None:
            return super().forward(input)
        operands = [input, self.weight, self.bias]
        return self.called(plan, operands, input.shape, lambda: nn.LayerNorm.forward(self, input))


class TunedRMSNorm(Tuned, nn.RMSNorm):  # type: ignore[misc]
    """Part ``rms_norm``."""

    SETTINGS = ("normalized_shape", "eps")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plan = self.plan("rms_norm", x, self.weight)
        if plan is None or (x.dim() > 3 and self.are_channels_last(x)):
            return super().forward(x)
        return self.called(plan, [x, self.weight], x.shape, lambda: nn.RMSNorm.forward(self, x))


class TunedSoftmax(Tuned, nn.Softmax):  # type: ignore[misc]
    """Part ``softmax``: over the last axis."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("softmax", input)
        if plan is None or self.dim not in (-1, input.dim() - 1):
            return super().forward(input)
        return self.called(plan, [input], input.shape, lambda: nn.Softmax.forward(self, input))


class TunedConv2d(Tuned, nn.Conv2d):  # type: ignore[misc]
    """Part ``conv2d``: of zeros around the image, and the same stride, padding and dilation along both axes."""

    SETTINGS = ("stride", "padding", "dilation", "groups", "padding_mode")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        plan = self.plan("conv2d", input, self.weight, self.bias)
        if plan is None or self.are_channels_last(input, self.weight):
            return super().forward(input)
        operands = [input, self.weight] + ([] if self.bias is None else [self.bias])
        sizes = [input.shape[0], self.out_channels, *self._image(input.shape[2:])]
        return self.called(plan, operands, sizes, lambda: nn.Conv2d.forward(self, input))

    def _image(self, sizes: Sequence[int]) -> list[int]:
        """The output's height and width, of the input's."""
        return [
            (size + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel_size[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis, size in enumerate(sizes)
        ]


class TunedMultiheadAttention(Tuned, nn.MultiheadAttention):  # type: ignore[misc]
    """Self-attention without masks. Parts ``in_proj``, ``attention``, ``out_proj``, each with PyTorch's own in its
    place where it has no library."""

    SETTINGS = ("num_heads", "head_dim")

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> Any:  # fmt: skip
        is_plain = query is key and key is value and self.in_proj_weight is not None
        is_plain = is_plain and key_padding_mask is None and attn_mask is None and not is_causal
        is_plain = is_plain and self.bias_k is None and not self.add_zero_attn and not need_weights
        is_plain = is_plain and not (self.training and self.dropout)
        is_plain = is_plain and not self._must_be_pytorchs(query)
        if not is_plain or query.dim() != 3 or query.shape[-1] != self.embed_dim:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        # The results of PyTorch's fast path lie batch by batch, all others word by word.
        in_batches = self.batch_first and self._has_fast_path()
        mixed = self._mixed(query if self.batch_first else query.transpose(0, 1))
        out = linear(
            self, "out_proj", mixed if in_batches else mixed.transpose(0, 1).contiguous(),
            self.out_proj.weight, self.out_proj.bias,
        )  # fmt: skip
        return (out.transpose(0, 1) if self.batch_first and not in_batches else out), None

    def _must_be_pytorchs(self, query: torch.Tensor) -> bool:
        return self.must_be_pytorchs(
            query, self.in_proj_weight, self.in_proj_bias, self.out_proj.weight, self.out_proj.bias
        )

    def _has_fast_path(self) -> bool:
        is_set = self.in_proj_bias is not None and self.out_proj.bias is not None
        return is_set and not self.training and self.num_heads % 2 == 0 and torch.backends.mha.get_fastpath_enabled()

    def _mixed(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [b, s, e] to the heads' results side by side, [b, s, e]."""
        batch, length, size = x.shape
        joined = linear(self, "in_proj", x, self.in_proj_weight, self.in_proj_bias)
        heads = joined.view(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        plan, own = self.plan("attention", q, k, v), functools.partial(functional.scaled_dot_product_attention, q, k, v)
        mixed = own() if plan is None else self.called(plan, [q, k, v], q.shape, own)
        return mixed.transpose(1, 2).reshape(batch, length, size)


class TunedEncoderLayer(Tuned, nn.TransformerEncoderLayer):  # type: ignore[misc]
    """No library of its own: its modules have some, and PyTorch's fast path computes the layer past them."""

    def forward(
        self, src: torch.Tensor, src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None, is_causal: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        masks = [mask for mask in (src_mask, src_key_padding_mask) if mask is not None]
        is_plain = not self.training and src.dim() == 3 and not is_causal
        is_plain = is_plain and not self.must_be_pytorchs(src, *masks) and not self._is_turned(src)
        if not is_plain or self._may_hide_a_row(masks):
            return super().forward(src, src_mask, src_key_padding_mask, is_causal)
        attend = functools.partial(self._sa_block, attn_mask=src_mask, key_padding_mask=src_key_padding_mask)
        if self.norm_first:
            x = src + attend(self.norm1(src))
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(src + attend(src))
        return self.norm2(x + self._ff_block(x))

    def _is_turned(self, src: torch.Tensor) -> bool:
        is_turned = not src.is_contiguous()
        if is_turned:
            self.say(LAYOUT)
        return is_turned

    def _may_hide_a_row(self, masks: Sequence[torch.Tensor]) -> bool:
        """Whether a word may have none to attend to: there PyTorch's fast path gives other values than its modules."""
        if not masks:
            return False
        is_known = len(masks) == 1 and masks[0].dtype is torch.bool and not torch.compiler.is_compiling()
        if is_known and not masks[0].all(-1).any():
            return False
        self.say(MASKED)
        return True
