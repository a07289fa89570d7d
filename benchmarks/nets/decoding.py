"""A step of a decoder of LLaMA's form in plain PyTorch: one word, and the keys and values of those before it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

BASE, EPS, GROUP = 10_000.0, 1e-5, 32
Linear = Callable[[int, int], nn.Module]


class FourBits(nn.Module):  # type: ignore[misc]
    """A layer with weights of four bits, two in a byte, and a scale for each GROUP of them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8))
        self.register_buffer("scale", 0.4 * torch.rand(outputs, inputs // GROUP) / inputs**0.5)

    def numbers(self) -> torch.Tensor:
        return torch.stack((self.weight & 15, self.weight >> 4), -1).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = self.numbers().unflatten(-1, (-1, GROUP)).to(x.dtype) - 8
        return functional.linear(x, (grouped * self.scale.unsqueeze(-1)).flatten(-2))


class PyTorchsFourBits(nn.Module):  # type: ignore[misc]
    """The same by PyTorch's own kernel."""

    def __init__(self, layer: FourBits) -> None:
        super().__init__()
        self.weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(layer.numbers().int(), 2)
        scale = layer.scale.t().contiguous()
        self.scale = torch.stack((scale, torch.zeros_like(scale)), -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.ops.aten._weight_int4pack_mm_for_cpu(x.flatten(0, -2), self.weight, GROUP, self.scale)
        return rows.unflatten(0, x.shape[:-1])


def with_pytorchs_kernels(model: nn.Module) -> nn.Module:
    """The model with PyTorch's own layers in the place of FourBits."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, FourBits):
                setattr(parent, name, PyTorchsFourBits(layer))
    return model


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, linear: Linear, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.is_grouped, self.kept = width // heads, groups != heads, width // heads * groups
        self.q, self.o = (linear(width, width) for _ in range(2))
        self.k, self.v = (linear(width, self.kept) for _ in range(2))

    def forward(
        self, x: torch.Tensor, past: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (each(x).unflatten(2, (-1, self.size)).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = turned(q, *turn), turned(k, *turn)
        keys, values = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        mixed = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=self.is_grouped)
        return self.o(mixed.transpose(1, 2).flatten(2)), torch.stack((k, v))


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, linear: Linear, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(linear, width, heads, groups)
        self.first, self.second = nn.RMSNorm(width, EPS), nn.RMSNorm(width, EPS)
        self.gate, self.up = (linear(width, inner) for _ in range(2))
        self.down, self.inner = linear(inner, width), inner

    def forward(
        self, x: torch.Tensor, past: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mixed, new = self.attention(self.first(x), past, turn)
        x = x + mixed
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), new


class Step(nn.Module):  # type: ignore[misc]
    """``word`` [batch, 1] and ``past`` [layers, 2, batch, groups, length, size] to the logits of the next word, and the
    keys and values of this one, which the caller keeps. ``has_four_bits``: all products have weights of these."""

    def __init__(
        self, words: int, width: int, layers: int, heads: int, groups: int, inner: int, has_four_bits: bool = False
    ) -> None:
        super().__init__()
        linear: Linear = FourBits if has_four_bits else partial(nn.Linear, bias=False)
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width, EPS)
        self.layers = nn.ModuleList(Layer(linear, width, heads, groups, inner) for _ in range(layers))
        self.head = linear(width, words)
        self.size = width // heads

    def forward(self, word: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(word)
        rates = BASE ** (-torch.arange(0, self.size, 2, dtype=torch.float32) / self.size)
        angles = past.shape[4] * torch.cat((rates, rates))
        turn = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        kept = []
        for layer, before in zip(self.layers, past.unbind(), strict=True):
            x, new = layer(x, before, turn)
            kept.append(new)
        return self.head(self.norm(x)), torch.stack(kept)

    def bytes_read(self, past: int) -> int:
        """What a step reads at the least, behind so many words: the weights of its products, and keys and values."""
        layers = [each for each in self.modules() if isinstance(each, FourBits | nn.Linear)]
        weights = sum(each.nbytes for layer in layers for each in (*layer.parameters(False), *layer.buffers(False)))
        kept = sum(2 * layer.attention.kept for layer in self.layers)
        return int(weights + kept * past * self.words.weight.itemsize)
