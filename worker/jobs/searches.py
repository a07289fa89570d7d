"""The searches of one leased job: they share its budget by expected gain, and each ends with a library.

Where the job's key has several devices, several of its searches run at once: while one thinks, others measure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tuner.measure import BuilderLost, DeviceLost, Runner
from tuner.program.job.budget_plan import BudgetPlan, Cost, run_s
from tuner.program.job.jobspec import Budget
from tuner.program.job.task import SearchTask
from tuner.program.target.rates import TYPICAL, Rates
from tuner.search.summary import EndedBy
from tuner.search.tuning import FINISH_S, Cancelled, Finishing
from tuner.storage import SearchTaskRow
from tuner.storage.jsonl import SharedRecord
from worker.budget.lanes import side_by_side
from worker.budget.shared import SharedBudget
from worker.budget.split import (
    TaskProgress,
    ending_allowance,
    is_worth_waiting,
    next_library,
    next_piece,
)
from worker.budget.turns import Turn, advanced, ended
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
LOOK_S = 0.5
"""How soon a lane that waits for others notices that the worker is stopping."""


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
    _standings: list[TaskProgress] = field(default_factory=list)
    """The progress of each task as of its last turn."""
    _turns: dict[int, Turn] = field(default_factory=dict)
    """The turns that are being taken, by position."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards what is above and the two below; is notified when a lane has done something."""
    _is_ending: bool = False
    """A lane has raised: no turn is taken any more."""
    _is_failing: bool = False
    """A lane raised something else than that the job is cancelled: the others stop at once."""
    _devices: int = 1
    """The most that there were when lanes were counted."""
    _runner: Runner | None = None
    """The runner that all lanes measure by."""
    _rates: dict[tuple[str, int], Rates] = field(default_factory=dict)
    """Rates by the fingerprint of the target, and threads."""

    def __post_init__(self) -> None:
        wall = WallTime(self.job.wall_s, self.clock)
        self._budget = SharedBudget(self.job.budget, wall, self.clock)
        given = self._should_stop, wall.kept_s
        self._open = OpenSearches(self.job, self.tools, self.open_search, self.shared, *given, self._at_rates)
        self._libraries = Libraries(self.job, *given, self.clock)

    def run(self) -> None:
        """Run until each search task has its library. Raises Cancelled, LeaseLost, StorageUnavailable, DeviceLost,
        BuilderLost, and what a search raises; of what several lanes raise what decides most of the job's end."""
        self._find_rates()
        self._standings = [self._first_standing(row) for row in self.job.lease.tasks]
        self._say_plan()
        self._budget.begin(self.began_s or self.clock(), self._spent_s)
        losses, known = 0, -1
        try:
            while not all(standing.is_done for standing in self._standings):
                try:
                    self._run_lanes()
                except (DeviceLost, BuilderLost) as error:
                    self._close()
                    self._standings = [self._restored(position) for position in range(len(self._standings))]
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

    def _find_rates(self) -> None:
        """Find the rates before any search begins, which may take some time: a device may be measured first."""
        for row in self.job.lease.tasks:
            what = row.target_fingerprint, row.task.threads
            if what not in self._rates and not row.done:
                self._rates[what] = self.rates_of(self.job.device, row.task, self._is_unwanted)

    def _is_unwanted(self) -> bool:
        return self._should_stop() or self.job.cancelling()

    def _at_rates(self, row: SearchTaskRow) -> SearchTask:
        what = row.target_fingerprint, row.task.threads
        return row.task.at_rates(self._rates.get(what, TYPICAL))

    # -- lanes ----------------------------------------------------------------------------------------------------
    def _run_lanes(self) -> None:
        """Run until each task has its library, on as many lanes as there are devices now."""
        left = sum(not standing.is_done for standing in self._standings)
        most = min(left, MAX_LANES, open_searches.MAX_LIVE)
        # After a loss devices come back one by one: there will be as many as before.
        self._devices = max(self._devices, self._shared_runner().devices)
        self._budget.divide(max(1, min(most, self._devices)), self._spent_s)
        self._reset()
        side_by_side(self._lane, self._budget.count)

    def _reset(self) -> None:
        self._turns.clear()
        self._is_ending = self._is_failing = False

    def _lane(self, number: int) -> None:
        """Take turns until no task is left for this lane, or another lane has raised."""
        try:
            while (turn := self._next_turn()) is not None:
                self._take(turn)
        except BaseException as error:
            with self._changed:
                self._is_ending = True
                self._is_failing |= not isinstance(error, Finishing)
                self._changed.notify_all()
            raise

    def _shared_runner(self) -> Runner:
        if self._runner is None:
            self._runner = self.tools.runner(self.job.device)
        return self._runner

    def _next_turn(self) -> Turn | None:
        """The next piece of the budget for a task that no lane has, or its library where there is no piece. Waits where
        the others may leave some. None where the others have all that are left, and where one of them has raised."""
        with self._changed:
            while not self._is_ending:
                if self._should_stop():
                    raise Cancelled
                tasks = self._now()
                idle = [at for at, task in enumerate(tasks) if not task.is_done and at not in self._turns]
                if not idle:
                    return None
                budget = self._given_out()
                piece = next_piece(budget, tasks, self._budget.lanes())
                if piece is not None or not is_worth_waiting(budget, tasks):
                    return self._begin_turn(*(piece or (next_library(tasks, idle), None)))
                self._changed.wait(LOOK_S)
        return None

    def _begin_turn(self, position: int, allowance: Budget | None) -> Turn:
        has = allowance or ending_allowance(self._given_out(), self._now(), position, self._budget.lanes())
        self._turns[position] = turn = Turn(position, has, self.clock(), is_ending=allowance is None)
        return turn

    def _now(self) -> list[TaskProgress]:
        """Where the tasks stand, those with a turn as far as it has come."""
        now_s, turns = self.clock(), self._turns
        return [
            turns[position].standing(standing, now_s) if position in turns else standing
            for position, standing in enumerate(self._standings)
        ]

    def _given_out(self) -> Budget:
        return self._budget.given_out(self._spent_s, tasks=len(self._standings))

    def _late_s(self) -> float:
        return self._budget.late_s(self._spent_s)

    @property
    def _spent_s(self) -> float:
        """Seconds that all searches have spent, as of the last turn of each."""
        return sum(standing.spent_s for standing in self._standings)

    def _take(self, turn: Turn) -> None:
        """Take a turn. The rest of a search's allowance goes to the others: once nothing helps its library is made."""
        if not turn.is_ending and self._explore(turn) != EndedBy.NOTHING_HELPS:
            return
        self._finalize(turn)

    def _should_stop(self) -> bool:
        return self.job.lost() or self.stopping() or self._is_failing

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

    def _stands(self, position: int, standing: TaskProgress, turn: Turn | None = None) -> None:
        """A turn has ended, or is another one now."""
        with self._changed:
            self._standings[position] = standing
            self._turns.pop(position, None)
            if turn is not None:
                self._turns[position] = turn
            self._changed.notify_all()

    # -- one search -----------------------------------------------------------------------------------------------
    def _search(self, position: int) -> TaskSearch:
        self._libraries.begin(position)
        return self._open.get(position, self._shared_runner(), lambda: list(self._turns))

    def _explore(self, turn: Turn) -> EndedBy:
        position, allowance = turn.position, turn.allowance
        search = self._search(position)
        after_s = self._libraries.reserve_s(position, allowance) + self._late_s()
        ended_by = search.explore(allowance, after_s)
        standing = advanced(self._standings[position], allowance, search.summary)
        ending = replace(turn, since_s=self.clock(), is_ending=True)
        # Nobody else takes a task whose library is made next.
        goes_on = not turn.is_ending and ended_by != EndedBy.NOTHING_HELPS
        self._stands(position, standing, None if goes_on else ending)
        return ended_by

    def _finalize(self, turn: Turn) -> None:
        before = self._standings[turn.position]
        if before.allowance is None and not before.trials and (kept := self._libraries.keep(turn.position)):
            self._stands(turn.position, ended(before, kept))
            return
        if turn.position not in self._open:
            # Opened again after a loss, or where too many were open: with its records, and its allowance.
            self._explore(replace(turn, is_ending=True))
        search = self._search(turn.position)
        with self._comparing() as runner:
            summary = self._libraries.make(turn.position, search, runner, turn.allowance, self._late_s())
        self._open.close_one(turn.position)
        self._stands(turn.position, ended(self._standings[turn.position], summary))

    @contextmanager
    def _comparing(self) -> Iterator[Runner]:
        """What two libraries are compared by: one device for all of their calls, which other lanes leave alone."""
        if self._budget.count == 1:
            yield self._shared_runner()
            return
        runner = self.tools.runner(self.job.device)
        try:
            yield runner
        finally:
            runner.close()

    def _finish(self) -> None:
        """Cancelled: store the library of what was measured for each task that has enough, while there is time."""
        self._reset()
        deadline = time.monotonic() + FINISH_S
        live = self._open.latest_first
        others = [at for at, standing in enumerate(self._standings) if standing.trials and at not in live]
        positions = [at for at in (*live, *others) if not self._standings[at].is_done]
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
