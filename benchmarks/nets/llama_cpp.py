"""llama.cpp as a rival of a decoder's step: the model in a file of GGUF, with its weights in BF16, or in Q4_0 where
they are numbers of four bits with a scale for each 32. It keeps keys and values of its own, which it does not copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.nets.decoding import BASE, EPS, GROUP, FourBits, Step

LLAMA_CPP = "llama_cpp"
PACKAGES = (LLAMA_CPP, "gguf")
MOST_WORDS = 2048
"""Before a step, and the step's."""


def decoder(model: Step, folder: Path, threads: int) -> Callable[..., Sequence[Any]]:
    """From the word and the keys and values before it, of which the length counts alone, to the logits. Results are
    those of other keys and values, and of rotary embeddings of neighbouring columns."""
    import llama_cpp  # noqa: PLC0415 - of the extra ``rivals``

    _write(model, file := folder / "model.gguf")
    made = llama_cpp.Llama(
        str(file),
        n_ctx=MOST_WORDS,
        n_threads=threads,
        n_threads_batch=threads,
        use_mmap=False,
        flash_attn=True,
        verbose=False,
    )
    filled = -1

    def step(word: NDArray[Any], past: NDArray[Any]) -> Sequence[Any]:
        nonlocal filled
        length = past.shape[4]
        if length != filled:
            made.reset()
            made.eval([1] * length)
            filled = length
        # What was evaluated behind these words is forgotten.
        made.n_tokens = length
        made.eval([int(word[0, 0])])
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(made.ctx), shape=(model.words.num_embeddings,))
        return (logits,)

    return step


def _write(model: Step, file: Path) -> None:
    import gguf  # noqa: PLC0415 - of the extra ``rivals``

    layers, width = list(model.layers), model.words.embedding_dim
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(model.words.num_embeddings)
    writer.add_context_length(MOST_WORDS)
    writer.add_embedding_length(width)
    writer.add_block_count(len(layers))
    writer.add_feed_forward_length(layers[0].inner)
    writer.add_head_count(width // model.size)
    writer.add_head_count_kv(layers[0].attention.kept // model.size)
    writer.add_rope_dimension_count(model.size)
    writer.add_rope_freq_base(BASE)
    writer.add_layer_norm_rms_eps(EPS)

    def norm(name: str, given: nn.Module) -> None:
        writer.add_tensor(f"{name}.weight", given.weight.detach().float().numpy())

    def product(name: str, given: nn.Module) -> None:
        if isinstance(given, FourBits):
            writer.add_tensor(f"{name}.weight", blocks(given), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
            return
        bits = given.weight.detach().bfloat16().view(torch.uint8).numpy()
        writer.add_tensor(f"{name}.weight", bits, raw_dtype=gguf.GGMLQuantizationType.BF16)

    product("token_embd", model.words)
    norm("output_norm", model.norm)
    product("output", model.head)
    for number, layer in enumerate(layers):
        of = f"blk.{number}"
        norm(f"{of}.attn_norm", layer.first)
        norm(f"{of}.ffn_norm", layer.second)
        for name, each in zip("qkv", (layer.attention.q, layer.attention.k, layer.attention.v), strict=True):
            product(f"{of}.attn_{name}", each)
        product(f"{of}.attn_output", layer.attention.o)
        for name, each in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
            product(f"{of}.ffn_{name}", each)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


def blocks(layer: FourBits) -> NDArray[np.uint8]:
    """A layer's weights as Q4_0 has them: the scale of 32 numbers as a float16, then these, the first half of them in
    the lower bits of 16 bytes."""
    numbers = layer.numbers().unflatten(-1, (-1, GROUP)).numpy()
    scales = layer.scale.detach().half().numpy()[..., None].view(np.uint8)
    packed = numbers[..., : GROUP // 2] | numbers[..., GROUP // 2 :] << 4
    return np.concatenate([scales, packed], -1).reshape(len(numbers), -1)
