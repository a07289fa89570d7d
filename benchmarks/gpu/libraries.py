"""``python -m benchmarks.gpu.libraries NAME=DIR... --json OUT`` times whole libraries for a GPU beside PyTorch.

It runs on a host with the GPU, with PyTorch for CUDA. DIR is what ``shapewright tune`` or ``pull`` wrote: one library
or a folder of several. Libraries of one workload are contenders, as are PyTorch's own ways.

``--shapes`` are sizes of the first shape variable, ``--compiled`` those beside torch.compile, which tunes each.
``--dlight`` is a folder of ``benchmarks.gpu.dlight``, whose kernels are contenders at the sizes that it has.
``--checks`` shapes are drawn at random for each library, which is compared with float64 there. Figures are over the
first NAME. What is not done in ``--seconds`` is left out. ``searches`` of the document are of ``shapewright tune --json
-o DIR > DIR/outcome.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

import shapewright as sw
from benchmarks.gpu import times
from benchmarks.gpu.contest import OPS, RIVALS, Contest, checks, in_tf32, measure
from benchmarks.harness.results import finish, integers, options_of
from benchmarks.harness.turns import geomean
from tuner.errors import InvalidInput, ShapewrightError

CALLS = 2000
TEST = (1, 2, 5, 11, 24, 37, 43, 53, 62, 64, 81, 97, 100, 119, 127, 128)
"""DietCode's test shapes, with those that were held out."""
FATAL = ("illegal", "launch failure", "misaligned", "device-side assert", "uncorrectable", "unspecified")
"""Words of errors after which the device's context is lost."""
CARD = "name,driver_version,clocks.max.sm,clocks.sm,clocks.mem,power.limit,temperature.gpu,ecc.mode.current"


def contests(folders: Mapping[str, Path], dlight: Path | None, document: dict[str, Any]) -> list[Contest]:
    """Those of workloads that a rival is known for, in the order of the first folder; the others are left out."""
    found: dict[str, Contest] = {}
    for name, folder in folders.items():
        for manifest in sorted(folder.rglob("manifest.json")):
            try:
                library = sw.load(manifest.parent)
            except ShapewrightError as error:
                leave_out(document, "load", f"{name}={manifest.parent.name}", None, str(error))
                continue
            contest = found.setdefault(library.workload.key, Contest(library.workload, {}, dlight))
            if name in contest.libraries:
                problem = f"{folder} has several of {library.workload.key}"
                raise InvalidInput("NAME=DIR", problem, "a folder with one library of each workload")
            contest.libraries[name] = library
    for contest in found.values():
        if contest.op not in OPS:
            leave_out(document, "load", contest.title, None, "no rival is known")
    return [contest for contest in found.values() if contest.op in OPS]


def row(contest: Contest, shape: Mapping[str, int]) -> dict[str, Any]:
    tuned_on = [name for name, library in contest.libraries.items()
                if any(known.shape == shape for known in library.dispatcher.task.instances)]  # fmt: skip
    dims = contest.workload.dims(shape)
    facts = {"tuned_on": tuned_on, "flops": contest.workload.flops(dims), "bytes": contest.workload.bytes_moved(dims)}
    return facts | measure(contest.contenders(contest.operands(shape), shape))


def calls(contest: Contest, shape: Mapping[str, int]) -> dict[str, Any]:
    """``us``: what a call takes its thread, of many in a row that are put in the stream; the GPU's own where that is
    longer. PyTorch's have PyTorch's flags set before each of them, which takes less than a microsecond."""
    found = {}
    for name, call in contest.contenders(contest.operands(shape), shape).items():
        call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
        found[name] = round((time.perf_counter() - began) / CALLS * 1e6, 2)
    return {"us": found}


def compiled(contest: Contest, shape: Mapping[str, int]) -> dict[str, Any]:
    """Beside torch.compile(mode="max-autotune-no-cudagraphs"), which tunes this shape alone, and what that takes."""
    own = contest.operands(shape)
    torch._dynamo.reset()
    began = time.perf_counter()
    linear = torch.compile(F.linear, mode="max-autotune-no-cudagraphs", dynamic=False)
    rival = in_tf32(contest.workload.tf32, lambda: linear(own["x"], own["w"]))
    rival()
    torch.cuda.synchronize()
    spent = time.perf_counter() - began
    return {"compile_s": round(spent, 1), **measure({**contest.contenders(own, shape), "compiled": rival})}


