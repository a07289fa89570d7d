"""The searches of one leased job: they share its budget by expected gain, and each ends with a library."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tuner.errors import ShapewrightError
from tuner.measure import Builder, BuilderLost, DeviceLost, Runner
from tuner.program.jobspec import Budget
from tuner.search.comparison import COMPARE_S, Contender, compare
from tuner.search.reuse import shared_knowledge
from tuner.search.summary import EndedBy, SearchSummary
from tuner.search.tuning import FINISH_S, Cancelled, Finishing, Tuned
from tuner.storage import Comparison, LeaseLost, NewEvent, SearchTaskRow, StorageUnavailable
from tuner.storage.jsonl import SharedRecord
from worker.budget import Standing, next_piece
from worker.leased_job import LeasedJob
from worker.recorder import LeaseRecorder

log = logging.getLogger(__name__)

LOSSES = 3
"""How often in a row a job may lose its device or its builder, with nothing recorded in between, before the attempt
fails."""
COMPARE_SHARE = 0.1
"""The largest share of a task's seconds that is kept for comparing the library with the one that is served."""
MIN_FINISH_S = 8.0
"""What one library of a cancelled job may take, where several share FINISH_S."""
MAX_LIVE = 16
"""Searches that are kept in memory. Another one is begun again from its records when its turn comes."""


class Tools(Protocol):
    """What a search builds and measures with. Requested again after each loss, so that it can be replaced."""

    def builder(self) -> Builder:
        """Raises BuilderLost."""

    def runner(self, key: str) -> Runner:
        """For the devices of a tracker key."""

    def parallel_builds(self, key: str, threads: int) -> int:
        """How many kernels may be built while others are measured on those devices, on so many threads each."""


class TaskSearch(Protocol):
    """What a job's budget is spent on: tuner.search.search.Search."""

    @property
    def summary(self) -> SearchSummary: ...

    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy: ...

    def finalize(self, job_id: str | None) -> Tuned: ...

    def finish(self, job_id: str | None, within_s: float = FINISH_S) -> Tuned: ...

    def close(self) -> None: ...


OpenSearch = Callable[..., TaskSearch]
"""Called with a task and the keywords of Search."""


