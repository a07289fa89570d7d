"""Small models written as well-known ones are: what they spell out, write in place, and mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, INNER, WORDS = 32, 2, 48, 50


@dataclass(frozen=True)
class Idiom:
    """A model, its inputs for a batch and a length, and by input the axes that are ``batch`` and ``length``."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[torch.Tensor, ...]]
    dims: tuple[Mapping[int, str], ...]


def build(name: str) -> nn.Module:
    """In inference mode; no bias is zero, which an exporter would drop."""
    torch.manual_seed(0)
    model = IDIOMS[name].make().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


def _positions(mask: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """What each word sees, [batch, 1, words, words]: made of positions, as models do that know no lengths."""
    places = torch.arange(mask.shape[1], device=mask.device)
    seen = (places[None, :] <= places[:, None]) if is_causal else (places[:, None] >= 0)
    return (seen[None, None] & mask.bool()[:, None, None, :]).expand(mask.shape[0], -1, mask.shape[1], -1)


class NewGelu(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Decoder(nn.Module):  # type: ignore[misc]
    """GPT-2: one product for queries, keys and values, its own gelu, a causal mask beside that of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joined, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.gelu, self.down = nn.Linear(WIDTH, INNER), NewGelu(), nn.Linear(INNER, WIDTH)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        q, k, v = (_heads(each, HEADS) for each in self.joined(self.first(x)).split(WIDTH, dim=2))
        seen = _positions(mask, is_causal=True)
        x = x + self.out(_mixed(functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)))
        return x + self.down(self.gelu(self.up(self.second(x))))


class RmsNorm(nn.Module):  # type: ignore[misc]
    """LLaMA's and T5's, which computes in float32 and keeps its epsilon."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class Rotary(nn.Module):  # type: ignore[misc]
    """LLaMA: turned queries and keys, keys that several heads share, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(WORDS, WIDTH), RmsNorm(), RmsNorm()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down, self.scaling = nn.Linear(INNER, WIDTH, bias=False), 1.0
        size = WIDTH // HEADS
        self.register_buffer("rates", 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, places = self.words(words), torch.arange(words.shape[1])[None].float()
        angles = places[:, :, None] * self.rates
        both = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = ((each * self.scaling).to(x.dtype) for each in (both.cos(), both.sin()))
        y = self.first(x)
        q, k, v = _heads(self.q(y), HEADS), _heads(self.k(y), 1), _heads(self.v(y), 1)
        q, k = (each * cos + _half_turned(each) * sin for each in (q, k))
        k, v = (_repeated(each, HEADS) for each in (k, v))
        x = x + self.o(_mixed(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _half_turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    batch, heads, length, size = x.shape
    return x[:, :, None, :, :].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


class Relative(nn.Module):  # type: ignore[misc]
    """T5: scores without a scale, to which a bias of distances is added in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.distances = nn.Embedding(WORDS, WIDTH), RmsNorm(), nn.Embedding(8, HEADS)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, places = self.words(words), torch.arange(words.shape[1])
        y = self.norm(x)
        q, k, v = (_heads(each(y), HEADS) for each in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        bias = self.distances((places[None, :] - places[:, None]).abs().clamp(max=7)).permute(2, 0, 1)[None]
        scores += bias
        weights = functional.softmax(scores.float(), dim=-1).type_as(scores)
        return x + self.o(_mixed(torch.matmul(weights, v)))


class Unmasked(nn.Module):  # type: ignore[misc]
    """BERT without a mask, of which exporting makes one that hides nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        q, k, v = (_heads(each(x), HEADS) for each in (self.q, self.k, self.v))
        seen = None
        if torch.compiler.is_exporting():
            seen = _positions(torch.ones_like(words, dtype=torch.bool), is_causal=False)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.norm(self.o(_mixed(mixed)) + x)


class Residual(nn.Module):  # type: ignore[misc]
    """ResNet: activations and sums in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(*sizes, 3, padding=1, bias=False) for sizes in ((3, 16), (16, 16)))
        self.norms, self.relu = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3)), nn.ReLU(inplace=True)
        self.short, self.head = nn.Conv2d(3, 16, 1, bias=False), nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norms[1](self.second(self.relu(self.norms[0](self.first(images)))))
        x += self.norms[2](self.short(images))
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(self.relu(x), (1, 1)), 1))


