"""Models (suites/models.yaml) with random weights: nothing is downloaded.

``MODELS`` are timed whole; of ``ARCHITECTURES``, which have fewer and narrower layers, coverage is told. BERT is
written here, in plain PyTorch, and a step of a decoder in nets/decoding.py. Others are those of transformers,
torchvision and timm (the extra ``zoo``): what they compute, and how it is written, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn
from torch.nn import functional

SEED = 0
Inputs = tuple[torch.Tensor, ...]


class Model:
    """A model and what it is called with, as the suite has ``told`` it.

    ``packages``: what it needs beside PyTorch. ``inputs``: by batch and length; ``axes``: which of each are dynamic.
    What is timed has ``lengths``, the sizes of the last of these axes (``axis``: the first one in models of images, of
    which the batch alone is dynamic), and ``batches``; it computes in ``dtype``. So much ``noise`` is added to vectors
    of parameters: exporters drop biases that are zero as a whole.
    """

    def __init__(self, told: Mapping[str, Any], noise: float) -> None:
        kind, size = told["inputs"]
        self._names, inputs, self.axes = INPUTS[kind]
        self._inputs: Callable[[int, int], Inputs] = partial(inputs, size)
        self.dtype = getattr(torch, told.get("dtype", "float32"))
        self.axis, self.packages = self.axes[-1][-1], told["from"].split(".")[:-1][:1]
        self.lengths, self.batches = range(1, told.get("lengths", 1) + 1), told.get("batches", [1])
        self.is_step = kind == "step"
        self._told, self._noise = told, noise

    def build(self, dtype: torch.dtype | None = None) -> nn.Module:
        """In inference mode, with the same weights in every process."""
        torch.manual_seed(SEED)
        model = _made(self._told, self._names).eval().requires_grad_(False).to(dtype or self.dtype)
        for parameter in model.parameters() if self._noise else ():
            if parameter.dim() == 1 and parameter.is_floating_point():
                parameter.add_(self._noise * torch.rand_like(parameter))
        return model

    def inputs(self, batch: int, length: int, dtype: torch.dtype | None = None) -> Inputs:
        made = self._inputs(batch, length)
        return tuple(each.to(dtype or self.dtype) if each.is_floating_point() else each for each in made)

    def example(self, dtype: torch.dtype | None = None) -> tuple[Inputs, tuple[dict[int, Any], ...]]:
        """Inputs to export a model with that is timed, and which of their axes are dynamic."""
        dims = {self.axis: torch.export.Dim("length", min=self.lengths.start, max=self.lengths[-1])}
        if len(self.batches) > 1:
            dims[0] = torch.export.Dim("batch", min=1, max=max(self.batches))
        # Sizes of 1 would be taken for constants.
        return self.inputs(max(self.batches), 5, dtype), tuple(
            {axis: dims[axis] for axis in each if axis in dims} for each in self.axes
        )


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
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(0)
        x = self.norm(self.words(words) + self.places(places) + self.kinds(torch.zeros_like(words)))
        for layer in self.layers:
            x = layer(x)
        return x, torch.tanh(self.pooler(x[:, 0]))


# -- others -----------------------------------------------------------------------------------------------------------
class Convolutions(nn.Module):  # type: ignore[misc]
    """What a ResNet is made of, at a size for tests."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same, self.down, self.short = (
            nn.Sequential(nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after))
            for before, after, size, stride in ((3, 8, 7, 2), (8, 8, 3, 1), (8, 16, 3, 2), (8, 16, 1, 2))
        )
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(images)), 3, 2, 1)
        x = functional.relu(self.down(functional.relu(self.same(x))) + self.short(x))
        return self.head(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class First(nn.Module):  # type: ignore[misc]
    """The first output of a model of transformers, its inputs by place."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> Any:
        # Named one by one: exporters ask for the dynamic axes of starred inputs in another form.
        inputs = (first,) if second is None else (first, second)
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def _made(told: Mapping[str, Any], names: Sequence[str]) -> nn.Module:
    """``names``: those of its inputs."""
    package, _, kind = told["from"].rpartition(".")
    make, config = getattr(import_module(package or __name__), kind), told.get("config", {})
    if package != "transformers":
        return make(**config)
    settings = make.config_class(**config)
    settings.use_cache = False
    model = make(settings)
    return First(getattr(model, told["part"]) if "part" in told else model, names)


# -- inputs -----------------------------------------------------------------------------------------------------------
def _words(words: int, batch: int, length: int) -> Inputs:
    return (torch.randint(3, words, (batch, length)),)


def _masked(words: int, batch: int, length: int) -> Inputs:
    """Words, and which of them count: the first sample is shorter."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    return *_words(words, batch, length), mask


def _step(sizes: Sequence[int], batch: int, length: int) -> Inputs:
    """A word, and the keys and values of ``length`` words before it: [layers, 2, batch, heads, length, width]."""
    words, layers, heads, width = sizes
    return *_words(words, batch, 1), torch.randn(layers, 2, batch, heads, length, width)


INPUTS: Mapping[str, tuple[Sequence[str], Callable[[Any, int, int], Inputs], Sequence[Sequence[int]]]] = {
    "words": (("input_ids",), _words, ((0, 1),)),
    "masked": (("input_ids", "attention_mask"), _masked, ((0, 1), (0, 1))),
    "two texts": (("input_ids", "decoder_input_ids"), lambda *n: _words(*n) + _words(*n), ((0, 1), (0, 1))),
    "spectrum": (("input_features",), lambda n, b, _: (torch.randn(b, 80, n),), ((0,),)),
    "wave": (("input_values",), lambda n, b, _: (torch.randn(b, n),), ((0,),)),
    "images": (("pixel_values",), lambda n, b, _: (torch.randn(b, 3, n, n),), ((0,),)),
    "images by length": (("pixel_values",), lambda n, _, s: (torch.randn(s, 3, n, n),), ((0,),)),
    "step": (("word", "past"), _step, ((), (4,))),
    "vectors": ((), lambda n, b, s: (torch.randn(b, s, n),), ((0, 1),)),
}
"""The names of inputs; what they are, of so many words or pixels, for a batch and a length; their dynamic axes."""


# -- by name ----------------------------------------------------------------------------------------------------------
_SUITE = yaml.safe_load((Path(__file__).parents[1] / "suites" / "models.yaml").read_text())
MODELS: Mapping[str, Model] = {name: Model(told, 0.0) for name, told in _SUITE["models"].items()}
ARCHITECTURES: Mapping[str, Model] = {name: Model(told, 0.05) for name, told in _SUITE["architectures"].items()}
