"""Libraries that do less, from the same search's results: what the choice of a set and the dispatcher bring."""

from __future__ import annotations

from pathlib import Path

from shapewright.download import write
from shapewright.session import TuneResult
from tuner.library.build import build_library
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import PairCostModel
from tuner.search.observations import Measured, latency_table, normalized


def save_ablation(name: str, tuned: TuneResult, directory: Path) -> Path:
    """Build the ablation ``name`` and write it into ``directory``.

    ``single``: the one kernel that serves the whole range best. ``bucket``: the kernel that is best at the largest
    shape, for all of them (as Nimble, MLSys 2021, tunes for one large shape).
    """
    task, results = tuned.task, normalized(tuned.results)
    measured, model = Measured(results), PairCostModel(task)
    model.update(results)
    if name == "single":
        kernel = finalize.choose_set(task, model, measured, measured.candidates, 1)[0]
    else:
        kernel = _best_at_largest(tuned, model, measured)
    dispatcher = finalize.make_dispatcher(task, model, measured, [kernel])
    write(build_library(dispatcher, None).files, directory)
    return directory


def _best_at_largest(tuned: TuneResult, model: PairCostModel, measured: Measured) -> MicroKernel:
    shapes = tuned.task.shapes()
    pool = measured.candidates
    table = latency_table(tuned.task, model, measured, pool, [shapes[-1]])
    return pool[int(table[:, 0].argmin())]
