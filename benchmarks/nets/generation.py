"""Whether decoders of transformers generate the same words with libraries, in how many graphs, and what is replaced."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

import shapewright as sw
from benchmarks.harness.results import Row
from shapewright.download import write
from shapewright.torch.backend import shapewright
from tuner.library.build import build_library
from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.program.job.task import SearchTask
from tuner.program.target import native
from tuner.schedule import default_kernel

CACHES = ("dynamic", "static")
"""Caches of keys and values: one that grows, one that is written in place."""
PROMPTS, WORDS, BATCH, LONGEST = (7, 4, 12), 6, 2, 64
TOLERANCE = 1e-4
"""The tolerance of the scores of words, absolute and relative to the largest."""


def write_libraries(tasks: Iterable[SearchTask], folder: Path) -> None:
    """Libraries of kernels that are right and not fast, for whoever looks at results alone: one for each task, for this
    machine, in a folder of its own."""
    for task in (each.on(native()) for each in tasks):
        library = build_library(Dispatcher(task, (default_kernel(task),), 0, Leaf(0)), None)
        write(library.files, folder / task.workload.key)


def generated(model: Any, cache: str) -> Row:
    """A model that has ``generate``, in inference mode, compiled with libraries of what a first compilation lacks, and
    compared with eager at several lengths of prompts."""
    eager = model.forward
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            first = _compiled(model, eager, cache, folder)
            write_libraries(first.tasks(dict.fromkeys(first.symbols, range(1, LONGEST + 1))), Path(folder))
            report = _compiled(model, eager, cache, folder)
            graphs, fast, worst = counters["stats"]["unique_graphs"], model.forward, 0.0
            for length in PROMPTS:
                prompt = torch.randint(3, int(model.config.vocab_size), (BATCH, length))
                ours = _scores(model, fast, prompt, cache)
                right = _scores(model, eager, prompt, cache)
                bound = TOLERANCE * max(1.0, float(right.abs().max()))
                worst = max(worst, float((ours - right).abs().max()) / bound)
            recompiled = counters["stats"]["unique_graphs"] - graphs
        finally:
            model.forward = eager
    return {
        "share": report.share, "graphs": graphs, "recompiled": recompiled, "worst": worst,
        "right": worst <= 1 and recompiled == 0,
    }  # fmt: skip


def compiled(call: Callable[..., Any], folder: str) -> tuple[Any, sw.torch.Report]:
    """``call`` compiled anew with libraries of ``folder``, and what is said of that once it has been called."""
    torch._dynamo.reset()
    counters.clear()
    report = sw.torch.Report()
    options = {"source": folder, "threads": 1, "rest": "eager", "report": report}
    return torch.compile(call, backend=shapewright, dynamic=True, options=options), report


def _compiled(model: Any, eager: Callable[..., Any], cache: str, folder: str) -> sw.torch.Report:
    """Compile ``model.forward`` for a prompt and the words after it."""
    fast, report = compiled(eager, folder)
    _scores(model, fast, torch.randint(3, int(model.config.vocab_size), (BATCH, 5)), cache)
    model.forward = fast
    return report


def _scores(model: Any, forward: Callable[..., Any], prompt: torch.Tensor, cache: str) -> torch.Tensor:
    """The scores of each generated word, [words, batch, vocabulary]."""
    model.forward = forward
    result = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=WORDS, min_new_tokens=WORDS, do_sample=False,
        use_cache=True, cache_implementation=cache, return_dict_in_generate=True, output_logits=True, pad_token_id=0,
    )  # fmt: skip
    return torch.stack(result.logits)
