"""One shape of MetaSchedule, in a process of its own; its command line is a verb and the path of a request.

``search`` tunes and leaves its records in the folder as it goes; it may be killed at any time. ``improve`` runs TVM's
post-optimization on them. ``finish`` builds the best schedule there is: ``module.so``, and ``pack.npz`` (the shape that
the schedule wants the weight in, and for each element, row-major, its place there; no file if it wants none).
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.post_optimization import PostOpt

from benchmarks.rivals.dlight import tvm_target
from benchmarks.rivals.metaschedule import MODULE, PACKING, RECORDS
from benchmarks.rivals.static_function import static_function
from tuner.program.job.build import workload_from_json
from tuner.program.target import Target

WORKLOADS = "database_workload.json"
TIMEOUT_S = 120.0
"""The time limit of one build and of one reading, the start of its process included: on a busy machine TVM's 30 s are
not enough for that."""
LAYOUT_REWRITE = "meta_schedule.layout_rewrite_preproc"


def main() -> None:
    verb, path = sys.argv[1], Path(sys.argv[2])
    request = json.loads(path.read_text())
    workload, shape, folder = workload_from_json(request["workload"]), request["shape"], path.parent
    target = tvm_target(Target.from_json(request["target"]), request["threads"])
    if verb == "search":
        ms.tir_integration.tune_tir(
            static_function(workload, shape), target, str(folder), max_trials_global=request["trials"],
            num_trials_per_iter=request["trials_per_round"], num_tuning_cores=request["cores"], seed=request["seed"],
            builder=ms.builder.LocalBuilder(timeout_sec=TIMEOUT_S), runner=ms.runner.LocalRunner(timeout_sec=TIMEOUT_S),
        )  # fmt: skip
    elif verb == "improve":
        PostOpt(str(folder), target).run()
    else:
        _finish(static_function(workload, shape), target, folder)


def _finish(function: Any, target: Any, folder: Path) -> None:
    database = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    schedule = ms.tir_integration.compile_tir(database, function, target)
    if schedule is None:
        raise SystemExit(f"no schedule was found: see {folder}")
    packed = packing(schedule)
    if packed is not None:
        np.savez(folder / PACKING, shape=packed[0], places=packed[1])
    module = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(schedule.mod)
    # Written whole or not at all: the parent takes the file as a sign that this shape is done.
    unfinished = folder / "unfinished.so"
    tvm.compile(module, target=target).export_library(str(unfinished))
    unfinished.rename(folder / MODULE)


def packing(schedule: Any) -> tuple[list[int], NDArray[np.int64]] | None:
    """The shape that the schedule rewrites the weight to, and for each element, row-major, its place there."""
    blocks = [schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))]
    rewriting = [block for block in blocks if LAYOUT_REWRITE in block.annotations]
    if not rewriting:
        return None
    store, load = rewriting[0].body, rewriting[0].body.value
    # The places of the weight's elements, moved as the schedule moves the weight.
    shape, moved = [int(extent) for extent in store.buffer.shape], tirx.IndexMap(load.indices, store.indices, None)
    places = np.arange(math.prod(shape)).reshape([int(extent) for extent in load.source.shape])
    return shape, moved.map_tensor(tvm.runtime.tensor(places)).numpy().ravel().argsort()


if __name__ == "__main__":
    main()