class Squeezed(nn.Module):  # type: ignore[misc]
    """EfficientNet: convolutions of single channels, and a gate of the means of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.deep = nn.Conv2d(8, 16, 1, bias=False), nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False)
        self.norms, self.silu = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2)), nn.SiLU(inplace=True)
        self.less, self.more, self.project = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1), nn.Conv2d(16, 8, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.silu(self.norms[0](self.expand(images)))
        x = self.silu(self.norms[1](self.deep(x)))
        gate = torch.sigmoid(self.more(self.silu(self.less(functional.adaptive_avg_pool2d(x, 1)))))
        return self.project(gate * x) + images


class Scaled(nn.Module):  # type: ignore[misc]
    """ConvNeXt: a wide convolution of single channels, then rows of channels, scaled by a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16, eps=1e-6)
        self.up, self.down, self.scale = nn.Linear(16, 64), nn.Linear(64, 16), nn.Parameter(torch.full((16, 1, 1), 0.1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.deep(images).permute(0, 2, 3, 1))
        x = self.down(functional.gelu(self.up(x)))
        return images + self.scale * x.permute(0, 3, 1, 2)


class Shifted(nn.Module):  # type: ignore[misc]
    """Swin: windows that are rolled, and a mask that is written part by part."""

    def __init__(self) -> None:
        super().__init__()
        self.joined, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        batch, size, _, width = images.shape
        x = torch.roll(self.norm(images), shifts=(-1, -1), dims=(1, 2))
        x = x.view(batch, size // 4, 4, size // 4, 4, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, width)
        q, k, v = self.joined(x).reshape(x.shape[0], 16, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.zeros(16, 16, dtype=images.dtype)
        mask[:8, 8:] = -100.0
        mask[8:, :8] = -100.0
        q = q * (width // 2) ** -0.5
        weights = functional.softmax(q.matmul(k.transpose(-2, -1)) + mask, dim=-1)
        x = self.out(weights.matmul(v).transpose(1, 2).reshape(x.shape[0], 16, width))
        x = x.view(batch, size // 4, size // 4, 4, 4, width).permute(0, 1, 3, 2, 4, 5).reshape(images.shape)
        return images + torch.roll(x, shifts=(1, 1), dims=(1, 2))


class Encoder(nn.Module):  # type: ignore[misc]
    """PyTorch's own layer, whose fast path is one operator."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, src_key_padding_mask=hidden)


def _words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (batch, length))


def _seen(batch: int, length: int) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    return mask


TEXT: Mapping[int, str] = {0: "batch", 1: "length"}
IMAGES: tuple[Mapping[int, str], ...] = ({0: "batch"},)
IDIOMS: Mapping[str, Idiom] = {
    "decoder": Idiom(Decoder, lambda b, s: (_words(b, s), _seen(b, s)), (TEXT, TEXT)),
    "rotary": Idiom(Rotary, lambda b, s: (_words(b, s),), (TEXT,)),
    "relative": Idiom(Relative, lambda b, s: (_words(b, s),), (TEXT,)),
    "unmasked": Idiom(Unmasked, lambda b, s: (_words(b, s),), (TEXT,)),
    "residual": Idiom(Residual, lambda b, _: (torch.randn(b, 3, 12, 12),), IMAGES),
    "squeezed": Idiom(Squeezed, lambda b, _: (torch.randn(b, 8, 10, 10),), IMAGES),
    "scaled": Idiom(Scaled, lambda b, _: (torch.randn(b, 16, 9, 9),), IMAGES),
    "shifted": Idiom(Shifted, lambda b, _: (torch.randn(b, 8, 8, 16),), IMAGES),
    "encoder": Idiom(Encoder, lambda b, s: (torch.randn(b, s, WIDTH), _seen(b, s) == 0), (TEXT, TEXT)),
}


def exported(name: str) -> Any:
    """The arguments of ``torch.export`` beside the model."""
    idiom = IDIOMS[name]
    dims = {"batch": torch.export.Dim("batch", min=1, max=32), "length": torch.export.Dim("length", min=1, max=32)}
    return idiom.inputs(3, 7), tuple({axis: dims[called] for axis, called in axes.items()} for axes in idiom.dims)
