"""MetaSchedule as a rival: TVM's own search for one static shape at a time, a constant packed by its layout rewrite.

It has to be told every shape in advance, so it serves those that it was tuned for and no other. What it finds is kept
in a folder for each workload, target, number of threads and shape, and a run that was interrupted goes on from there.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import Array, Contender, inputs_of
from benchmarks.rivals import Call, DoesNotApply
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload, format_shape
from tuner.schedule.layout import aligned

Shape = Mapping[str, int]
REQUEST, STATE, MODULE, PACKING, LOG = "request.json", "state.json", "module.so", "pack.npz", "log.txt"
RECORDS, CURVE = "database_tuning_record.json", "curve.jsonl"
WORKER = "benchmarks.metaschedule_worker"
TRIAL_LIMIT_S = 15.0
"""What a trial may take in the mean, with START_LIMIT_S for starting, before a search is taken for hung."""
START_LIMIT_S = 300.0
FINISH_LIMIT_S = 300.0
FAILED_S = 1e9
ROUND = 64
SHORT_ROUND = 8
"""Trials to a round where the seconds are bounded: what a killed round measured is lost."""


def default_directory() -> Path:
    """``shapewright/metaschedule`` under the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shapewright" / "metaschedule"


@dataclass(frozen=True, slots=True)
class Budget:
    """``trials`` for each shape, or ``seconds`` for all of them together."""

    trials: int
    seconds: float | None = None


def tune_shapes(
    task: SearchTask,
    shapes: Sequence[Shape],
    budget: Budget,
    directory: Path,
    say: Callable[[str], None],
    seed: int = 0,
) -> Path:
    """Tune every shape that has not had its budget yet; the workload's folder. A shape that fails costs only itself."""
    root = directory / task.workload.key / f"{task.known_target.fingerprint}-{task.threads}"
    for shape in shapes:
        folder = _folder(root, shape)
        folder.mkdir(parents=True, exist_ok=True)
        share = budget.seconds / len(shapes) if budget.seconds is not None else None
        state = _tune_one(task, shape, Budget(budget.trials, share), folder, seed)
        latency = state["post_optimized_s"] or state["search_s"]
        result = f"{latency * 1e6:.1f} us" if latency and serves(root, shape) else f"failed, see {folder / LOG}"
        say(f"  metaschedule at {dict(shape)}: {state['trials']} trials, {state['elapsed_s']:.0f} s, {result}")
    return root


def spent(root: Path) -> dict[str, Any]:
    """The totals over all shapes of a workload's folder: trials, elapsed_s, and the state of each shape."""
    states = {path.parent.name: json.loads(path.read_text()) for path in sorted(root.glob(f"*/{STATE}"))}
    return {
        "trials": sum(state["trials"] for state in states.values()),
        "elapsed_s": sum(state["elapsed_s"] for state in states.values()),
        "shapes": states,
    }


def _tune_one(task: SearchTask, shape: Shape, budget: Budget, folder: Path, seed: int) -> dict[str, Any]:
    state = _state(folder)
    left = budget.trials - state["trials"]
    left_s = budget.seconds - state["elapsed_s"] if budget.seconds is not None else None
    enough = left <= 0 if left_s is None else left_s <= 0
    if not enough or not (folder / MODULE).exists():
        (folder / MODULE).unlink(missing_ok=True)
        (folder / PACKING).unlink(missing_ok=True)
        if not enough:
            _search(task, shape, left if left_s is None else 1_000_000, left_s, folder, seed)
        _run("finish", folder, FINISH_LIMIT_S)
    return _state(folder)


