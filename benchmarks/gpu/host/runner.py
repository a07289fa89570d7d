"""Measures a bundle on a GPU host: ``python runner.py --out DIR``. It needs PyTorch, Triton and NumPy, nothing else.

Checks come first, in several processes, which also fill Triton's cache: each kernel runs on small ragged operands
between guard regions, or on its block's own, and is compared. A kernel that faults costs its process, not the others.
Then each block is timed in turns: a CUDA graph of some launches for every kernel and every rival, replayed in an order
drawn anew, with events around each replay; the median counts. Results are written as they come.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from card import facts
from checking import check_all
from graphs import Timer, measure
from operands import FATAL, HERE, Log, operand_sets, prepared
from rivals import RIVALS


def measured_blocks(bundle: Mapping[str, Any], good: Mapping[tuple[str, str], bool], until: float, log: Log) -> None:
    """Each block in the order of the bundle, as far as there is time, and its part has."""
    timer, spent = Timer(), dict[str, float]()
    for block in bundle["blocks"]:
        part, started = block["part"], time.time()
        if started > until:
            log.add("notes", text=f"no time for {block['title']}")
            return
        if not block["rivals"] or spent.get(part, 0.0) > bundle["seconds"].get(part, 1e9):
            continue
        try:
            sets = operand_sets(block, "cuda")
            kernels = [kernel for kernel in block["kernels"] if good.get((block["title"], kernel["id"]), True)]
            calls = {kernel["id"]: prepared(kernel, block, sets) for kernel in kernels}
            for name in block["rivals"]:
                made = _rival(name, block, sets, log)
                if made is not None:
                    calls[name] = made
            found = measure(timer, calls, block.get("sets", 1))
            log.add(
                "blocks", part=part, title=block["title"], symbols=block["symbols"], sets=block.get("sets", 1), **found
            )
        except BaseException as error:
            log.add("notes", text=f"{block['title']}: {type(error).__name__}: {str(error)[:300]}")
            if any(word in str(error).lower() for word in FATAL):
                raise
        spent[part] = spent.get(part, 0.0) + time.time() - started
        torch.cuda.empty_cache()


def _rival(
    name: str, block: Mapping[str, Any], sets: Sequence[Mapping[str, Any]], log: Log
) -> Callable[[int], Any] | None:
    try:
        started = time.time()
        made = [RIVALS[name](block, own) for own in sets]
        made[0]()
        torch.cuda.synchronize()
        if name == "compiled":
            log.add("notes", text=f"{block['title']}: compiled in {time.time() - started:.1f} s")
    except Exception as error:
        log.add("notes", text=f"rival {name} of {block['title']}: {type(error).__name__}: {str(error)[:200]}")
        return None
    return lambda number: made[number % len(made)]()


# -- the card ---------------------------------------------------------------------------------------------------------
def watched(log: Log, until: float) -> Any:
    """A process that writes down clocks, power and temperature every second."""
    fields = "clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-l", "1"]
    with (log.folder / "clocks.csv").open("w") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)


EVERY = ("random", "rounded")
"""Parts whose kernels are checked at each of their shapes."""


def check_items(bundle: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What is checked: samples, and each kernel of the blocks once for each way in which Triton specializes it."""
    known = set()
    for block in bundle["blocks"]:
        kinds = tuple((value == 1, value % 16 == 0) for value in block["symbols"])
        for kernel in block["kernels"]:
            if (kernel["source"], kinds) not in known or block["part"] in EVERY:
                known.add((kernel["source"], kinds))
                yield {"block": block, "kernel": kernel}
    yield from bundle["samples"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where results are written")
    parser.add_argument("--seconds", type=float, default=420.0, help="of all")
    parser.add_argument("--check-seconds", type=float, default=200.0, help="of the checks at most")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--parts", default="", help="of these alone, with commas between")
    parser.add_argument("--device", default="cuda", help="cpu: checks alone, in Triton's interpreter")
    parser.add_argument("--no-samples", action="store_true")
    options = parser.parse_args()
    start = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out, start)
    bundle = json.loads((HERE / "bundle.json").read_text())
    parts = [part for part in options.parts.split(",") if part]
    if parts:
        bundle["blocks"] = [block for block in bundle["blocks"] if block["part"] in parts]
    if options.no_samples:
        bundle["samples"] = []
    watch = None
    if options.device == "cuda":
        log.add("facts", **facts())
        watch = watched(log, start + options.seconds)
    items = list(check_items(bundle))
    answers = check_all(items, options.workers, start + options.check_seconds, options.device, log)
    bad = [number for number, done in answers.items() if done["problems"]]
    print(f"{len(answers)} of {len(items)} checked, {len(bad)} bad, {time.time() - start:.0f} s", flush=True)
    for number in bad[:40]:
        title = items[number].get("title") or f"{items[number]['block']['title']} {items[number]['kernel']['id']}"
        print(f"  {title}: {answers[number]['problems'][0][:300]}", flush=True)
    wrong = {items[number]["kernel"]["source"] for number in bad if "kernel" in items[number]}
    missing = {
        item["kernel"]["source"] for number, item in enumerate(items) if number not in answers and "kernel" in item
    }
    good = {
        (block["title"], kernel["id"]): kernel["source"] not in wrong | missing
        for block in bundle["blocks"]
        for kernel in block["kernels"]
    }
    if options.device == "cuda":
        measured_blocks(bundle, good, start + options.seconds, log)
    if watch is not None:
        watch.terminate()
    print(f"done in {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
