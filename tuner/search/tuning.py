"""One search from start to library: the loop that `shapewright tune`, `sw.tune` and the workers all run."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.search.chosen import VerificationFailed
from tuner.search.context import FROM_NOTHING, Recorder, SearchStart, SearchTools
from tuner.search.final_set import Tuned
from tuner.search.search import FINISH_S, Search
from tuner.search.stopping import Cancelled, Finishing

__all__ = [
    "FINISH_S", "FROM_NOTHING", "Cancelled", "Finishing", "Recorder", "Search", "SearchStart", "SearchTools", "Tuned",
    "VerificationFailed", "tune",
]  # fmt: skip


def tune(
    task: SearchTask,
    tools: SearchTools,
    start: SearchStart = FROM_NOTHING,
    *,
    budget: Budget,
    after_s: float = 0.0,
    job_id: str | None = None,
    **given: Any,
) -> Tuned:
    """Search, select, time, verify, build: a whole search with one budget.

    ``given``: as for ``Search``. ``after_s``: seconds of the budget that are left for what comes after. A search that
    ``should_finish`` ends with the library of what was measured, within FINISH_S, or Cancelled where that is too
    little for one. Raises Cancelled, DeviceLost, BuilderLost, InvalidInput, VerificationFailed.
    """
    with closing(Search(task, tools, start, **given)) as search:
        try:
            search.explore(budget, after_s)
            return search.finalize(job_id)
        except Finishing:
            return search.finish(job_id)