def _search(task: SearchTask, shape: Shape, trials: int, seconds: float | None, folder: Path, seed: int) -> None:
    """The search, then the post-optimization in what is left of the time; both times and the curve are kept."""
    state, started = _state(folder), time.monotonic()
    _save(state, folder)
    request = {
        "workload": task.workload.to_json(), "shape": dict(shape), "threads": task.threads,
        "target": task.target.to_json() if task.target else None, "cores": len(os.sched_getaffinity(0)),
        "seed": seed + state["trials"], "trials": trials,
        "trials_per_round": min(trials, ROUND if seconds is None else SHORT_ROUND),
    }  # fmt: skip
    (folder / REQUEST).write_text(json.dumps(request))
    # With bounded seconds the post-optimization gets its part of them.
    limit_s = START_LIMIT_S + TRIAL_LIMIT_S * trials if seconds is None else 0.8 * seconds
    _run("search", folder, limit_s)
    searched_s = time.monotonic() - started
    after = _state(folder) | {"elapsed_s": state["elapsed_s"] + searched_s, "search_s": _best_s(folder)}
    _save(after, folder)
    if after["search_s"] is not None:
        _run("improve", folder, START_LIMIT_S if seconds is None else max(1.0, seconds - searched_s))
    spent_s = time.monotonic() - started
    _save(after | {"elapsed_s": state["elapsed_s"] + spent_s, "post_optimized_s": _best_s(folder)}, folder)


def _state(folder: Path) -> dict[str, Any]:
    """What has been spent and found; what a run that was interrupted had measured counts, too."""
    path, points = folder / STATE, folder / CURVE
    state: dict[str, Any] = {"trials": 0, "elapsed_s": 0.0, "search_s": None, "post_optimized_s": None, "curve": []}
    if path.exists():
        state |= json.loads(path.read_text())
    if points.exists():
        before_s = state["elapsed_s"]
        for point in map(json.loads, points.read_text().splitlines()):
            state["curve"].append(point | {"elapsed_s": before_s + point["elapsed_s"]})
            state["trials"] += len(point["latencies_s"])
            state["elapsed_s"] = before_s + point["elapsed_s"]
    return state


def _save(state: dict[str, Any], folder: Path) -> None:
    (folder / STATE).write_text(json.dumps(state))
    (folder / CURVE).unlink(missing_ok=True)


def _best_s(folder: Path) -> float | None:
    """The fastest record, as MetaSchedule measured it; what failed is recorded as FAILED_S."""
    path = folder / RECORDS
    if not path.exists():
        return None
    times = [float(np.median(runs)) for line in path.read_text().splitlines() if (runs := json.loads(line)[1][1])]
    return min((time_s for time_s in times if time_s < FAILED_S), default=None)


def _run(verb: str, folder: Path, limit_s: float) -> None:
    """What the worker says goes to the log; one that crashes or takes too long has left its records behind."""
    with (folder / LOG).open("a") as log:
        try:
            subprocess.run(
                [sys.executable, "-m", WORKER, verb, str(folder / REQUEST)],
                stdout=log, stderr=log, timeout=limit_s, check=False, cwd=Path(__file__).parents[1],
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            log.write(f"\n{verb} was ended after {limit_s:.0f} s\n")


# -- as a contender ---------------------------------------------------------------------------------------------------
def serves(root: Path, shape: Shape) -> bool:
    return (_folder(root, shape) / MODULE).exists()


def prepare(workload: Workload, root: Path) -> Contender:
    """The calls of this rival: from Python through TVM's own entry, tensors made ahead."""
    import tvm  # noqa: PLC0415 - only where this rival is asked for

    from benchmarks.static_rivals import Checked, layout_free  # noqa: PLC0415 - imports TVM

    checked = Checked(workload)

    def call(shape: Shape) -> Call:
        folder = _folder(root, shape)
        if not folder.exists():
            raise DoesNotApply(f"MetaSchedule was not tuned for {format_shape(shape)}")
        if not serves(root, shape):
            raise DoesNotApply(f"MetaSchedule found no schedule: see {folder / LOG}")
        inputs, free = inputs_of(workload, shape), layout_free(workload)
        operands = list(inputs)
        if free is not None and (folder / PACKING).exists():
            operands[free] = aligned(packed(inputs[free], folder / PACKING))
        function = tvm.runtime.load_module(str(folder / MODULE))["main"]
        return checked.call(shape, function, inputs, operands)

    return call


def packed(constant: Array, path: Path) -> Array:
    """The constant in the layout that the schedule wants."""
    with np.load(path) as packing:
        rewritten: Array = np.zeros(math.prod(packing["shape"]), constant.dtype)
        rewritten[packing["places"]] = constant.ravel()
        return rewritten.reshape(packing["shape"])


def _folder(root: Path, shape: Shape) -> Path:
    return root / format_shape(shape).replace(",", "_")
