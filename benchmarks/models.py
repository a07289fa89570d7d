"""Whole models with tuned libraries, against PyTorch.

The model is built with random weights, taken apart (``sw.extract``), tuned as one job of so many minutes through a
service of its own (`shapewright up`), and compiled with the libraries that were pulled. Then it is timed at 20 lengths,
of which the search has seen few, against eager PyTorch, torch.compile (dynamic shapes, frozen, autotuned) and, with the
extra ``rivals``, ONNX Runtime, OpenVINO and, for steps of decoders, llama.cpp: alternating samples, each contender in a
process of its own.
``--exported`` has our libraries called by a program of ``torch.export`` (``sw.torch.compile_exported``, frozen), as
other runtimes call theirs. ``--libraries`` takes what an earlier run has tuned, or keeps what this one does.
Last, the model is compiled in new processes from a snapshot of its libraries.

``--coverage`` times nothing: it tells how much of well-known architectures is lifted and replaced (nets/coverage.py),
of those that ``--only`` names, with ``--verify`` after comparing outputs, too; it needs the extra ``zoo``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shapewright as sw
from benchmarks.compare.rows import BEST, against_best
from benchmarks.compare.summary import against, held_out, mean, ratios
from benchmarks.harness.remote import Remote, in_own_process
from benchmarks.harness.results import Row, finish, grouped, names, options_of, say
from benchmarks.harness.turns import alternate
from benchmarks.nets.contenders import COMPILED, EAGER, OURS, Contender
from benchmarks.nets.limits import PEAK, STREAM, Limit, limits_of
from benchmarks.nets.llama_cpp import LLAMA_CPP
from benchmarks.nets.zoo import ARCHITECTURES, MODELS
from benchmarks.rivals.onnx_files import EXPORTED
from examples.local_service import local_service
from shapewright.models.tasks import ModelTasks
from shapewright.snapshot import merge
from tuner.program.target import native
from tuner.search.summary import JobSummary
from tuner.storage import JobState

TUNED = 8
"""Lengths at most, of those that are timed, that the search has seen."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""The tolerance of outputs, absolute and relative to the largest element, by the model's dtype. Twelve layers of
bfloat16 with PyTorch's kernel for four bits were up to 0.06 off float64 themselves."""
SAMPLE_S, BUDGET_S = 0.05, 6.0
ANSWER_S = 3600.0
"""The longest that a compilation or a sample may take."""
ZOO = ("transformers", "torchvision", "timm", "onnx", "onnxscript")
"""What coverage needs."""
LONGER_S, POLL_S = 600.0, 2.0
"""What a job may take beyond its budget until its libraries are built, and how often it is looked at."""
RECORD = "tuning.json"
"""The file beside the libraries of a model that says what tuning them took."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of(
        __doc__, coverage=False, only=names, verify=False, threads=1, minutes=30.0, trials=int, lengths=20,
        libraries=Path, exported=False,
    )  # fmt: skip
    parser.add_argument("--model", choices=sorted(MODELS))
    options = parser.parse_args(argv)
    if not options.coverage and options.model is None:
        parser.error("--model or --coverage is required")
    packages = ZOO if options.coverage else MODELS[options.model].packages
    if absent := [name for name in packages if find_spec(name) is None]:
        parser.error(f"this needs {', '.join(absent)}: pip install -e '.[zoo]'")
    if unknown := [name for name in options.only or [] if name not in ARCHITECTURES]:
        parser.error(f"--only: {unknown[0]!r} is no architecture; known: {', '.join(ARCHITECTURES)}")
    if options.coverage:
        from benchmarks.nets.coverage import covered  # noqa: PLC0415 - what is not timed

        return covered(options.only, options.verify, options.json)
    return _of_model(options)


def _of_model(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shapewright-models-") as name:
        folder = Path(name)
        libraries = (options.libraries or folder / "libraries").absolute()
        if not libraries.is_dir():
            tune(options, folder, libraries)
        # Nothing is known of libraries that were not tuned here.
        record = libraries / RECORD
        tuning = json.loads(record.read_text()) if record.is_file() else {}
        rows, facts = timed(options, libraries, folder)
        contenders = facts["contenders"].items()
        again = {
            "compile_s": {name: each["compile_s"] for name, each in contenders if each["compiled_at"]},
            "recompiled": {name: [at["size"] for at in each["compiled_at"][1:]] for name, each in contenders},
            "snapshot": from_snapshot(options, libraries, folder),
        }
    protocol = {
        "model": options.model, "threads": options.threads, "exported": options.exported,
        "minutes": options.minutes, "target": native().to_json(),
        "order": "alternating samples, rotating order, a process for each contender that stands still meanwhile",
        "sample": f"as many calls as {SAMPLE_S:g} s take, one at least", "value": "median", **facts,
    }  # fmt: skip
    finish(options.json, {"rows": rows, "summary": {**summary_of(rows), **tuning, **again}, "protocol": protocol})
    return 0 if all(row["max_abs_error"] <= row["tolerance"] for row in rows) else 1


# -- tuning ---------------------------------------------------------------------------------------------------------
def tune(options: argparse.Namespace, folder: Path, libraries: Path) -> None:
    """Tune the model as one job through a service of its own, pull its libraries, and write beside them what it took.
    Raises SystemExit if the job fails."""
    tasks = tasks_of(options.model, options.threads)
    say(f"{options.model}: {len(tasks)} workloads, {sum(task.count for task in tasks)} operators")
    budget, started = {"seconds": 60.0 * options.minutes}, time.monotonic()
    budget |= {"trials": options.trials} if options.trials is not None else {}
    with local_service(folder / "service") as environment:
        client = sw.Client(environment["SHAPEWRIGHT_URL"], data_dir=environment["SHAPEWRIGHT_DATA_DIR"])
        job_id = client.submit(tasks.job(budget, threads=options.threads))["id"]
        while not JobState((job := client.job(job_id))["state"]).ended:
            if time.monotonic() - started > budget["seconds"] + LONGER_S:
                raise SystemExit(f"the job had not ended {LONGER_S:g} s after its budget")
            time.sleep(POLL_S)
        if job["state"] != "COMPLETED":
            raise SystemExit(f"the job is {job['state']}: {job['error']}")
        manifests = client.download_job(job_id, libraries)
    told = {
        "tuning_s": time.monotonic() - started, "state": job["state"], "trials": job["trials"],
        "kernels": {manifest["workload_key"]: len(manifest["kernels"]) for manifest in manifests},
        "gain": gain_of(job, [task.count for task in tasks]),
    }  # fmt: skip
    (libraries / RECORD).write_text(json.dumps(told, indent=1) + "\n")


def gain_of(job: Mapping[str, Any], counts: Sequence[int]) -> dict[str, float] | None:
    """The default's time over that of the best kernels, of all workloads together, each counted as often as it occurs,
    and what that took. None: some default was not timed."""
    searches = JobSummary.from_json(job["summary"]).tasks.values()
    found = [(each.default_objective_s, each.objective_s) for each in searches if each.default_objective_s]
    if len(found) < len(counts):
        return None
    default_s, ours_s = np.array(counts) @ np.array(found, float)
    took = datetime.fromisoformat(job["ended_at"]) - datetime.fromisoformat(job["started_at"])
    return {"trials": job["trials"], "seconds": took.total_seconds(), "gain": float(default_s / ours_s)}


def tasks_of(model: str, threads: int) -> ModelTasks:
    """The search tasks of a model; its batch and its length are dynamic."""
    zoo, weights = MODELS[model], {"length": dict.fromkeys(lengths_of(model, TUNED), 1.0)}
    if len(zoo.batches) > 1:
        weights["batch"] = dict.fromkeys(zoo.batches, 1.0)
    example, axes = zoo.example()
    with torch.no_grad():
        return sw.extract(zoo.build(), example, axes, weights=weights, threads=threads)


def lengths_of(model: str, number: int) -> list[int]:
    """``number`` lengths, spread over the range, its ends included."""
    lengths = MODELS[model].lengths
    return sorted({lengths[round(at)] for at in np.linspace(0, len(lengths) - 1, min(number, len(lengths)))})


# -- timing ---------------------------------------------------------------------------------------------------------
def timed(options: argparse.Namespace, libraries: Path, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """A row for each batch and length, and further facts."""
    there, limits, skipped = dict[str, Remote](), dict[str, Remote](), dict[str, str]()
    zoo = MODELS[options.model]
    with ExitStack() as stack:
        for name in (EAGER, COMPILED, OURS, *EXPORTED, *([LLAMA_CPP] if zoo.is_step else [])):
            # What Inductor kept of earlier runs would make a first compilation look quick.
            fresh = {"TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{name}")}
            there[name] = stack.enter_context(_contender(name, options, libraries, fresh, options.exported))
        for name in limits_of(options.model, threads := options.threads):
            limit = in_own_process(Limit, name, options.model, threads, threads=threads, answer_s=ANSWER_S)
            limits[name] = stack.enter_context(limit)
        # The largest first: what is compiled for them holds for all but a batch or a length of 1.
        lengths = lengths_of(options.model, options.lengths)[::-1]
        sizes = [(batch, length) for batch in sorted(zoo.batches, reverse=True) for length in lengths]
        # For half a minute after all that compiling, all contenders took up to twice as long: the first is timed again.
        rows = {size: _row(options.model, *size, there, limits, skipped) for size in [*sizes, sizes[0]]}
        facts = {name: one.ask("facts") for name, one in there.items()}
    return list(rows.values()), {"skipped": skipped, "contenders": facts}


def _contender(
    name: str, options: argparse.Namespace, libraries: Path, environment: Mapping[str, str], is_exported: bool = False
) -> Any:  # fmt: skip
    given = (name, options.model, options.threads, libraries, is_exported)
    return in_own_process(Contender, *given, threads=options.threads, answer_s=ANSWER_S, environment=environment)


def _row(
    model: str, batch: int, length: int, there: dict[str, Remote], limits: Mapping[str, Remote], skipped: dict[str, str]
) -> Row:  # fmt: skip
    """Contenders that fail at this size take no part from then on."""
    outputs = {}
    for name, one in list(there.items()):
        try:
            outputs[name] = one.ask("prepare", batch, length)
        except Exception as error:  # whatever Inductor or an exporter has to say
            if name in (EAGER, OURS):
                raise
            skipped[name] = f"{type(error).__name__}: {error}"
            del there[name]
    flops = there[EAGER].ask("flops")
    for limit in limits.values():
        limit.ask("prepare", length, flops)
    samplers = {
        name: lambda number, one=one: float(one.ask("sample", number)) for name, one in {**there, **limits}.items()
    }
    times = alternate(samplers, rounds=9, sample_s=SAMPLE_S, budget_s=BUDGET_S)
    vs = compared({name: times[name] for name in there})
    rivals = ", ".join(f"{name} {vs['vs'][name]:.2f}x" for name in vs["rivals_s"])
    say(f"{model}, batch {batch}, length {length:>4} {1e3 * vs['ours_s']:>9.2f} ms; against {rivals}")
    tolerance = TOLERANCE[str(MODELS[model].dtype).removeprefix("torch.")]
    errors = [float(np.abs(a - b).max()) for a, b in zip(outputs[OURS], outputs[EAGER], strict=True)]
    least_s = {name: times.get(name) for name in (PEAK, STREAM)}
    shares = {name: seconds and seconds / vs["ours_s"] for name, seconds in least_s.items()}
    return {
        "workload": f"{model}, batch {batch}", "shape": {"batch": batch, "length": length},
        "tuned_on": length in lengths_of(model, TUNED), **vs, "flops": flops,
        "peak_s": least_s[PEAK], "peak_fraction": shares[PEAK],
        "stream_s": least_s[STREAM], "bandwidth_fraction": shares[STREAM],
        "max_abs_error": float(np.max(errors)),  # NaN if one is
        "tolerance": tolerance * max(1.0, *(float(np.abs(each).max()) for each in outputs[EAGER])),
    }  # fmt: skip


def from_snapshot(options: argparse.Namespace, libraries: Path, folder: Path) -> dict[str, float]:
    """Seconds of compilation in a process that has a snapshot of the libraries and nothing else; and in the next such
    process, for which Inductor has kept what it compiled."""
    file, seconds = folder / "model.snapshot", {}
    merge(file, [libraries])
    for name in ("first_s", "again_s"):
        given = {"SHAPEWRIGHT_DATA_DIR": str(folder / name), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        with _contender(OURS, options, file, given) as one:
            one.ask("prepare", max(MODELS[options.model].batches), MODELS[options.model].lengths[-1])
            seconds[name] = one.ask("facts")["compile_s"]
    return seconds


def compared(times: Mapping[str, float]) -> Row:
    """``vs``: how many times faster than each rival ours is, and than the fastest of them at this size."""
    rivals = {name: seconds for name, seconds in times.items() if name != OURS}
    vs = {name: seconds / times[OURS] for name, seconds in rivals.items()}
    return {"ours_s": times[OURS], "rivals_s": rivals, "vs": {**vs, BEST: min(vs.values())}}


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Geometric means of how many times faster ours is."""
    rivals = sorted({name for row in rows for name in row["rivals_s"]})
    return {
        "geomean_vs": {name: mean(against(name), rows) for name in rivals},
        "geomean_vs_best": mean(against_best, rows),
        "geomean_vs_best_held_out": mean(against_best, held_out(rows)),
        "geomean_vs_best_by_workload": {k: mean(against_best, own) for k, own in grouped(rows, "workload").items()},
        "worst_vs_best": min(ratios(rows)),
        "max_abs_error": float(np.max([row["max_abs_error"] for row in rows])),
        "regret": None,
    }


if __name__ == "__main__":
    sys.exit(main())
