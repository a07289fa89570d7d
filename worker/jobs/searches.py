"""The searches of one leased job: they share its budget by expected gain, and each ends with a library.

Where the job's key has several devices, several of its searches run at once: while one thinks, others measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tuner.measure import BuilderLost, DeviceLost, Runner
from tuner.program.job.budget_plan import BudgetPlan, Cost, run_s
from tuner.program.job.task import SearchTask
from tuner.program.target.rates import TYPICAL, Rates
from tuner.search.summary import EndedBy
from tuner.search.tuning import FINISH_S, Cancelled, Finishing
from tuner.storage import SearchTaskRow
from tuner.storage.jsonl import SharedRecord
from worker.budget.lanes import side_by_side
from worker.budget.progress import TaskProgress, Turn, advanced, ended
from worker.budget.shared import SharedBudget
from worker.budget.standings import Standings
from worker.budget.wall_time import WallTime
from worker.devices.calibrations import RatesOf, typical
from worker.jobs import open_searches
from worker.jobs.leased_job import LeasedJob
from worker.jobs.libraries import Libraries
from worker.jobs.open_searches import OpenSearches
from worker.jobs.task_search import OpenSearch, TaskSearch, Tools

__all__ = ["JobSearches", "OpenSearch", "TaskSearch", "Tools"]

LOSSES = 3
"""How often in a row a job may lose its device or its builder, with nothing recorded in between, before the attempt
fails."""
MIN_FINISH_S = 8.0
"""The least time of one library of a cancelled job, where several share FINISH_S."""
MAX_LANES = 8
"""Searches of a job that run at once."""


@dataclass
class JobSearches:
    """Gives each search task of a job its part of the budget, piece by piece, and stores its library.

    As many run at once as the key has devices, MAX_LANES at most. ``stopping`` is true once the worker is shutting
    down. ``shared`` are records of elsewhere that searches start from, ``rates_of`` says what theory takes for devices.
    """

    job: LeasedJob
    tools: Tools
    open_search: OpenSearch
    stopping: Callable[[], bool]
    shared: Sequence[SharedRecord] = ()
    rates_of: RatesOf = typical
    clock: Callable[[], float] = time.monotonic
    began_s: float | None = None
    """When the job's seconds begin to count, by ``clock``; None: once the rates of its devices are known."""

    def __post_init__(self) -> None:
        wall = WallTime(self.job.wall_s, self.clock)
        budget = SharedBudget(self.job.budget, wall, self.clock)
        self._standings = Standings(budget, self.clock, self._should_stop)
        given = self._should_stop, wall.kept_s
        self._open = OpenSearches(self.job, self.tools, self.open_search, self.shared, *given, self._at_rates)
        self._libraries = Libraries(self.job, *given, self.clock)
        self._rates: dict[tuple[str, int], Rates] = {}
        """Rates by the fingerprint of the target, and threads."""
        self._runner: Runner | None = None
        """The runner that all lanes measure by."""
        self._devices = 1
        """The most that there were when lanes were counted."""

    def run(self) -> None:
        """Run until each search task has its library. Raises Cancelled, LeaseLost, StorageUnavailable, DeviceLost,
        BuilderLost, and what a search raises; of what several lanes raise what decides most of the job's end."""
        self._find_rates()
        standings = self._standings
        standings.begin([self._first_standing(row) for row in self.job.lease.tasks])
        self._say_plan()
        standings.budget.begin(self.began_s or self.clock(), standings.spent_s)
        losses, known = 0, -1
        try:
            while standings.undone:
                try:
                    self._run_lanes()
                except (DeviceLost, BuilderLost) as error:
                    self._close()
                    standings.begin([self._restored(position) for position in range(len(standings))])
                    losses, known = (losses + 1, known) if standings.trials == known else (1, standings.trials)
                    if losses >= LOSSES:
                        raise
                    self.job.warn(f"{error}; retrying ({losses} of {LOSSES - 1})")
        except Finishing:
            self._finish()
            raise Cancelled from None
        finally:
            self._close()

    def _find_rates(self) -> None:
        """Find the rates before any search begins, which may take some time: a device may be measured first."""
        for row in self.job.lease.tasks:
            what = row.target_fingerprint, row.task.threads
            if what not in self._rates and not row.done:
                self._rates[what] = self.rates_of(self.job.device, row.task, self._is_unwanted, self.job.note)

    def _is_unwanted(self) -> bool:
        return self._should_stop() or self.job.cancelling()

    def _at_rates(self, row: SearchTaskRow) -> SearchTask:
        what = row.target_fingerprint, row.task.threads
        return row.task.at_rates(self._rates.get(what, TYPICAL))

    # -- lanes ----------------------------------------------------------------------------------------------------
    def _run_lanes(self) -> None:
        """Run until each task has its library, on as many lanes as there are devices now."""
        standings = self._standings
        most = min(len(standings.undone), MAX_LANES, open_searches.MAX_LIVE)
        # After a loss devices come back one by one: there will be as many as before.
        self._devices = max(self._devices, self._shared_runner().devices)
        standings.budget.divide(max(1, min(most, self._devices)), standings.spent_s)
        standings.reset()
        side_by_side(self._lane, standings.budget.count)

    def _lane(self, number: int) -> None:
        """Take turns until no task is left for this lane, or another lane has raised."""
        try:
            while (turn := self._standings.next_turn()) is not None:
                self._take(turn)
        except BaseException as error:
            self._standings.fail(error)
            raise

    def _shared_runner(self) -> Runner:
        if self._runner is None:
            self._runner = self.tools.runner(self.job.device)
        return self._runner

    def _take(self, turn: Turn) -> None:
        """Take a turn. The rest of a search's allowance goes to the others: once nothing helps its library is made."""
        if not turn.is_ending and self._explore(turn) != EndedBy.NOTHING_HELPS:
            return
        self._finalize(turn)

    def _should_stop(self) -> bool:
        return self.job.lost() or self.stopping() or self._standings.is_failing

    def _close(self) -> None:
        self._open.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    # -- standings ------------------------------------------------------------------------------------------------
    def _first_standing(self, row: SearchTaskRow) -> TaskProgress:
        """The progress of a task before this attempt, with what is known of one that shares its budget."""
        stored = self._stored_standing(row)
        if len(self.job.lease.tasks) == 1 or row.done:
            return stored
        return replace(stored, run_s=run_s(row.task), cost=Cost.of(row.task), known=self.job.known_trials(row))

    def _stored_standing(self, row: SearchTaskRow) -> TaskProgress:
        trials = len(self.job.records(row))
        return TaskProgress(row.count, trials, row.spent_s, is_done=row.done)

    def _say_plan(self) -> None:
        """Note the plan at the beginning, where not all of several workloads can be searched, or some are known."""
        plan = BudgetPlan.of(((row.task, row.count) for row in self.job.lease.tasks), self.job.budget)
        known = sum(each.known > 0 for each in self._standings)
        has_begun = any(each.trials or each.is_done for each in self._standings)
        if plan.searches == 1 or has_begun or (plan.affordable == plan.searches and not known):
            return
        self.job.note(f"{plan}{f'; {known} known from earlier jobs' if known else ''}")

    def _restored(self, position: int) -> TaskProgress:
        """A standing after a loss: what was recorded counts, and what was allowed still is."""
        stored = self._stored_standing(self.job.task(self.job.lease.tasks[position].id))
        return replace(self._standings[position], trials=stored.trials, spent_s=stored.spent_s)

    # -- one search -----------------------------------------------------------------------------------------------
    def _search(self, position: int) -> TaskSearch:
        self._libraries.begin(position)
        return self._open.get(position, self._shared_runner(), lambda: self._standings.in_turn)

    def _explore(self, turn: Turn) -> EndedBy:
        position, allowance = turn.position, turn.allowance
        search = self._search(position)
        after_s = self._libraries.reserve_s(position, allowance) + self._standings.late_s
        ended_by = search.explore(allowance, after_s)
        standing = advanced(self._standings[position], allowance, search.summary)
        ending = replace(turn, since_s=self.clock(), is_ending=True)
        # Nobody else takes a task whose library is made next.
        goes_on = not turn.is_ending and ended_by != EndedBy.NOTHING_HELPS
        self._standings.end_turn(position, standing, None if goes_on else ending)
        return ended_by

    def _finalize(self, turn: Turn) -> None:
        before = self._standings[turn.position]
        if before.allowance is None and not before.trials and (kept := self._libraries.keep(turn.position)):
            self._standings.end_turn(turn.position, ended(before, kept))
            return
        if turn.position not in self._open:
            # Opened again after a loss, or where too many were open: with its records, and its allowance.
            self._explore(replace(turn, is_ending=True))
        search = self._search(turn.position)
        with self._comparing() as runner:
            summary = self._libraries.make(turn.position, search, runner, turn.allowance, self._standings.late_s)
        self._open.close_one(turn.position)
        self._standings.end_turn(turn.position, ended(self._standings[turn.position], summary))

    @contextmanager
    def _comparing(self) -> Iterator[Runner]:
        """What two libraries are compared by: one device for all of their calls, which other lanes leave alone."""
        if self._standings.budget.count == 1:
            yield self._shared_runner()
            return
        runner = self.tools.runner(self.job.device)
        try:
            yield runner
        finally:
            runner.close()

    def _finish(self) -> None:
        """Cancelled: store the library of what was measured for each task that has enough, while there is time."""
        self._standings.reset()
        deadline = time.monotonic() + FINISH_S
        live, undone = self._open.latest_first, self._standings.undone
        others = [position for position in undone if self._standings[position].trials and position not in live]
        positions = [position for position in live if position in undone] + others
        for number, position in enumerate(positions):
            left_s = deadline - time.monotonic()
            if left_s > 0:
                within_s = max(MIN_FINISH_S, left_s / (len(positions) - number))
                self._finish_task(position, within_s)

    def _finish_task(self, position: int, within_s: float) -> None:
        try:
            search = self._search(position)
        except (DeviceLost, BuilderLost) as error:
            self.job.warn(f"no library of what was measured: {error}")
            return
        self._libraries.finish(position, search, within_s)
