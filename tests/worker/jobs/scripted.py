"""A search in the place of the real one, which does as a test tells it; and tools that hand out nothing that works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from tuner.program.job.jobspec import Budget
from tuner.search.summary import EndedBy, SearchSummary, Stage
from tuner.search.tuning import Cancelled, SearchStart, SearchTools, Tuned
from worker.jobs.searches import OpenSearch

Script = Callable[..., Tuned]
"""Called with the task and, as keywords, all else that ``tuner.search.tuning.tune`` takes."""


@dataclass
class Tools:
    """Hands out nothing that works: scripted searches neither build nor measure."""

    devices: int = 1
    made: int = 0
    closed: int = 0
    """Of runners."""

    def builder(self) -> Any:
        return self

    def runner(self, key: str) -> Any:
        self.made += 1
        return self

    def parallel_builds(self, key: str, threads: int) -> int:
        return 0

    def close(self) -> None:
        self.closed += 1


class ScriptedSearch:
    """Runs ``script`` where a search makes its library, and ``finishing`` where it is cancelled."""

    def __init__(
        self, script: Script, finishing: Script | None, task: Any, tools: SearchTools, start: SearchStart, **given: Any
    ) -> None:
        self._script, self._finishing, self._task = script, finishing, task
        self._given = given | {each.name: getattr(of, each.name) for of in (tools, start) for each in fields(of)}
        self._budget, self._after_s = Budget(0, 0.0), 0.0

    @property
    def summary(self) -> SearchSummary:
        return SearchSummary()

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        self._budget, self._after_s = budget, after_s
        return EndedBy.TRIALS

    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        return self._run(self._script, job_id)

    def finish(self, job_id: str | None, within_s: float = 0.0) -> Tuned:
        if self._finishing is None:
            raise Cancelled
        return self._run(self._finishing, job_id)

    def close(self) -> None:
        """Nothing to end."""

    def _run(self, script: Script, job_id: str | None) -> Tuned:
        return script(self._task, job_id=job_id, budget=self._budget, after_s=self._after_s, **self._given)


def scripted(script: Script, finishing: Script | None = None) -> OpenSearch:
    return partial(ScriptedSearch, script, finishing)


def tuned(trials: int = 1) -> Tuned:
    manifest = {"digest": "d" * 64}
    summary = SearchSummary(Stage.DONE, trials=trials)
    return Tuned({"library.so": b"so", "manifest.json": b"{}"}, manifest, {"format": 1}, summary)
