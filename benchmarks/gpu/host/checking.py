"""Checks of a bundle's kernels, in processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import queue
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from operands import FATAL, HERE, Log, error_of, module, operand_sets, prepared
from rivals import reference

GUARD = 64
POISON = 77
MAX_RESPAWNS = 40
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "tf32": 2e-3, "float32": 1e-5, "float64": 1e-12}
"""The norm of an error over that of the result, by dtype or precision."""


def check_sample(case: Mapping[str, Any], device: str) -> dict[str, Any]:
    """A kernel on the operands of a sample, between guard regions, against the reference and its limits."""
    data = np.load(HERE / case["data"])
    inputs = [_tensor(data[f"in{place}"], dtype).to(device) for place, dtype in enumerate(case["in_dtypes"])]
    buffers, outputs = [], []
    for place, dtype in enumerate(case["out_dtypes"]):
        shape = data[f"value{place}"].shape
        count = int(np.prod(shape))
        buffer = torch.full((count + 2 * GUARD,), POISON, device=device).to(getattr(torch, dtype))
        buffers.append((buffer, count))
        outputs.append(buffer[GUARD : GUARD + count].view(shape))
    loaded = module(case["source"])
    packed = [loaded.pack(name, tensor) for name, tensor in zip(case["in_names"], inputs, strict=True)]
    loaded.run(*packed, *outputs, *case["symbols"])
    _synchronize(device)
    problems, worst = [], 0.0
    for place, (output, (buffer, count)) in enumerate(zip(outputs, buffers, strict=True)):
        value, limit = data[f"value{place}"].astype(np.float64), data[f"limit{place}"]
        found = output.double().cpu().numpy()
        off = np.abs(found - value)
        same = (found == value) | (np.isnan(found) & np.isnan(value))
        wrong = ~(same | ((off <= limit) & (limit > 0)) | (limit == np.inf))
        share = np.where(same | (limit == np.inf), 0.0, off / np.maximum(limit, 1e-300))
        worst = max(worst, float(np.nanmax(share)) if share.size else 0.0)
        if wrong.any():
            problems.append(f"output {place}: {int(wrong.sum())} of {wrong.size} wrong")
        guard = torch.cat([buffer[:GUARD], buffer[GUARD + count :]]).double()
        if not bool((guard == torch.full((), POISON).to(buffer.dtype).double().to(device)).all()):
            problems.append(f"output {place}: written outside")
    return {"problems": problems, "worst": worst}


def _tensor(array: Any, dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return torch.from_numpy(array.astype(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def check_block(item: Mapping[str, Any], device: str) -> dict[str, Any]:
    """A kernel on the operands of a block, against the reference in higher precision."""
    block, kernel = item["block"], item["kernel"]
    sets = operand_sets({**block, "sets": 1}, device)
    for each in block["outputs"]:
        sets[0][each["name"]].fill_(POISON)
    prepared(kernel, block, sets)(0)
    _synchronize(device)
    wanted = reference(block, sets[0])
    errors = [error_of(sets[0][name], tensor) for name, tensor in wanted.items()]
    limit = LIMITS[kernel.get("limit", block["outputs"][0]["dtype"])]
    problems = [f"error {error:.2e}" for error in errors if not error <= limit]
    return {"problems": problems, "worst": max(errors)}


def worker(tasks: Any, results: Any, device: str) -> None:
    """Does one task after the other, until there are none or the context is lost."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    while True:
        try:
            number, item = tasks.get(timeout=1.0)
        except queue.Empty:
            return
        results.put((number, "began", None))
        started = time.time()
        try:
            done = (check_sample if "data" in item else check_block)(item, device)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            place = traceback.extract_tb(error.__traceback__)[-1]
            done = {"problems": [f"{text[:400]} at {Path(place.filename).name}:{place.lineno}"], "worst": -1.0}
            if any(word in text.lower() for word in FATAL):
                results.put((number, "done", {**done, "seconds": time.time() - started}))
                results.close()
                results.join_thread()
                os._exit(1)
        results.put((number, "done", {**done, "seconds": round(time.time() - started, 2)}))


def check_all(items: Sequence[Mapping[str, Any]], count: int, until: float, device: str, log: Log) -> dict[int, Any]:
    """The answers by the items' numbers, as far as there is time."""
    context = multiprocessing.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    for pair in enumerate(items):
        tasks.put(pair)
    crew = [context.Process(target=worker, args=(tasks, results, device), daemon=True) for _ in range(count)]
    for process in crew:
        process.start()
    answers: dict[int, Any] = {}
    respawns = 0
    while len(answers) < len(items) and time.time() < until:
        try:
            number, what, done = results.get(timeout=0.5)
            if what == "done":
                answers[number] = done
                title = (
                    items[number].get("title") or f"{items[number]['block']['title']} {items[number]['kernel']['id']}"
                )
                log.add("checks", title=title, kernel=items[number].get("kernel", {}).get("id"), **done)
        except queue.Empty:
            crew = [process for process in crew if process.is_alive()]
            if not crew and (tasks.empty() or respawns >= MAX_RESPAWNS):
                break
        while len([p for p in crew if p.is_alive()]) < count and not tasks.empty() and respawns < MAX_RESPAWNS:
            respawns += 1
            crew.append(context.Process(target=worker, args=(tasks, results, device), daemon=True))
            crew[-1].start()
    for process in crew:
        process.terminate()
    return answers
