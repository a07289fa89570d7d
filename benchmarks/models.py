"""Whole models with tuned libraries, against PyTorch.

The model is built with random weights, taken apart (``sw.extract``), tuned as one job of so many minutes through a
service of its own (`shapewright up`), and compiled with the libraries that were pulled. Then it is timed at 20 lengths,
of which the search has seen few, against eager PyTorch, torch.compile (dynamic shapes, frozen, autotuned) and, with the
extra ``rivals``, ONNX Runtime and OpenVINO: alternating samples, each contender in a process of its own.
``--exported`` has our libraries called by a program of ``torch.export`` (``sw.torch.compile_exported``, frozen), as
other runtimes call theirs. ``--libraries`` takes what an earlier run has tuned, or keeps what this one does.
``--after`` tunes the model once more through a service that knows another one, or the same, and tells what that saved.
Last, the model is compiled in new processes from a snapshot of its libraries.

``--coverage`` times nothing: it tells how much of well-known architectures is lifted and replaced (nets/coverage.py),
of those that ``--only`` names, with ``--verify`` after comparing outputs, too; it needs the extra ``zoo``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import shapewright as sw
from benchmarks.compare.rows import BEST, against_best
from benchmarks.compare.summary import against, held_out, mean, ratios
from benchmarks.harness.remote import Remote, in_own_process
from benchmarks.harness.results import Row, finish, grouped, names, options_of, say
from benchmarks.harness.turns import alternate
from benchmarks.nets.contenders import COMPILED, EAGER, OURS, Contender, lacking
from benchmarks.nets.tuning import known_of, tuned, warmed
from benchmarks.nets.zoo import MODELS, build, dynamic_axes
from benchmarks.rivals.onnx_files import EXPORTED
from shapewright.models.tasks import ModelTasks
from shapewright.snapshot import merge
from tuner.program.target import native

TUNED = 8
"""Lengths at most, of those that are timed, that the search has seen."""
TOLERANCE = 1e-3
"""The tolerance of outputs, absolute and relative to the largest element."""
SAMPLE_S, BUDGET_S = 0.05, 6.0
_built = cache(build)
ANSWER_S = 3600.0
"""The longest that a compilation or a sample may take."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = options_of(
        __doc__, coverage=False, only=names, verify=False, threads=1, minutes=30.0, trials=int, lengths=20,
        libraries=Path, exported=False,
    )  # fmt: skip
    parser.add_argument("--model", choices=sorted(MODELS))
    parser.add_argument("--after", choices=sorted(MODELS))
    options = parser.parse_args(argv)
    if options.coverage:
        from benchmarks.nets.coverage import covered, refused  # noqa: PLC0415 - what is not timed

        if reason := refused(options.only or []):
            parser.error(reason)
        return covered(options.only, options.verify, options.json)
    if options.model is None:
        parser.error("--model or --coverage is required")
    if (package := MODELS[options.model].package) is not None and find_spec(package) is None:
        parser.error(f"--model {options.model} needs {package}: pip install -e '.[zoo]'")
    there = options.libraries
    if options.after and there is not None and there.is_dir() and not known_of(there).get("gain"):
        parser.error(f"--after compares with what tuning the libraries in {there} gained, which is not known")
    return _of_model(options)


def _of_model(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="shapewright-models-") as name:
        folder = Path(name)
        libraries = (options.libraries or folder / "libraries").absolute()
        tuning = _tuned(options, folder, libraries)
        rows, facts = timed(options, libraries)
        snapshot = from_snapshot(options, libraries, folder)
    again = {"recompiled": recompiled(facts["contenders"]), "snapshot": snapshot, "compile_s": facts.pop("compile_s")}
    protocol = {
        "model": options.model, "threads": options.threads, "exported": options.exported,
        "minutes": options.minutes, "target": native().to_json(),
        "order": "alternating samples, rotating order, a process for each contender that stands still meanwhile",
        "sample": f"as many calls as {SAMPLE_S:g} s take, one at least", "value": "median", **facts,
    }  # fmt: skip
    finish(options.json, {"rows": rows, "summary": {**summary_of(rows), **tuning, **again}, "protocol": protocol})
    return 0 if all(row["max_abs_error"] <= row["tolerance"] for row in rows) else 1


# -- tuning ---------------------------------------------------------------------------------------------------------
def _tuned(options: argparse.Namespace, folder: Path, libraries: Path) -> dict[str, Any]:
    """Fill the libraries, unless they are there; what that took and, with ``--after``, what it saves to know another
    model."""
    tasks = tasks_of(options.model, options.threads)
    say(f"{options.model}: {len(tasks)} workloads, {sum(task.count for task in tasks)} operators")
    budget = {"seconds": 60.0 * options.minutes}
    budget |= {"trials": options.trials} if options.trials is not None else {}
    tuning = known_of(libraries) if libraries.is_dir() else tuned(tasks, budget, folder, libraries)
    if options.after is None:
        return tuning
    # Nothing to compare with where the budget was too short for any workload to be timed.
    before, cold = tasks_of(options.after, options.threads), tuning["gain"]
    return {**tuning, "warm": warmed(tasks, before, options.after, budget, folder, cold) if cold else None}


def tasks_of(model: str, threads: int) -> ModelTasks:
    """The search tasks of a model; its batch and its length are dynamic."""
    zoo, weights = MODELS[model], {"length": dict.fromkeys(lengths_of(model, TUNED), 1.0)}
    if len(zoo.batches) > 1:
        weights["batch"] = dict.fromkeys(zoo.batches, 1.0)
    example, dims = dynamic_axes(model)
    with torch.no_grad():
        return sw.extract(build(model), example, (dims,), weights=weights, threads=threads)