@dataclass
class JobSearches:
    """Gives each search task of a job its part of the budget, piece by piece, and stores its library.

    ``stopping`` is true once the worker is shutting down. ``shared`` are records of elsewhere that searches start from.
    """

    job: LeasedJob
    tools: Tools
    open_search: OpenSearch
    stopping: Callable[[], bool]
    shared: Sequence[SharedRecord] = ()
    _rows: Sequence[SearchTaskRow] = ()
    _standings: list[Standing] = field(default_factory=list)
    _live: OrderedDict[int, TaskSearch] = field(default_factory=OrderedDict)
    """By position, the one used last at the end."""
    _runner: Runner | None = None
    _is_served: dict[int, bool] = field(default_factory=dict)
    """By position, whether a library that the new one is to be compared with was there when its search began."""

    def run(self) -> None:
        """Until each search task has its library. Raises Cancelled, LeaseLost, StorageUnavailable, DeviceLost,
        BuilderLost, and what a search raises."""
        self._rows = self.job.lease.tasks
        self._standings = [self._stored_standing(row) for row in self._rows]
        losses, known = 0, -1
        try:
            while not all(standing.is_done for standing in self._standings):
                try:
                    self._go_on()
                except (DeviceLost, BuilderLost) as error:
                    self._close()
                    self._standings = [self._restored(position) for position in range(len(self._rows))]
                    trials = sum(standing.trials for standing in self._standings)
                    losses, known = (losses + 1, known) if trials == known else (1, trials)
                    if losses >= LOSSES:
                        raise
                    self.job.warn(f"{error}; retrying ({losses} of {LOSSES - 1})")
        except Finishing:
            self._finish()
            raise Cancelled from None
        finally:
            self._close()

    # -- the budget -----------------------------------------------------------------------------------------------
    def _go_on(self) -> None:
        """Spend the next piece of the budget, or make a library where there is none."""
        if self._should_stop():
            raise Cancelled
        piece = next_piece(self.job.budget, self._standings)
        if piece is None:
            self._finalize(next(at for at, standing in enumerate(self._standings) if not standing.is_done))
            return
        position, allowance = piece
        if self._explore(position, allowance) == EndedBy.NOTHING_HELPS:
            # What it leaves of its allowance goes to the others.
            self._finalize(position)

    def _explore(self, position: int, allowance: Budget) -> EndedBy:
        search = self._search(position)
        ended_by = search.explore(allowance, _compare_s(allowance) if self._is_served[position] else 0.0)
        self._standings[position] = _advanced(self._standings[position], allowance, search.summary)
        return ended_by

    def _stored_standing(self, row: SearchTaskRow) -> Standing:
        trials = len(self.job.records(row))
        return Standing(row.count, trials, row.spent_s, is_done=row.done)

    def _restored(self, position: int) -> Standing:
        """A standing after a loss: what was recorded counts, and what was allowed still is."""
        stored = self._stored_standing(self.job.task(self._rows[position].id))
        return replace(self._standings[position], trials=stored.trials, spent_s=stored.spent_s)

    # -- searches -------------------------------------------------------------------------------------------------
    def _search(self, position: int) -> TaskSearch:
        """The search of a task, begun again from its records if it is not in memory."""
        if position in self._live:
            self._live.move_to_end(position)
            return self._live[position]
        while len(self._live) >= MAX_LIVE:
            self._live.popitem(last=False)[1].close()
        job = self.job
        if self._runner is None:
            self._runner = self.tools.runner(job.device)
        row = job.task(self._rows[position].id)
        if position not in self._is_served:
            self._is_served[position] = self._served(position) is not None
        search = self.open_search(
            row.task,
            builder=self.tools.builder(),
            runner=self._runner,
            recorder=LeaseRecorder(job, row),
            policy=job.policy,
            seed=job.seed,
            past=job.records(row),
            baselines=row.baselines,
            knowledge=job.knowledge(row) + shared_knowledge(() if job.is_theory else self.shared, row.task),
            spent_s=row.spent_s,
            parallel_builds=self.tools.parallel_builds(job.device, row.task.threads),
            should_stop=self._should_stop,
            should_finish=job.cancelling,
        )
        self._live[position] = search
        return search

    def _should_stop(self) -> bool:
        return self.job.lost() or self.stopping()

    def _close(self) -> None:
        while self._live:
            self._live.popitem()[1].close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # -- libraries ------------------------------------------------------------------------------------------------
    def _finalize(self, position: int) -> None:
        """Make the library of a task, compare it with the one that is served, and store it."""
        if position not in self._live:
            # Opened again after a loss, or for want of room: with its records, and its allowance.
            self._explore(position, self._standings[position].allowance or self.job.budget)
        tuned = self._live[position].finalize(self.job.id)
        comparison = self._comparison(position, tuned)
        self._save(position, tuned, comparison)
        self._live.pop(position).close()

    def _finish(self) -> None:
        """Cancelled: store the library of what was measured for each task that has enough, while there is time."""
        deadline = time.monotonic() + FINISH_S
        live = list(reversed(self._live))
        others = [at for at, standing in enumerate(self._standings) if standing.trials and at not in live]
        positions = [at for at in (*live, *others) if not self._standings[at].is_done]
        for number, position in enumerate(positions):
            left_s = deadline - time.monotonic()
            if left_s > 0:
                self._finish_task(position, max(MIN_FINISH_S, left_s / (len(positions) - number)))

    def _finish_task(self, position: int, within_s: float) -> None:
        try:
            tuned = self._search(position).finish(self.job.id, within_s)
        except Cancelled:
            return
        except (DeviceLost, BuilderLost) as error:
            self.job.warn(f"no library of what was measured: {error}")
            return
        self._save(position, tuned, None, done=False)

    def _save(self, position: int, tuned: Tuned, comparison: Comparison | None, *, done: bool = True) -> None:
        row = self._rows[position]
        LeaseRecorder(self.job, row).record([], [NewEvent("progress", tuned.summary.to_json())], None, tuned.summary)
        self.job.save_library(row, tuned, comparison, done=done)
        standing = self._standings[position]
        spent = tuned.summary.trials, tuned.summary.elapsed_s
        self._standings[position] = replace(standing, trials=spent[0], spent_s=spent[1], is_done=done)

    def _served(self, position: int) -> Contender | None:
        """The library that the new one is to be compared with; None for one that cannot be read, which says so."""
        try:
            return self.job.incumbent(self._rows[position])
        except (LeaseLost, StorageUnavailable):
            raise
        except ShapewrightError as error:
            self.job.warn(f"the library that is served cannot be compared with: {error}")
            return None

    def _comparison(self, position: int, tuned: Tuned) -> Comparison | None:
        """How the new library does beside the one that is served, in turns on the device. None where that cannot be
        said: the library is worth more than its comparison."""
        served = self._served(position) if self._is_served[position] else None
        if served is None or self._runner is None or tuned.manifest.get("digest") == served.digest:
            return None
        limit_s = _compare_s(self._standings[position].allowance or self.job.budget)
        try:
            new = Contender.of(tuned.manifest, tuned.dispatch, tuned.files)
            result = compare(
                self._rows[position].task,
                self._runner,
                new,
                served,
                limit_s=limit_s,
                interrupted=lambda: self._should_stop() or self.job.cancelling(),
            )
        except DeviceLost as error:
            self.job.warn(f"the library is not compared with the one that is served: {error}")
            return None
        if result is not None:
            against = f"the library served before ({served.digest[:12]})"
            self.job.note(f"{result.ratio:.3f} times as fast as {against}, within {100 * result.noise:.1f} %")
        return result


def _advanced(before: Standing, allowance: Budget, now: SearchSummary) -> Standing:
    """A standing after another piece of the budget."""
    trials = now.trials - before.trials
    saved_s = before.saved_s
    if trials > 0 and before.objective_s and now.objective_s:
        saved_s = max(0.0, before.objective_s - now.objective_s) / trials
    return replace(
        before,
        trials=now.trials,
        spent_s=now.elapsed_s,
        allowance=allowance,
        objective_s=now.objective_s,
        saved_s=saved_s,
        round_s=now.elapsed_s / now.round if now.round else 0.0,
    )


def _compare_s(budget: Budget) -> float:
    return COMPARE_S if budget.seconds is None else min(COMPARE_S, COMPARE_SHARE * budget.seconds)
