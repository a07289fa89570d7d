"""Well-known architectures from their configurations, with random weights: nothing is downloaded.

They are those of transformers, torchvision and timm (the extra ``zoo``), with fewer and narrower layers than published
ones have; models of images are whole. What they compute, and how it is written, is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

WORDS, WIDTH, INNER, LAYERS, HEADS, LONGEST = 1000, 256, 512, 2, 4, 512
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

    made: nn.Module = getattr(torchvision.models, name)(weights=None)
    return made


def _timm(name: str) -> nn.Module:
    import timm  # noqa: PLC0415

    made: nn.Module = timm.create_model(name, pretrained=False)
    return made


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


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


# -- by name --------------------------------------------------------------------------------------------------------
_ENCODER = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "max_position_embeddings": LONGEST, "pad_token_id": 0,
}  # fmt: skip
_DECODER = {**_ENCODER, "num_key_value_heads": HEADS // 2}
_GPT2 = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST}
_T5 = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 64, "d_ff": INNER, "num_layers": LAYERS, "num_heads": HEADS}
_IMAGES = {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
_WHISPER = {
    "vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER, "max_source_positions": 64, "pad_token_id": 0,
}  # fmt: skip
_TEXTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "llama": ("LlamaForCausalLM", _DECODER),
    "mistral": ("MistralForCausalLM", _DECODER),
    "qwen3": ("Qwen3ForCausalLM", {**_DECODER, "head_dim": 64}),
    "gemma2": ("Gemma2ForCausalLM", {**_DECODER, "head_dim": 64}),
    "phi3": ("Phi3ForCausalLM", _DECODER),
    "mixtral": ("MixtralForCausalLM", {**_DECODER, "num_local_experts": 4}),
    "opt": ("OPTForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "ffn_dim": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": LONGEST, "word_embed_proj_dim": WIDTH,
    }),
    "gpt-neox": ("GPTNeoXForCausalLM", _ENCODER),
    "bloom": ("BloomForCausalLM", {"vocab_size": WORDS, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}),
    "falcon": ("FalconForCausalLM", {
        "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    }),
    "t5-encoder": ("T5EncoderModel", _T5),
    "bert": ("BertModel", _ENCODER),
    "distilbert": ("DistilBertModel", {
        "vocab_size": WORDS, "dim": WIDTH, "hidden_dim": INNER, "n_layers": LAYERS, "n_heads": HEADS,
    }),
    "roberta": ("RobertaModel", _ENCODER),
    "albert": ("AlbertModel", {**_ENCODER, "embedding_size": 64}),
    "deberta-v2": ("DebertaV2Model", {
        **_ENCODER, "relative_attention": True, "position_buckets": 32, "pos_att_type": ["p2c", "c2p"],
    }),
    "clip-text": ("CLIPTextModel", _ENCODER),
}  # fmt: skip
"""Models of words and a mask of those that count: the class, and its configuration."""
_PICTURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "vit": ("ViTModel", _IMAGES),
    "dinov2": ("Dinov2Model", {**_IMAGES, "mlp_ratio": 2}),
}
_TORCHVISION = {
    **dict.fromkeys(("resnet50", "efficientnet_b0", "convnext_tiny", "mobilenet_v3_large", "regnet_y_400mf"), 64),
    **dict.fromkeys(("swin_t", "vit_b_16"), 224),
}
_TIMM = ("resnet18", "mixer_s16_224", "deit_tiny_patch16_224", "convnextv2_atto")

ARCHITECTURES: Mapping[str, Architecture] = {
    **{
        name: Architecture(
            partial(of_transformers, model, config, "input_ids", "attention_mask"), _masked, ((0, 1), (0, 1))
        )
        for name, (model, config) in _TEXTS.items()
    },
    "bert-unmasked": Architecture(
        partial(of_transformers, "BertModel", _ENCODER, "input_ids"), lambda b, s: (_words(b, s),), ((0, 1),)
    ),
    "t5": Architecture(
        partial(of_transformers, "T5Model", _T5, "input_ids", "decoder_input_ids"),
        lambda b, s: (_words(b, s), _words(b, s)), ((0, 1), (0, 1)),
    ),
    "whisper-encoder": Architecture(
        partial(of_transformers, "WhisperModel", _WHISPER, "input_features", part="encoder"),
        lambda b, _: (torch.randn(b, 80, 128),), ((0,),),
    ),
    "wav2vec2": Architecture(
        partial(of_transformers, "Wav2Vec2Model", {k: v for k, v in _ENCODER.items() if k != "max_position_embeddings"},
                "input_values"),
        lambda b, _: (torch.randn(b, 4000),), ((0,),),
    ),
    **{
        name: Architecture(partial(of_transformers, model, config, "pixel_values"), partial(_images, 64), ((0,),))
        for name, (model, config) in _PICTURES.items()
    },
    **{
        f"torchvision {name}": Architecture(partial(of_torchvision, name), partial(_images, size), ((0,),))
        for name, size in _TORCHVISION.items()
    },
    **{f"timm {name}": Architecture(partial(_timm, name), partial(_images, 224), ((0,),)) for name in _TIMM},
    "nn.TransformerEncoder": Architecture(_encoder, lambda b, s: (torch.randn(b, s, WIDTH),), ((0, 1),)),
}  # fmt: skip
