"""Words one after the other: prompts and single words are two graphs, whatever the length of what came before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import shapewright as sw
from tests.shapewright.torch.idioms import HEADS, WIDTH, WORDS
from tests.shapewright.torch.replacing import Replacing, same
from tests.shares import chosen
from tuner.errors import InvalidInput

LONGEST, STEPS = 24, 3


class Growing:
    """Keys and values that get longer with each word, as transformers' DynamicCache."""

    def __init__(self, batch: int) -> None:
        self.keys = self.values = torch.empty(batch, HEADS, 0, WIDTH // HEADS)

    def update(self, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = torch.cat((self.keys, k), dim=-2), torch.cat((self.values, v), dim=-2)
        return self.keys, self.values


class Fixed:
    """Room for all keys and values, written in place, as transformers' StaticCache."""

    def __init__(self, batch: int) -> None:
        self.keys, self.values = (torch.zeros(batch, HEADS, LONGEST, WIDTH // HEADS) for _ in range(2))

    def update(self, k: torch.Tensor, v: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        return self.keys, self.values


class Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, places: torch.Tensor, cache: Growing | Fixed) -> torch.Tensor:
        x = self.words(words)
        y = self.norm(x)
        shape = (*words.shape, HEADS, WIDTH // HEADS)
        q, k, v = (each(y).view(shape).transpose(1, 2) for each in (self.q, self.k, self.v))
        keys, values = cache.update(k, v, places)
        seen = torch.arange(keys.shape[2])[None, :] <= places[:, None]
        mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, None])
        return self.head(x + self.o(mixed.transpose(1, 2).reshape(x.shape)))[:, -1]


def decoded(model: Callable[..., torch.Tensor], prompt: torch.Tensor, cache: Growing | Fixed) -> torch.Tensor:
    """The scores of each next word, [steps, batch, words]."""
    words, places, scores = prompt, torch.arange(prompt.shape[1]), []
    for _ in range(STEPS):
        scores.append(model(words, places, cache))
        words, places = scores[-1].argmax(-1, keepdim=True), places[-1:] + 1
    return torch.stack(scores)


@pytest.mark.parametrize("kind", chosen([Growing], [Growing, Fixed]))
def test_prompts_and_single_words_are_two_graphs_that_libraries_compute(
    kind: type[Growing | Fixed], replacing: Replacing
) -> None:
    model = Decoder().eval().requires_grad_(False)
    fast = replacing.compiled(model)
    graphs = []
    for length in (7, 3):
        prompt = torch.randint(0, WORDS, (2, length))
        same(decoded(fast, prompt, kind(2)), decoded(model, prompt, kind(2)))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[-1] == graphs[0], "nothing is compiled anew as lengths grow"
    assert replacing.report.share == 1.0, str(replacing.report)
    attention = [each for each in replacing.report.replaced if "attention" in each.workload]
    assert len(attention) == 2, str(replacing.report)


def test_what_a_compiled_model_lacks_becomes_search_tasks(tmp_path: Path) -> None:
    report = sw.torch.Report()
    options = {"rest": "eager", "report": report, "source": tmp_path}
    fast = torch.compile(Decoder().eval().requires_grad_(False), backend="shapewright", dynamic=True, options=options)
    decoded(fast, torch.randint(0, WORDS, (2, 7)), Growing(2))
    with pytest.raises(InvalidInput, match="how large it may be"):
        report.tasks({})
    symbols = frozenset().union(*(each.workload.variables for each in report.kept if each.workload))
    tasks = report.tasks(dict.fromkeys(symbols, range(1, 33)), threads=1)
    assert {task.workload.key for task in tasks} == {each.workload.key for each in report.kept if each.workload}
    assert sum(task.count for task in tasks) >= 10
    job = tasks.job({"trials": 0})
    assert set(job["shape_vars"]) == symbols
