"""The libraries that a job's searches end with: made, compared with those that are served, and stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tuner.errors import ShapewrightError
from tuner.measure import BuilderLost, DeviceLost, Interrupted, Runner
from tuner.program.job.jobspec import Budget
from tuner.search.budget import COMPARE_S, COMPARE_SHARE
from tuner.search.comparison import Contender, compare
from tuner.search.summary import SearchSummary, Stage
from tuner.search.tuning import Cancelled, Tuned
from tuner.search.verdict import within
from tuner.storage import Comparison, LeaseLost, NewEvent, StorageUnavailable
from worker.jobs.leased_job import LeasedJob, Served
from worker.jobs.recorder import LeaseRecorder
from worker.jobs.task_search import TaskSearch

LATE_SHARE = 0.025
"""The part of them that it may take, and at most twice as long, where the seconds are over."""


@dataclass
class Libraries:
    """Methods may be called from several threads, each for a position that is its own for the while."""

    job: LeasedJob
    should_stop: Callable[[], bool]
    wall_s: Callable[[], float | None]
    clock: Callable[[], float] = time.monotonic
    _is_served: dict[int, bool] = field(default_factory=dict)
    """Whether a library that the new one is to be compared with was there when its search began, by position."""

    def begin(self, position: int) -> None:
        """Before the search of a task begins: what it is going to be compared with is what is served now."""
        if position not in self._is_served:
            self._is_served[position] = self._served(position) is not None

    def reserve_s(self, position: int, allowance: Budget) -> float:
        """Seconds of an allowance that are kept for the comparison."""
        return _compare_s(allowance) if self._is_served[position] else 0.0

    def make(
        self, position: int, search: TaskSearch, runner: Runner, allowance: Budget, after_s: float = 0.0
    ) -> SearchSummary:
        """Make the library of a task, compare it with the one that is served, and store it, within ``allowance``.

        ``after_s``: seconds of that which somebody else has used.
        """
        tuned = search.finalize(self.job.id, allowance, self.reserve_s(position, allowance) + after_s)
        kept = self._served(position) if self._is_served[position] else None
        served = kept.contender if kept else None
        if served is None or tuned.manifest.get("digest") == served.digest:
            return self._save(position, tuned, None)
        began_s, before_s = self.clock(), tuned.summary.elapsed_s
        self._say(position, replace(tuned.summary, phase=Stage.COMPARE))
        comparison = self._comparison(position, tuned, served, runner, _limit_s(allowance, before_s + after_s))
        # It is a part of what the task took, as any other.
        summary = replace(tuned.summary, elapsed_s=before_s + self.clock() - began_s)
        return self._save(position, replace(tuned, summary=summary), comparison)

    def keep(self, position: int) -> SearchSummary | None:
        """Store the library that is served as that of a task there was no budget to search for: what theory alone would
        make is not better by any measurement. None where none is served."""
        served = self._served(position)
        if served is None:
            return None
        self.job.note(f"search task {position + 1}: no budget to search; {served.contender.digest[:12]} stays")
        kernels, before = len(served.contender.dispatcher.kernels), self.job.summary(position)
        summary = replace(before, phase=Stage.DONE, kernels=kernels, digest=served.contender.digest)
        return self._save(position, Tuned(served.files, served.manifest, served.dispatch, summary), None)

    def finish(self, position: int, search: TaskSearch, within_s: float) -> SearchSummary | None:
        """Store the library of what was measured for a task of a job that is cancelled; None where that is too little
        or too late."""
        try:
            tuned = search.finish(self.job.id, within_s)
        except Cancelled:
            return None
        except (DeviceLost, BuilderLost) as error:
            self.job.warn(f"no library of what was measured: {error}")
            return None
        return self._save(position, tuned, None, done=False)

    def _save(self, position: int, tuned: Tuned, comparison: Comparison | None, *, done: bool = True) -> SearchSummary:
        self._say(position, tuned.summary)
        self.job.save_library(self.job.lease.tasks[position], tuned, comparison, done=done)
        return tuned.summary

    def _say(self, position: int, summary: SearchSummary) -> None:
        """Store how far a task is, and what it took."""
        told = NewEvent("progress", summary.to_json())
        row = self.job.lease.tasks[position]
        LeaseRecorder(self.job, row, self.wall_s).record([], [told], summary.elapsed_s or None, summary)

    def _served(self, position: int) -> Served | None:
        """The library that the new one is to be compared with; None for one that cannot be read, which says so."""
        try:
            return self.job.served(self.job.lease.tasks[position])
        except (LeaseLost, StorageUnavailable):
            raise
        except ShapewrightError as error:
            self.job.warn(f"the library that is served cannot be compared with: {error}")
            return None

    def _comparison(
        self, position: int, tuned: Tuned, served: Contender, runner: Runner, limit_s: float
    ) -> Comparison | None:
        """How the new library does beside the one that is served, in turns on the device. None where that cannot be
        said, and where it takes twice as long as it may: the library is worth more than its comparison."""
        task, until_s = self.job.lease.tasks[position].task, self.clock() + 2 * limit_s

        def interrupted() -> bool:
            return self.should_stop() or self.job.cancelling() or self.clock() > until_s

        try:
            # The device may be busy for other lanes.
            runner.ready(task, interrupted)
            new = Contender.of(tuned.manifest, tuned.dispatch, tuned.files)
            result = compare(task, runner, new, served, limit_s=limit_s, interrupted=interrupted)
        except Interrupted:
            result = None
        except DeviceLost as error:
            self.job.warn(f"the library is not compared with the one that is served: {error}")
            return None
        against = f"the library served before ({served.digest[:12]})"
        if result is None:
            self.job.note(f"not compared with {against}: the device could not tell, or not in {limit_s:.3g} s")
        else:
            caution = f"; {result.caution}" if result.caution else ""
            self.job.note(f"{within(against, result.ratio, result.noise)}{caution}")
        return result


def _limit_s(allowance: Budget, spent_s: float) -> float:
    """The time that comparing may take where ``spent_s`` of the allowance are gone; a little even where all are."""
    if allowance.seconds is None:
        return _compare_s(allowance)
    return min(_compare_s(allowance), max(LATE_SHARE * allowance.seconds, allowance.seconds - spent_s))


def _compare_s(budget: Budget) -> float:
    return COMPARE_S if budget.seconds is None else min(COMPARE_S, COMPARE_SHARE * budget.seconds)
