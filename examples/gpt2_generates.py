"""GPT-2 of transformers generates with tuned kernels: compiled, its report tuned through a service, compiled again.

    python -m examples.gpt2_generates [--layers 12 --width 768 --heads 12 --words 128 --seconds auto] [--url URL]

Needs the extra ``zoo``. The model is made from a configuration, with random weights; the default is small. A prompt and
the words after it are two graphs, which no export shows: what they lack is taken from the report of the compiled model.
Without --url the example starts a service of its own and stops it at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import shapewright as sw
from examples.local_service import local_service, say

VOCABULARY = 1000
CACHES = ("dynamic", "static")


def make_gpt2(options: argparse.Namespace) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - the extra zoo

    sizes = {"n_layer": options.layers, "n_embd": options.width, "n_head": options.heads, "n_positions": options.words}
    torch.manual_seed(0)
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes, **marks)).eval().requires_grad_(False)


def generated(model: Any, forward: Any, prompt: torch.Tensor, count: int, cache: str) -> tuple[torch.Tensor, float]:
    """The words after a prompt, and the seconds that all took."""
    model.forward = forward
    began_s = time.perf_counter()
    words = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, min_new_tokens=count, do_sample=False,
        cache_implementation=cache,
    )  # fmt: skip
    return words[:, prompt.shape[1] :], time.perf_counter() - began_s


def compiled(model: Any, forward: Any, options: argparse.Namespace, source: str) -> tuple[Any, sw.torch.Report]:
    """``forward`` with the libraries of a service, after a prompt and a few words; and what was replaced in it."""
    torch._dynamo.reset()
    report = sw.torch.Report()
    choices = {"source": source, "rest": options.rest, "report": report}
    fast = torch.compile(forward, backend="shapewright", dynamic=True, options=choices)
    generated(model, fast, torch.ones(1, 5, dtype=torch.long), 3, options.cache)
    return fast, report


def tune(report: sw.torch.Report, options: argparse.Namespace) -> None:
    """One job for all workloads that the compiled model has no library for."""
    tasks = report.tasks(dict.fromkeys(report.symbols, range(1, options.words + 1)))
    seconds = None if options.seconds == "auto" else float(options.seconds)
    plan = tasks.plan(seconds=seconds or tasks.plan(seconds=1).recommended.seconds, trials=options.trials)
    say(f"{tasks}\nbudget: {plan}")
    client = sw.Client()
    job_id = client.submit(tasks.job(plan.budget.to_json()))["id"]
    for _ in client.events(job_id):
        """They end with the job."""
    job = client.job(job_id)
    if job["state"] != "COMPLETED":
        raise SystemExit(f"{job_id} is {job['state']}: {job['error']}")


def compare(model: Any, forwards: dict[str, Any], options: argparse.Namespace) -> bool:
    """Print the words per second of each, in turns; whether all generate the same words."""
    same, count = True, options.words // 2
    say("prompt  " + "  ".join(f"{name} words/s" for name in forwards))
    for length in (2, 7, options.words // 4, options.words // 2 - 1):
        prompt = torch.randint(1, VOCABULARY, (1, length))
        found = {name: generated(model, forward, prompt, count, options.cache) for name, forward in forwards.items()}
        words = [each for each, _ in found.values()]
        same = same and all(torch.equal(each, words[0]) for each in words)
        say(f"{length:6d}  " + "  ".join(f"{count / took_s:{len(name) + 8}.1f}" for name, (_, took_s) in found.items()))
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", help="a service that runs already; its key as SHAPEWRIGHT_API_KEY")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--words", type=int, default=32, help="the longest text: a prompt, and what is generated")
    parser.add_argument("--cache", default="dynamic", choices=CACHES, help="of keys and values")
    parser.add_argument("--seconds", default="auto", help="of the job, all workloads together; auto: as recommended")
    parser.add_argument("--trials", type=int, help="of the job, besides its seconds")
    parser.add_argument("--rest", default="inductor", choices=("inductor", "eager"), help="what runs the rest")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = make_gpt2(options)
    eager = model.forward
    with ExitStack() as stack, torch.no_grad():
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shapewright-gpt2-")))
        os.environ.update(stack.enter_context(local_service(folder / "data", options.url)))
        source = os.environ["SHAPEWRIGHT_URL"]
        _, report = compiled(model, eager, options, source)
        if any(each.workload for each in report.kept):
            tune(report, options)
        fast, report = compiled(model, eager, options, source)
        same = compare(model, {"eager": eager, "tuned": fast}, options)
    say(str(report))
    say(f"{len(report.replaced)} parts of both graphs replaced, {'the same' if same else 'OTHER'} words")
    return 0 if report.replaced and same else 1


if __name__ == "__main__":
    sys.exit(main())
