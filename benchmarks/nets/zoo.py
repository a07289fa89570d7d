"""The models of ``benchmarks.models`` (suites/models.yaml), with random weights: nothing is downloaded.

BERT and ResNet are written here, in plain PyTorch; others are transformers' and torchvision's own (the extra ``zoo``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.nn import functional

from benchmarks.nets.architectures import of_torchvision, of_transformers

FILE = Path(__file__).parents[1] / "suites" / "models.yaml"
SEED = 0


@dataclass(frozen=True)
class Zoo:
    """A model and what it is called with.

    ``inputs``: of a batch and a length; ``lengths``: the sizes of the dynamic dim, which is the batch of models of
    images (axis 0) and the length of others (axis 1); ``batches`` those that it is timed with; ``package`` what it
    comes from, where it is not written here.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]
    lengths: range
    batches: Sequence[int]
    axis: int
    package: str | None


def build(name: str) -> nn.Module:
    """The model of that name in inference mode, with the same weights in every process."""
    torch.manual_seed(SEED)
    return MODELS[name].make().eval().requires_grad_(False)


def dynamic_axes(name: str) -> tuple[tuple[torch.Tensor, ...], dict[int, Any]]:
    """Inputs to export a model with, and which axes of the first are dynamic."""
    zoo = MODELS[name]
    dims = {zoo.axis: torch.export.Dim("length", min=zoo.lengths.start, max=zoo.lengths[-1])}
    if len(zoo.batches) > 1:
        dims[0] = torch.export.Dim("batch", min=1, max=max(zoo.batches))
    # Sizes of 1 would be taken for constants.
    return zoo.inputs(max(zoo.batches), 5), dims


# -- BERT -------------------------------------------------------------------------------
class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            each(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.first, self.second = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: int, width: int, heads: int, inner: int, words: int = 30522, places: int = 512) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (words, places, 2))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(words.shape[1]).unsqueeze(0)
        x = self.norm(self.words(words) + self.places(places) + self.kinds(torch.zeros_like(words)))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


# -- ResNet ---------------------------------------------------------------------------------------------
class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if stride != 1 or before != after else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return functional.relu(y + (x if self.short is None else self.norms[2](self.short(x))))


class ResNet(nn.Module):  # type: ignore[misc]
    def __init__(self, widths: Sequence[int], blocks: int, classes: int = 1000) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        sizes = [widths[0], *(width for width in widths for _ in range(blocks))]
        strides = [2 if at and not at % blocks else 1 for at in range(len(sizes) - 1)]
        self.blocks = nn.ModuleList(map(Residual, sizes[:-1], sizes[1:], strides))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(images))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


# -- by name --------------------------------------------------------------------------------------------------------
def _read(told: Mapping[str, Any]) -> Zoo:
    package, kind, words, size = told.get("package"), told["from"], told.get("words"), told.get("image")
    make = {
        None: lambda: HERE[kind](*told["args"]),
        "transformers": lambda: of_transformers(kind, told.get("config", {}), "input_ids" if words else "pixel_values"),
        "torchvision": lambda: of_torchvision(kind),
    }[package]

    def inputs(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        # Of models of images the batch is what is dynamic: a length is a number of images.
        return (torch.randint(0, words, (batch, length)) if words else torch.randn(length, 3, size, size),)

    return Zoo(make, inputs, range(1, told["lengths"] + 1), told.get("batches", [1]), 1 if words else 0, package)


HERE: Mapping[str, type[nn.Module]] = {each.__name__: each for each in (Bert, ResNet)}
MODELS: Mapping[str, Zoo] = {name: _read(told) for name, told in yaml.safe_load(FILE.read_text()).items()}