def lengths_of(model: str, number: int) -> list[int]:
    """``number`` lengths, spread over the range, its ends included."""
    lengths = MODELS[model].lengths
    return sorted({lengths[round(at)] for at in np.linspace(0, len(lengths) - 1, min(number, len(lengths)))})


# -- timing ---------------------------------------------------------------------------------------------------------
def timed(options: argparse.Namespace, libraries: Path) -> tuple[list[Row], dict[str, Any]]:
    """A row for each batch and length, and further facts."""
    rows, skipped, compile_s = list[Row](), dict[str, str](), dict[str, float]()
    with ExitStack() as stack:
        folder, there = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shapewright-inductor-"))), {}
        for name in (EAGER, COMPILED, OURS, *EXPORTED):
            # What Inductor kept of earlier runs would make a first compilation look quick.
            fresh = {"TORCHINDUCTOR_CACHE_DIR": str(folder / name)}
            try:
                if reason := lacking(name):
                    skipped[name] = reason
                else:
                    there[name] = stack.enter_context(_contender(name, options, libraries, fresh, options.exported))
            except Exception as error:  # whatever an exporter has to say
                if name not in EXPORTED:
                    raise
                skipped[name] = f"{type(error).__name__}: {error}"
        # The largest first: what is compiled for them holds for all but a batch or a length of 1.
        for batch in sorted(MODELS[options.model].batches, reverse=True):
            for length in reversed(lengths_of(options.model, options.lengths)):
                rows.append(_row(options.model, batch, length, there, skipped, compile_s))
                say(_line(rows[-1]))
        facts = {name: one.ask("facts") for name, one in there.items() if name not in skipped}
    return rows, {"skipped": skipped, "contenders": facts, "compile_s": compile_s}


def _contender(
    name: str, options: argparse.Namespace, libraries: Path, environment: Mapping[str, str], is_exported: bool = False
) -> Any:  # fmt: skip
    given = (name, options.model, options.threads, libraries, is_exported)
    return in_own_process(Contender, *given, threads=options.threads, answer_s=ANSWER_S, environment=environment)


def _row(
    model: str, batch: int, length: int, there: Mapping[str, Remote], skipped: dict[str, str],
    compile_s: dict[str, float],
) -> Row:  # fmt: skip
    outputs = {}
    for name, one in ((name, one) for name, one in there.items() if name not in skipped):
        try:
            seconds, outputs[name] = one.ask("prepare", batch, length)
            compile_s[name] = max(seconds, compile_s.get(name, 0.0))
        except Exception as error:  # whatever Inductor raises
            if name not in (COMPILED, *EXPORTED):
                raise
            skipped[name] = f"{type(error).__name__}: {error}"
    samplers = {name: lambda number, one=there[name]: float(one.ask("sample", number)) for name in outputs}
    times = alternate(samplers, rounds=9, sample_s=SAMPLE_S, budget_s=BUDGET_S)
    expected = outputs[EAGER]
    errors = [float(np.abs(a - b).max()) for a, b in zip(outputs[OURS], expected, strict=True)]
    return {
        "workload": f"{model}, batch {batch}", "shape": {"batch": batch, "length": length},
        "tuned_on": length in lengths_of(model, TUNED), **compared(times),
        "flops": _flops(model, batch, length), "peak_fraction": None,
        "max_abs_error": float(np.max(errors)),  # NaN if one is
        "tolerance": TOLERANCE * max(1.0, *(float(np.abs(each).max()) for each in expected)),
    }  # fmt: skip


def recompiled(contenders: Mapping[str, Any]) -> dict[str, list[str]]:
    """The sizes at which TorchDynamo compiled anything, the first one left out, by contender."""
    return {name: [each["size"] for each in facts["compiled_at"][1:]] for name, facts in contenders.items()}


def from_snapshot(options: argparse.Namespace, libraries: Path, folder: Path) -> dict[str, float]:
    """Seconds of the first call, compilation included, of a process that has a snapshot of the libraries and nothing
    else; and of the next such process, for which Inductor has kept what it compiled."""
    file, seconds = folder / "model.snapshot", {}
    merge(file, [libraries])
    for name in ("first_s", "again_s"):
        given = {"SHAPEWRIGHT_DATA_DIR": str(folder / name), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
        with _contender(OURS, options, file, given) as one:
            seconds[name], _ = one.ask("prepare", max(MODELS[options.model].batches), MODELS[options.model].lengths[-1])
    return seconds


def _flops(model: str, batch: int, length: int) -> int:
    """Operations of the matrix products and convolutions, a multiply-add counting as two."""
    # Called for real: some models look at values, which meta tensors do not have.
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        _built(model)(*MODELS[model].inputs(batch, length))
    return int(counter.get_total_flops())


def compared(times: Mapping[str, float]) -> Row:
    """``vs``: how many times faster than each rival ours is, and than the fastest of them at this size."""
    rivals = {name: seconds for name, seconds in times.items() if name != OURS}
    vs = {name: seconds / times[OURS] for name, seconds in rivals.items()}
    return {"ours_s": times[OURS], "rivals_s": rivals, "vs": {**vs, BEST: min(vs.values())}}


def _line(row: Row) -> str:
    rivals = ", ".join(f"{name} {row['vs'][name]:.2f}x" for name in row["rivals_s"])
    mark, length = "*" if row["tuned_on"] else " ", row["shape"]["length"]
    return f"{row['workload']}, length {length:>4}{mark} {1e3 * row['ours_s']:>9.2f} ms; against {rivals}"


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
