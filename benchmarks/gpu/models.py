"""``python -m benchmarks.gpu.models MODEL --libraries DIR --json OUT`` times a whole model on a GPU beside PyTorch.

The models are those of ``benchmarks.models``, in ``--dtype``. Ours is torch.compile with our backend and the libraries
of DIR; the rivals are eager PyTorch and torch.compile in ``--mode``, with dynamic shapes and, at the sizes of
``--compiled``, for that size alone. Of each call ``us`` is a replay of a CUDA graph of it, ``called_us`` what it takes
of many in a row, launched from Python. ``errors`` are of outputs, over the largest, against eager float32.

``--job`` times nothing, and needs no GPU: it writes the job of what is to be tuned to OUT, for ``shapewright tune OUT
-o DIR``, by theory alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

import shapewright as sw
from benchmarks.gpu import times
from benchmarks.gpu.contest import measure
from benchmarks.gpu.libraries import facts, leave_out
from benchmarks.harness.results import finish, integers, options_of
from benchmarks.harness.turns import geomean
from benchmarks.nets.zoo import MODELS, Model
from shapewright.torch.backend import shapewright
from shapewright.torch.reports import report

CALLED_S = 0.15
"""How long calls in a row are timed."""
Call = Callable[[], Any]


def job_of(model: str, dtype: torch.dtype, product_name: str) -> dict[str, Any]:
    zoo = MODELS[model]
    lengths = zoo.lengths
    sizes = sorted({lengths[round(share * (len(lengths) - 1))] for share in (0, 0.05, 0.15, 0.3, 0.5, 0.75, 1)})
    weights = {"length": dict.fromkeys(sizes, 1.0)}
    weights |= {"batch": dict.fromkeys(zoo.batches, 1.0)} if len(zoo.batches) > 1 else {}
    with torch.no_grad():
        tasks = sw.extract(zoo.build(dtype), *zoo.example(dtype), weights=weights)
    return tasks.job({"trials": 0}, target={"kind": "cuda", "product": product_name})


class Contenders:
    """One model on the GPU, as each contender has it."""

    def __init__(self, zoo: Model, dtype: torch.dtype, libraries: Path, mode: str) -> None:
        self._zoo, self._dtype, self._mode = zoo, dtype, mode
        self._exact = zoo.build(torch.float32).cuda()
        self._eager = zoo.build(dtype).cuda()
        options = {"source": libraries}
        self._ways = {
            "ours": self.compiled(dynamic=True, backend=shapewright, options=options),
            "eager": self._eager,
            "compile": self.compiled(dynamic=True, mode=self._mode),
        }

    def compiled(self, *, dynamic: bool, **how: Any) -> Callable[..., Any]:
        # Images keep their size: of them the batch alone is marked as dynamic.
        return torch.compile(self._eager, dynamic=(True if self._zoo.axis else None) if dynamic else False, **how)  # type: ignore[no-any-return]

    def row(self, batch: int, length: int, is_static: bool) -> dict[str, Any]:
        """``compile_s``: what the first call at this size took."""
        torch.manual_seed(0)
        given, wide = (tuple(each.cuda() for each in self._zoo.inputs(batch, length, dtype))
                       for dtype in (self._dtype, torch.float32))  # fmt: skip
        wide = tuple(each.float() if each.is_floating_point() else each for each in given)
        exact, ways = first(self._exact(*wide)).double(), dict(self._ways)
        if is_static:
            ways["compile_static"] = self.compiled(dynamic=False, mode=self._mode)
        elif self._zoo.axis == 0 and length > 1:
            torch._dynamo.mark_dynamic(given[0], 0)
        calls, errors, seconds, failed = dict[str, Call](), dict[str, float](), dict[str, float](), dict[str, str]()
        for name, way in ways.items():
            began = time.perf_counter()
            try:
                found = first(way(*given)).double()
                torch.cuda.synchronize()
            except Exception as error:  # whatever Inductor has to say
                failed[name] = f"{type(error).__name__}: {error}"[:300]
                continue
            seconds[name] = round(time.perf_counter() - began, 2)
            errors[name] = float(((found - exact).abs().max() / exact.abs().max()).item())
            calls[name] = partial(way, *given)
        called = {name: called_us(call) for name, call in calls.items()}
        measured = measure(calls)
        measured["failed"] |= failed
        return {"shape": {"batch": batch, "length": length}, "errors": errors, "compile_s": seconds,
                "called_us": called, **measured}  # fmt: skip


def first(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return tensor if isinstance(tensor, torch.Tensor) else next(iter(tensor.values()))


def called_us(call: Call) -> float:
    """The fastest of three runs, of some calls each."""
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    number, found = max(3, min(200, int(CALLED_S / (time.perf_counter() - began)))), []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(number):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / number * 1e6)
    return round(min(found), 2)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By rival: geometric mean and least of its time over ours, of graphs and as it is called."""
    found: dict[str, dict[str, list[float]]] = {"graphs": {}, "called": {}}
    for row in rows:
        for how, us in (("graphs", times(row)), ("called", dict(row["called_us"]))):
            if (own := us.pop("ours", None)) is not None:
                for name, value in us.items():
                    found[how].setdefault(name, []).append(value / own)
    return {how: {name: [round(geomean(each), 3), round(min(each), 3)] for name, each in named.items()}
            for how, named in found.items()}  # fmt: skip


def main() -> None:
    parser = options_of(
        __doc__, dtype="float16", sizes=integers, compiled=integers, seconds=3600.0, product="h100", mode=str
    )
    parser.add_argument("model", choices=sorted(MODELS))
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--libraries", type=Path, metavar="DIR")
    either.add_argument("--job", action="store_true", help="write the job to OUT")
    options = parser.parse_args()
    zoo, dtype = MODELS[options.model], getattr(torch, options.dtype)
    if options.job:
        options.json.write_text(json.dumps(job_of(options.model, dtype, options.product), indent=1) + "\n")
        return
    time_model(zoo, dtype, options)


def time_model(zoo: Model, dtype: torch.dtype, options: argparse.Namespace) -> None:
    until, protocol = time.monotonic() + options.seconds, {**facts(), "model": options.model, "dtype": options.dtype}
    document: dict[str, Any] = {"protocol": protocol, "rows": [], "left_out": []}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64
    torch.cuda.set_stream(torch.cuda.Stream())
    sizes = options.sizes or (zoo.lengths[-1], *range(zoo.lengths[-1] // 2, 0, -zoo.lengths[-1] // 4), 1)
    try:
        with torch.no_grad():
            contenders = Contenders(zoo, dtype, options.libraries, options.mode)
            for batch, size in product(sorted(zoo.batches, reverse=True), sizes):
                if time.monotonic() > until:
                    leave_out(document, "rows", options.model, size, "no time is left")
                    continue
                row = contenders.row(batch, size, size in (options.compiled or ()))
                print(batch, size, row["us"], row["called_us"], row["errors"], row["failed"], flush=True)
                document["rows"].append(row)
    finally:
        document["summary"], document["report"] = summary(document["rows"]), report().to_json()
        finish(options.json, document)


if __name__ == "__main__":
    main()
