"""Small models with random weights: an encoder, a decoder block, a convolutional network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = Any


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """As in BERT: attention, residual, norm, two dense layers with gelu, residual, norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, width = x.shape
        q, k, v = (
            layer(x).view(b, s, self.heads, width // self.heads).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, width)
        x = self.first(self.o(mixed) + x)
        return self.second(self.down(functional.gelu(self.up(x))) + x)


class Encoder(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int = 2, width: int = 32, heads: int = 2, words: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids))
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.pooler(x[:, 0]))


class SpelledNorm(nn.Module):  # type: ignore[misc]
    """The mean square norm in elementary operations, as many models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class DecoderBlock(nn.Module):  # type: ignore[misc]
    """As in LLaMA: rotary positions, causal attention, a gated feed-forward layer, no biases."""

    def __init__(self, width: int = 32, heads: int = 2, inner: int = 48) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.first, self.second = SpelledNorm(width), nn.RMSNorm(width, eps=1e-6)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.first(x)
        b, s, _ = x.shape
        q, k, v = (
            layer(h).view(b, s, self.heads, self.width // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = q * cos + _half(q) * sin, k * cos + _half(k) * sin
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, s, self.width))
        h = self.second(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def _half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


class Residual(nn.Module):  # type: ignore[misc]
    """As in ResNet: two convolutions with their norms, and what came in added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm_one, self.norm_two = (nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(self.norm_two(self.two(y)) + x)


class Pictures(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 10)
        for norm in (each for each in self.modules() if isinstance(each, nn.BatchNorm2d)):
            norm.running_mean.uniform_(-0.5, 0.5)
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = functional.relu6(self.depthwise(self.blocks(x)))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
