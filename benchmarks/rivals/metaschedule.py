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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.calls import Array, Call, Contender, DoesNotApply, Shape, inputs_of
from benchmarks.harness.results import ROOT, say
from tuner.program.job.task import SearchTask
from tuner.program.language.workload import Workload, format_shape
from tuner.schedule.packing import aligned

REQUEST, STATE, MODULE, PACKING, LOG = "request.json", "state.json", "module.so", "pack.npz", "log.txt"
RECORDS = "database_tuning_record.json"
"""MetaSchedule's own file, a line for each trial."""
WORKER = "benchmarks.rivals.metaschedule_worker"
TRIAL_LIMIT_S = 15.0
"""What a trial may take in the mean, with START_LIMIT_S for starting, before a search is taken for hung."""
START_LIMIT_S = 300.0
FAILED_S = 1e9
ROUND = 64


def tune_shapes(task: SearchTask, shapes: Sequence[Shape], trials: int, directory: Path | None, seed: int = 0) -> Path:
    """Give every shape so many trials, less those that it has had; the workload's folder. A shape that fails costs only
    itself. Without a directory, results are kept in the user's cache."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shapewright" / "metaschedule"
    root = (directory or kept) / task.workload.key / f"{task.known_target.fingerprint}-{task.threads}"
    for shape in shapes:
        folder = _folder(root, shape)
        folder.mkdir(parents=True, exist_ok=True)
        _tune_one(task, shape, trials, folder, seed)
        best_s, had = _best_s(folder), _had(folder)
        result = f"{best_s * 1e6:.1f} us" if best_s and serves(root, shape) else f"failed, see {folder / LOG}"
        say(f"  metaschedule at {dict(shape)}: {had['trials']} trials, {had['elapsed_s']:.0f} s, {result}")
    return root


def spent(root: Path) -> dict[str, Any]:
    """The totals over all shapes of a workload's folder: trials, elapsed_s, and those of each shape."""
    shapes = {path.parent.name: _had(path.parent) for path in sorted(root.glob(f"*/{STATE}"))}
    return {name: sum(each[name] for each in shapes.values()) for name in ("trials", "elapsed_s")} | {"shapes": shapes}


def _tune_one(task: SearchTask, shape: Shape, trials: int, folder: Path, seed: int) -> None:
    """The search, then TVM's post-optimization and the module; the time of both is kept."""
    started, had = time.monotonic(), _had(folder)
    left = trials - had["trials"]
    if left <= 0 and (folder / MODULE).exists():
        return
    for file in (MODULE, PACKING):
        (folder / file).unlink(missing_ok=True)
    request = {
        "workload": task.workload.to_json(), "shape": dict(shape), "threads": task.threads,
        "target": task.known_target.to_json(), "cores": len(os.sched_getaffinity(0)),
        "seed": seed + had["trials"], "trials": left, "trials_per_round": min(left, ROUND),
    }  # fmt: skip
    (folder / REQUEST).write_text(json.dumps(request))
    if left > 0:
        _run("search", folder, START_LIMIT_S + TRIAL_LIMIT_S * left)
        _run("improve", folder, START_LIMIT_S)
        (folder / STATE).write_text(json.dumps({"elapsed_s": had["elapsed_s"] + time.monotonic() - started}))
    _run("finish", folder, START_LIMIT_S)


def _records(folder: Path) -> list[str]:
    return (folder / RECORDS).read_text().splitlines() if (folder / RECORDS).exists() else []


def _had(folder: Path) -> dict[str, Any]:
    """The trials and the seconds that a shape has had."""
    state = json.loads((folder / STATE).read_text()) if (folder / STATE).exists() else {"elapsed_s": 0.0}
    return {"trials": len(_records(folder)), "elapsed_s": float(state["elapsed_s"])}


def _best_s(folder: Path) -> float | None:
    """The fastest record, as MetaSchedule measured it; what failed is recorded as FAILED_S."""
    times = [float(np.median(runs)) for line in _records(folder) if (runs := json.loads(line)[1][1])]
    return min((time_s for time_s in times if time_s < FAILED_S), default=None)


def _run(verb: str, folder: Path, limit_s: float) -> None:
    """What the worker says goes to the log; one that crashes or takes too long has left its records behind."""
    command = [sys.executable, "-m", WORKER, verb, str(folder / REQUEST)]
    with (folder / LOG).open("a") as log:
        try:
            subprocess.run(command, stdout=log, stderr=log, timeout=limit_s, check=False, cwd=ROOT)
        except subprocess.TimeoutExpired:
            log.write(f"\n{verb} was ended after {limit_s:.0f} s\n")


# -- as a contender ---------------------------------------------------------------------------------------------------
def serves(root: Path, shape: Shape) -> bool:
    return (_folder(root, shape) / MODULE).exists()


def prepare(workload: Workload, root: Path) -> Contender:
    """The calls of this rival: from Python through TVM's own entry, tensors made ahead."""
    import tvm  # noqa: PLC0415 - only where this rival is asked for

    from benchmarks.rivals.dlight import Checked  # noqa: PLC0415
    from benchmarks.rivals.static_function import layout_free  # noqa: PLC0415

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
