"""Well-known architectures (suites/architectures.yaml), with random weights: nothing is downloaded.

They are those of transformers, torchvision and timm (the extra ``zoo``). What they compute, and how it is written, is
theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

FILE = Path(__file__).parents[1] / "suites" / "architectures.yaml"
WORDS, WIDTH = 1000, 256
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Architecture:
    """``make``: the model. ``inputs``: of a batch and a length. ``axes``: by input which axes are dynamic."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    axes: Sequence[Sequence[int]]


def build(name: str) -> nn.Module:
    """A model in inference mode. No vector is zero as a whole: exporters drop such biases."""
    torch.manual_seed(0)
    model = ARCHITECTURES[name].make().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1 and parameter.is_floating_point():
            parameter.add_(0.05 * torch.rand_like(parameter))
    return model


class First(nn.Module):  # type: ignore[misc]
    """The first output of a model of transformers, its inputs by place."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, first: torch.Tensor, second: torch.Tensor | None = None) -> Any:
        # Named one by one: exporters ask for the dynamic axes of starred inputs in another form.
        inputs = (first,) if second is None else (first, second)
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def of_transformers(model: str, config: Mapping[str, Any], *names: str, part: str = "") -> nn.Module:
    """A model by its class's name; ``names`` of its inputs, ``part`` of it that is meant."""
    import transformers  # noqa: PLC0415 - the extra zoo

    kind = getattr(transformers, model)
    settings = kind.config_class(**config)
    settings.use_cache = False
    made = kind(settings)
    return First(getattr(made, part) if part else made, names)


def of_torchvision(name: str) -> nn.Module:
    import torchvision  # noqa: PLC0415

    return getattr(torchvision.models, name)(weights=None)


def _made(told: Mapping[str, Any], name: str) -> nn.Module:
    match told["from"]:
        case "torch":
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 512, batch_first=True)
            return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        case "torchvision":
            return of_torchvision(name.split()[1])
        case "timm":
            import timm  # noqa: PLC0415

            return timm.create_model(name.split()[1], pretrained=False)
        case model:
            return of_transformers(model, told["config"], *INPUTS[told["inputs"]][0], part=told.get("part", ""))


# -- inputs ---------------------------------------------------------------------------------------------------------
def _words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length))


def _masked(batch: int, length: int) -> Inputs:
    """Words, and which of them count: the first sample is shorter."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    return _words(batch, length), mask


def _images(size: int, batch: int, _: int) -> Inputs:
    return (torch.randn(batch, 3, size, size),)


INPUTS: Mapping[str, tuple[Sequence[str], Callable[[int, int], Inputs], Sequence[Sequence[int]]]] = {
    "masked": (("input_ids", "attention_mask"), _masked, ((0, 1), (0, 1))),
    "words": (("input_ids",), lambda b, s: (_words(b, s),), ((0, 1),)),
    "two texts": (("input_ids", "decoder_input_ids"), lambda b, s: (_words(b, s), _words(b, s)), ((0, 1), (0, 1))),
    "spectrum": (("input_features",), lambda b, _: (torch.randn(b, 80, 128),), ((0,),)),
    "wave": (("input_values",), lambda b, _: (torch.randn(b, 4000),), ((0,),)),
    "images 64": (("pixel_values",), partial(_images, 64), ((0,),)),
    "images 224": (("pixel_values",), partial(_images, 224), ((0,),)),
    "vectors": ((), lambda b, s: (torch.randn(b, s, WIDTH),), ((0, 1),)),
}
"""The names of inputs, what they are for a batch and a length, and which of their axes are dynamic."""
ARCHITECTURES: Mapping[str, Architecture] = {
    name: Architecture(partial(_made, told, name), *INPUTS[told["inputs"]][1:])
    for name, told in yaml.safe_load(FILE.read_text())["architectures"].items()
}
