"""Small models of PyTorch, with random weights, and what they compute."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, INNER, CLASSES, WORDS = 32, 2, 64, 7, 50


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            each(x).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Encoder(nn.Module):  # type: ignore[misc]
    """A layer of BERT's kind on words, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(WORDS, WIDTH), Attention()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        x = self.first(x + self.attention(x))
        x = self.second(x + self.down(functional.gelu(self.up(x))))
        return functional.softmax(self.head(x), -1)


class Layers(nn.Module):  # type: ignore[misc]
    """Every kind of module that ``optimize`` swaps, but for the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, activation="gelu", batch_first=True, dropout=0.0)
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head, self.softmax = nn.Linear(WIDTH, CLASSES), nn.Softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.softmax(self.head(self.norm(self.layer(x))))


def words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (batch, length))


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-5))


def call_at_once(model: Encoder, fast: Any) -> None:
    """Four threads call both, each in sizes of its own: results are equal."""
    wrong: list[Any] = []

    def call(batch: int) -> None:
        try:
            with torch.no_grad():
                for length in (3, 9, 5):
                    ids = words(batch, length)
                    wrong.extend([] if close(fast(ids), model(ids)) else [ids.shape])
        except Exception as error:
            wrong.append(error)

    some = [threading.Thread(target=call, args=(batch,)) for batch in (2, 3, 4, 5)]
    for each in some:
        each.start()
    for each in some:
        each.join(timeout=120)
    assert not wrong