Step = tuple[str, str, int | None, Callable[[], dict[str, Any]]]
"""A part of the document, the workload's title, a size, and what makes the entry."""


def steps(contests: Sequence[Contest], options: argparse.Namespace) -> Iterator[Step]:
    for contest in contests if options.checks else ():
        yield "checks", contest.title, None, partial(checks, contest, options.checks)
    dense = sorted((each for each in contests if each.op == "dense"), key=lambda each: each.dtype)
    for part, entry, sizes, those in (
        ("rows", row, options.shapes, contests),
        ("calls", calls, options.shapes[:1], contests),
        ("compiled", compiled, options.compiled or (), dense),
    ):
        for size, contest in itertools.product(sizes, those):
            yield part, contest.title, size, partial(at_size, entry, contest, size)


def at_size(entry: Callable[..., dict[str, Any]], contest: Contest, size: int) -> dict[str, Any]:
    shape = contest.shape(size)
    return {"workload": str(contest.workload), "dtype": contest.dtype, "shape": shape, **entry(contest, shape)}


def fill(document: dict[str, Any], every: Iterable[Step], until: float) -> None:
    """Do what there is time for. What fails is left out, with the reason, and so is all that a lost context ends."""
    for part, title, size, run in every:
        if time.monotonic() > until:
            leave_out(document, part, title, size, "no time is left")
            continue
        try:
            document[part].append(run())
        except Exception as error:
            leave_out(document, part, title, size, f"{type(error).__name__}: {error}"[:300])
            if any(word in str(error).lower() for word in FATAL):
                return


def leave_out(document: dict[str, Any], part: str, title: str, size: int | None, problem: str) -> None:
    document["left_out"].append([part, title, size, problem])
    print(f"{part} of {title}{'' if size is None else f' at {size}'} is left out: {problem}", flush=True)


def summary(rows: Sequence[Mapping[str, Any]], ours: str) -> dict[str, dict[str, list[float]]]:
    """By workload and rival: geometric mean and least of the rival's time over that of ``ours``."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        if ours in (us := times(each)):
            own = us.pop(ours)
            found = ratios.setdefault(f"{each['workload']} {each['dtype']}", {})
            for rival, value in us.items():
                found.setdefault(rival, []).append(value / own)
    return {title: {rival: [round(geomean(every), 3), round(min(every), 3)] for rival, every in found.items()}
            for title, found in ratios.items()}  # fmt: skip


def named_folder(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder or name in RIVALS or not Path(folder).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=DIR of a folder, or a rival has the name")
    return name, Path(folder)


def main() -> None:
    parser = options_of(__doc__, shapes=TEST, checks=0, compiled=integers, seconds=3600.0)
    parser.add_argument("--dlight", type=Path, metavar="DIR")
    parser.add_argument("libraries", nargs="+", type=named_folder, metavar="NAME=DIR")
    options = parser.parse_args()
    until, folders = time.monotonic() + options.seconds, dict(options.libraries)
    searches = {name: json.loads(path.read_text()).get("summary")
                for name, folder in folders.items() if (path := folder / "outcome.json").exists()}  # fmt: skip
    document: dict[str, Any] = {"protocol": facts(), "searches": searches}
    document |= {part: [] for part in ("checks", "rows", "calls", "compiled", "left_out")}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.cuda.set_stream(torch.cuda.Stream())
    try:
        fill(document, steps(contests(folders, options.dlight, document), options), until)
    finally:
        document["summary"] = summary(document["rows"], next(iter(folders)))
        finish(options.json, document)


def facts() -> dict[str, Any]:
    """The card, and what drives it."""
    command = ["nvidia-smi", f"--query-gpu={CARD}", "--format=csv"]
    smi = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    return {"smi": smi, "properties": str(torch.cuda.get_device_properties(0)), "cuda": torch.version.cuda}


if __name__ == "__main__":
    main()
