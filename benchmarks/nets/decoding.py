"""A step of a decoder of LLaMA's form in plain PyTorch: one word, and the keys and values of those before it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

BASE, EPS = 10_000.0, 1e-5


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.is_grouped, kept = width // heads, groups != heads, width // heads * groups
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, kept, bias=False) for _ in range(2))

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
    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, groups)
        self.first, self.second = nn.RMSNorm(width, EPS), nn.RMSNorm(width, EPS)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self, x: torch.Tensor, past: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mixed, new = self.attention(self.first(x), past, turn)
        x = x + mixed
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), new


class Step(nn.Module):  # type: ignore[misc]
    """``word`` [batch, 1] and ``past`` [layers, 2, batch, groups, length, size] to the logits of the next word, and the
    keys and values of this one, which the caller keeps."""

    def __init__(self, words: int, width: int, layers: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(words, width), nn.RMSNorm(width, EPS)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
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
