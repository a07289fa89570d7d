"""A search that can be given its budget piece by piece: explored for a while, left, gone on with, and ended."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tuner.measure import KeptBuilds
from tuner.program.job.jobspec import Budget
from tuner.program.job.policies import DEFAULT_POLICY
from tuner.program.job.task import SearchTask
from tuner.records import Phase
from tuner.schedule import rules_of, space_of
from tuner.search.budget import BudgetTracker
from tuner.search.chosen import VerificationFailed
from tuner.search.context import FROM_NOTHING, SearchContext, SearchStart, SearchTools, equivalent_devices
from tuner.search.cost_model import PairCostModel
from tuner.search.final_set import FinalSet, Tuned
from tuner.search.pipeline import Round
from tuner.search.policy import Suggestion, dispatched, make_policy, shortlist, suggestions_of
from tuner.search.reuse import Reuse
from tuner.search.stopping import Cancelled, Stopping
from tuner.search.summary import EndedBy, SearchSummary, Stage
from tuner.search.trials import Trials

KNOWN_SHARE = 0.5
"""The largest share of what is left for the search that timing known kernels again may take."""
FINISH_S = 30.0
"""How long a search that is cancelled may take to build and verify a library."""
NO_BUDGET = Budget(0, 0.0)


class Search:
    """The search of one task. ``explore`` spends a budget, ``finalize`` makes the library of what was measured.

    ``policy``: a name of tuner.search.policy.POLICIES. ``parallel_builds``: how many kernels may be built while another
    is measured; None: one for each core of this machine beyond the task's threads. Time is charged to the budget while
    one of the methods runs. Close it when it is no longer needed.
    """

    def __init__(
        self,
        task: SearchTask,
        tools: SearchTools,
        start: SearchStart = FROM_NOTHING,
        *,
        policy: str = DEFAULT_POLICY,
        seed: int = 0,
        parallel_builds: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if parallel_builds is None:
            parallel_builds = max(0, len(os.sched_getaffinity(0)) - task.threads)
        self._budget = BudgetTracker(NO_BUDGET, start.spent_s, clock)
        self._task, self._searched, self._runner = task, task.with_least_shape(), tools.runner
        space = space_of(task)
        reuse = Reuse(self._searched, space, start.knowledge)
        self._model = PairCostModel(task, seed, reuse.warm)
        self._policy = make_policy(policy, self._searched, space, self._model, seed)
        self._policy.recall(reuse.wrong, reuse.timed)
        self._builds = KeptBuilds(task, tools.builder, parallel_builds)
        self._stop = Stopping(tools.should_stop, tools.should_finish, self._budget)
        context = SearchContext(task, tools, self._model, self._policy, self._builds, self._budget, self._stop)
        self._trials = Trials(context, start.baselines)
        self._trials.reused = reuse.facts
        self._measured = self._trials.measured
        # Chosen before anything is learned here, so that whoever resumes the search chooses the same.
        self._space, self._seed = space, seed
        self._theory, self._known = list(self._policy.theory), reuse.picks(self._model)
        self._reuse = reuse
        self._final = FinalSet(context, self._trials, self._theory)
        # What another version of the rules measured for the job says nothing of today's kernels.
        self._past = [record.result for record in start.past if space.has_rule_of(record.result.kernel)]
        self._is_begun = self._has_run = False
        self._budget.pause()

    @property
    def summary(self) -> SearchSummary:
        """The figures as they stand."""
        return self._trials.summary(Stage.SEARCH)

    def close(self) -> None:
        """Wait for what is being built; what was not begun is not."""
        self._builds.close()

    # -- the search -----------------------------------------------------------------------------------------------
    def explore(self, budget: Budget, after_s: float = 0.0) -> EndedBy:
        """Rounds of suggest, build, run, update until all of ``budget`` but the reserve for the library is spent, or no
        gain is expected; which of them it was.

        ``budget`` is the whole of it, with what was spent by earlier calls and workers; ``after_s``: seconds of it that
        are left for what comes after the library. Raises Cancelled, Finishing, DeviceLost, BuilderLost.
        """
        with self._charged():
            self._budget.allow(budget, after_s)
            self._begin()
            if not self._has_run:
                self._trials.report_progress(Stage.PLAN)
            self._time_known()
            self._complete_default()
            self._trials.ended_by = ended_by = self._rounds()
            self._trials.explain_end(self._final.reserve_s())
        return ended_by

    def _rounds(self) -> EndedBy:
        """One round after another; beside measurements, many in one stretch."""
        trials = self._trials
        while True:
            reserve, reserve_s = self._final.reserve_trials(), self._final.reserve_s()
            left = trials.left(reserve)
            if (ended_by := self._budget.ended_by(left, reserve_s)) is not None:
                return ended_by
            suggestions = self._policy.suggest(left, devices=equivalent_devices(self._task, self._runner))
            if not suggestions:
                trials.log("no candidate is expected to help: the search ends early")
                return EndedBy.NOTHING_HELPS
            # Before the default is measured there is nothing to plan the next round by.
            plan_next = self._plan_next_round if self._has_run else None
            phase = Phase.SEARCH if trials.round else Phase.THEORY
            trials.run(suggestions, phase, reserve_s, reserve, plan_next)
            # After the first round's results are stored: a device that fails over the baselines loses none of them.
            trials.measure_baselines(reserve_s)
            self._final.time_verification(reserve_s)
            trials.round, self._has_run = trials.round + 1, True

    @contextmanager
    def _charged(self) -> Iterator[None]:
        self._budget.go_on()
        try:
            yield
        finally:
            self._budget.pause()

    def _begin(self) -> None:
        """Take in what an earlier worker measured for this task, once."""
        if self._is_begun:
            return
        self._is_begun = True
        if not self._past:
            self._trials.report_reused()
            return
        # The rounds begin with the default; what was known comes before them.
        begun = [result.round for result in self._past if result.phase is not Phase.KNOWN]
        self._trials.round = 1 + max(begun, default=-1)
        self._trials.add_results(self._past)

    def _time_known(self) -> None:
        """Verify and time what earlier searches found to be the best, with a share of the budget; the rest of it where
        a worker died over it."""
        trials, measured, reserve = self._trials, self._measured, self._final.reserve_trials()
        if trials.round or not self._known or self._budget.budget.trials == 0:
            return
        missing = [
            (kernel, [at for at in indices if not measured.readings(kernel, self._searched.instances[at])])
            for kernel, indices in self._known
            if kernel not in measured.failed
        ]
        left, done = trials.left(reserve), measured.trials
        share = min(left, math.ceil(KNOWN_SHARE * (left + done)) - done)
        reserve_s = self._budget.final_seconds
        reserve_s += (1 - KNOWN_SHARE) * max(0.0, self._budget.seconds_left(reserve_s))
        trials.run(suggestions_of(self._searched, self._model, missing, share), Phase.KNOWN, reserve_s, reserve)

    def _complete_default(self) -> None:
        """Measure the default where a worker died before it had: promises about the default need every instance."""
        trials, known = self._trials, self._trials.defaults()
        missing = [
            index for index, instance in enumerate(self._searched.instances)
            if instance in self._task.instances and str(instance) not in known
        ]  # fmt: skip
        theory = [kernel for kernel in self._theory if kernel not in self._measured.failed]
        if trials.round and missing and theory:
            picks = dispatched(self._searched, self._model.theory, theory, missing)
            suggestions = suggestions_of(self._searched, self._model, picks, trials.left())
            trials.run(suggestions, Phase.THEORY, self._budget.final_seconds, self._final.reserve_trials())

    def _plan_next_round(self, pending: Sequence[Suggestion]) -> Round:
        """Ask the policy for the next round while ``pending`` are still measured."""
        left = self._trials.left(self._final.reserve_trials()) - sum(len(each.instances) for each in pending)
        reserve_s = self._final.reserve_s()
        if self._budget.ended_by(left, reserve_s) is not None:
            return Round((), reserve_s)
        self._trials.round += 1
        under_way = [each.kernel for each in pending]
        suggestions = self._policy.suggest(left, under_way, equivalent_devices(self._task, self._runner))
        return Round(suggestions, reserve_s)

    # -- the end --------------------------------------------------------------------------------------------------
    def finalize(self, job_id: str | None, budget: Budget | None = None, after_s: float = 0.0) -> Tuned:
        """Time the finalists again, choose, build, verify, within ``budget``; by default that of the last ``explore``.

        What there is no time for is left out, but no kernel is handed out that was not verified. Raises as ``explore``
        does, and VerificationFailed.
        """
        with self._charged():
            if budget is not None:
                self._budget.allow(budget, after_s)
            self._begin()
            if self._measured.kernels:
                self._final.time_finalists()
                self._trials.report_importance()
            elif self._budget.budget.trials == 0 and self._reuse.results:
                self._trials.add_results(self._reuse.results)
                self._final.only_measured()
            elif count := max(rule.shortlist for rule in rules_of(self._task)):
                rng = np.random.default_rng(self._seed)
                self._final.only_compiled(shortlist(self._searched, self._space, self._model.theory, rng, count))
            return self._final.library(job_id)

    def finish(self, job_id: str | None, within_s: float = FINISH_S) -> Tuned:
        """The best library of what was measured so far. Raises Cancelled where an instance has no time yet, where
        building and verifying take longer than ``within_s``, and where no library is right."""
        with self._charged():
            self._begin()
            self._trials.ended_by = EndedBy.CANCELLED
            self._stop.finish_within(within_s)
            if any(self._measured.best_s(instance) is None for instance in self._task.instances):
                raise Cancelled
            try:
                return self._final.library(job_id)
            except VerificationFailed as error:
                raise Cancelled from error
