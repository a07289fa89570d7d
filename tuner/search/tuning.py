"""One search from start to library: the loop that `shapewright tune`, `sw.tune` and the workers all run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import Builder, BuildResult, Interrupted, KeptBuilds, Runner
from tuner.program.jobspec import DEFAULT_POLICY, Budget
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject, WorkloadInstance
from tuner.records import NO_BASELINES, Baselines, MeasureResult, Phase, TuningRecord
from tuner.rules import space_of
from tuner.rules.space import MicroKernel
from tuner.search import finalize
from tuner.search.budget import BudgetTracker
from tuner.search.chosen import EXTRA_FINALISTS, Chosen, VerificationFailed
from tuner.search.cost_model import CostModel, PairCostModel
from tuner.search.policy import SearchPolicy, Suggestion, dispatched, make_policy, suggestions_of
from tuner.search.reuse import NOTHING, Knowledge, Reuse
from tuner.search.summary import EndedBy, SearchSummary, Stage
from tuner.search.trials import FASTEST_READINGS, Cancelled, Finishing, Recorder, Trials

__all__ = ["Cancelled", "Recorder", "Tuned", "VerificationFailed", "tune"]

BUILD_SHARE = 0.8
"""The largest share of the seconds reserved for the end that building and verifying may take."""
SAFETY_FACTOR = 1.3
"""How much longer than expected the finalists, the build and the verification may take."""
VERIFY_S = 3.0
"""What verifying a library is expected to take."""
TIE_RATIO = 1.03
"""Finalists whose latencies are within this ratio of the fastest one's are timed once more."""
KNOWN_SHARE = 0.5
"""The largest share of what is left for the search that timing known kernels again may take."""
FINISH_S = 30.0
"""How long a search that is cancelled may take to build and verify a library."""
VERIFY_ROUNDS = 4
VERIFY_BATCH = 16
"""Shapes verified between two checks of ``should_stop``."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome: the files of a library by name, its parsed manifest and dispatch table, and the search's figures."""

    files: Mapping[str, bytes]
    manifest: JsonObject
    dispatch: JsonObject
    summary: SearchSummary


def tune(
    task: SearchTask,
    *,
    builder: Builder,
    runner: Runner,
    recorder: Recorder,
    budget: Budget,
    policy: str = DEFAULT_POLICY,
    seed: int = 0,
    past: Sequence[TuningRecord] = (),
    baselines: Baselines = NO_BASELINES,
    knowledge: Knowledge = NOTHING,
    spent_s: float = 0.0,
    after_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    should_finish: Callable[[], bool] = lambda: False,
    job_id: str | None = None,
    parallel_builds: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search, select, time, verify, build.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``; ``baselines`` are measured unless they were. ``knowledge`` is of other
    searches: its best kernels are timed again first, and the default is theory's whatever it says. ``policy``: a name
    of tuner.search.policy.POLICIES. ``parallel_builds``: how many kernels may be built while another is measured; None:
    one for each core of this machine beyond the task's threads. ``after_s``: seconds of the budget that are left for
    what comes after. ``should_stop`` ends the search at once (Cancelled); ``should_finish`` ends it with the library
    of what was measured, within FINISH_S, or Cancelled where that is too little for one. Raises Cancelled, DeviceLost,
    InvalidInput, VerificationFailed.
    """
    if parallel_builds is None:
        parallel_builds = max(0, len(os.sched_getaffinity(0)) - task.threads)
    tracker, space = BudgetTracker(budget, spent_s, clock, after_s), space_of(task)
    reuse = Reuse(task.with_least_shape(), space, knowledge)
    model = PairCostModel(task, seed, reuse.warm)
    search_policy = make_policy(policy, task.with_least_shape(), space, model, seed)
    search_policy.recall(reuse.wrong, reuse.timed)
    with closing(KeptBuilds(task, builder, parallel_builds)) as builds:
        stops = should_stop, should_finish
        trials = Trials(task, model, search_policy, builds, runner, recorder, tracker, *stops, baselines)
        trials.reused = reuse.facts
        search = _Search(task, model, search_policy, builds, runner, tracker, trials, reuse)
        # What another version of the rules measured for the job says nothing of today's kernels.
        search.resume([record.result for record in past if space.has_rule_of(record.result.kernel)])
        try:
            search.explore()
            return search.finalize(job_id)
        except Finishing:
            return search.finish(job_id)


class _Search:
    """The state of one call of ``tune``."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        policy: SearchPolicy,
        builds: KeptBuilds,
        runner: Runner,
        tracker: BudgetTracker,
        trials: Trials,
        reuse: Reuse,
    ) -> None:
        self._task, self._model, self._policy = task, model, policy
        self._builds, self._runner = builds, runner
        self._searched = task.with_least_shape()
        # Chosen before anything is learned here, so that whoever resumes the search chooses the same.
        self._theory, self._known = list(policy.theory), reuse.picks(model)
        self._chosen = Chosen(task, model, trials.measured, self._theory)
        self._budget, self._trials, self._measured = tracker, trials, trials.measured
        self._next_suggestions: list[Suggestion] = []

    # -- the search -----------------------------------------------------------------------------------------------
    def resume(self, results: Sequence[MeasureResult]) -> None:
        """Take in what an earlier worker measured for this task."""
        if not results:
            self._trials.report_reused()
            return
        # The rounds begin with the default; what was known comes before them.
        begun = [result.round for result in results if result.phase is not Phase.KNOWN]
        self._trials.round = 1 + max(begun, default=-1)
        self._trials.add_results(results)

    def explore(self) -> None:
        """Rounds of suggest, build, run, update until all but the reserve is spent or no gain is expected."""
        self._time_known()
        self._complete_default()
        trials, reserve = self._trials, self._final_trials()
        while True:
            left, reserve_s = trials.left(reserve), self._reserve_s()
            if (ended_by := self._budget.ended_by(left, reserve_s)) is not None:
                break
            suggestions, self._next_suggestions = self._next_suggestions or self._policy.suggest(left), []
            if not suggestions:
                trials.log("no candidate is expected to help: the search ends early")
                ended_by = EndedBy.NOTHING_HELPS
                break
            # Before the default is measured there is nothing to plan the next round by.
            plan_next = self._plan_next_round if trials.round else None
            phase = Phase.SEARCH if trials.round else Phase.THEORY
            trials.run(suggestions, phase, reserve_s, reserve, plan_next)
            # After the first round's results are stored: a device that fails over the baselines loses none of them.
            trials.measure_baselines(reserve_s)
            trials.round += 1
        trials.ended_by = ended_by

    def _time_known(self) -> None:
        """Verify and time what earlier searches found to be the best, with a share of the budget; the rest of it where
        a worker died over it."""
        trials, measured, reserve = self._trials, self._measured, self._final_trials()
        if trials.round or not self._known:
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

    def _plan_next_round(self, pending: Sequence[Suggestion]) -> list[MicroKernel]:
        """Ask the policy for the next round while ``pending`` are still measured; the kernels to build first."""
        reserved = FASTEST_READINGS * sum(len(suggestion.instances) for suggestion in pending)
        left = self._trials.left(self._final_trials()) - reserved
        self._next_suggestions = self._policy.suggest(left, [suggestion.kernel for suggestion in pending])
        return [suggestion.kernel for suggestion in self._next_suggestions[: self._trials.batch]]

    def _reserve_s(self) -> float:
        """Seconds of the budget to reserve for the finalists, the build and the verification, by what such took."""
        if not self._measured.kernels:
            return self._budget.final_seconds
        best_set = self._chosen.best_set()
        finalists_s = self._trials.trial_s * len(self._chosen.finalists(best_set)) * len(self._searched.instances)
        return min(self._budget.final_seconds, SAFETY_FACTOR * finalists_s + self._build_reserve_s(best_set))

    def _build_reserve_s(self, kernels: Sequence[MicroKernel]) -> float:
        """The part of that for building and verifying: kernels of one library take as long as they took alone."""
        build_s = sum(self._trials.build_s(kernel) for kernel in kernels)
        return min(BUILD_SHARE * self._budget.final_seconds, SAFETY_FACTOR * (build_s + VERIFY_S))

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
            trials.run(suggestions, Phase.THEORY, self._budget.final_seconds, self._final_trials())

    def _final_trials(self) -> int:
        kernels = self._task.max_kernels + 2 * EXTRA_FINALISTS
        return self._budget.final_trials(kernels * len(self._searched.instances))

    # -- the set --------------------------------------------------------------------------------------------------
    def finalize(self, job_id: str | None) -> Tuned:
        """Time the finalists again, choose, build, verify."""
        if self._measured.kernels:
            self._time_finalists()
        return self._library(job_id)

    def finish(self, job_id: str | None) -> Tuned:
        """The best library of what was measured so far. Raises Cancelled where an instance has no time yet, where
        building and verifying take longer than FINISH_S, and where no library is right."""
        self._trials.finish_within(FINISH_S)
        if any(self._measured.best_s(instance) is None for instance in self._task.instances):
            raise Cancelled
        try:
            return self._library(job_id)
        except VerificationFailed as error:
            raise Cancelled from error

    def _library(self, job_id: str | None) -> Tuned:
        """Choose, build and verify; a kernel that fails is excluded and the rest chosen anew."""
        trials = self._trials
        for _ in range(VERIFY_ROUNDS):
            trials.check_stop()
            kernels = self._chosen.best_set()
            dispatcher = finalize.make_dispatcher(self._task, self._model, self._measured, kernels)
            trials.report_progress(Stage.BUILD)
            files = self._builds.library(dispatcher, job_id)
            trials.report_progress(Stage.VERIFY)
            wrong = self._verify(dispatcher, files)
            if not wrong:
                summary = replace(
                    trials.summary(Stage.DONE),
                    kernels=len(dispatcher.kernels),
                    digest=files.manifest["digest"],
                    library_objective_s=trials.library_objective_s(dispatcher),
                )
                return Tuned(files.files, files.manifest, files.dispatch, summary)
            trials.add_results(wrong)
            trials.record(wrong, Stage.VERIFY)
            for result in wrong:
                trials.log(f"left out of the library: {result.kernel}: {result.error}")
        problem = f"the last: {wrong[0].kernel}: {wrong[0].error}"
        raise VerificationFailed(f"{VERIFY_ROUNDS} sets of kernels for {self._task.workload} were wrong; {problem}")

    def _time_finalists(self) -> None:
        """Side by side, all at one instance before the next: the machine's speed drifts more than finalists differ."""
        best_set = self._chosen.best_set()
        reserve_s, kernels = self._build_reserve_s(best_set), self._chosen.finalists(best_set)
        kernels = kernels[: max(1, self._trials.affordable(reserve_s) // len(self._searched.instances))]
        self._time(((instance, kernels) for instance in self._searched.instances), reserve_s)
        # Those that are within noise of the fastest are timed once more, as far as the budget goes.
        ties = ((instance, self._ties(instance)) for instance in self._searched.instances)
        self._time([(instance, tied) for instance, tied in ties if len(tied) > 1], reserve_s)

    def _ties(self, instance: WorkloadInstance) -> list[MicroKernel]:
        """The finalists that are within TIE_RATIO of the fastest one at an instance."""
        times = {kernel: self._measured.latency_s(kernel, instance.values) for kernel in self._measured.finalists}
        least = min(filter(None, times.values()), default=0.0)
        return [kernel for kernel, time in times.items() if time and time <= TIE_RATIO * least]

    def _time(self, points: Iterable[tuple[WorkloadInstance, Sequence[MicroKernel]]], reserve_s: float) -> None:
        """These kernels at each instance, in this order, while more than ``reserve_s`` of the budget is left."""
        suggestions = []
        for instance, kernels in points:
            predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
            for kernel, latency in zip(kernels, predicted, strict=True):
                suggestions.append(Suggestion(kernel, (instance,), (float(latency),)))
        if self._budget.seconds_left(reserve_s) > 0:
            self._trials.run(suggestions[: max(0, self._trials.left())], Phase.FINAL, reserve_s)

    def _verify(self, dispatcher: Dispatcher, files: LibraryFiles) -> list[MeasureResult]:
        """Verify the library at many shapes; a failed trial for each of its kernels that is wrong at one of them."""
        build = BuildResult(dispatcher.kernels[0], files.files[LIBRARY], 0.0)
        dims = finalize.verification_dims(dispatcher)
        problems: dict[MicroKernel, str] = {}
        for start in range(0, len(dims), VERIFY_BATCH):
            for point, problem in self._verify_at(build, dims[start : start + VERIFY_BATCH]):
                problems.setdefault(dispatcher.kernels[dispatcher.index_for(point)], problem)
        return [self._trials.verification_failure(kernel, problem) for kernel, problem in problems.items()]

    def _verify_at(self, build: BuildResult, dims: Sequence[Mapping[str, int]]) -> list[tuple[Mapping[str, int], str]]:
        """What is wrong at these values of the symbols. Raises Cancelled, Finishing."""
        self._trials.check_stop()
        try:
            return self._runner.verify(self._task, build, dims, self._trials.is_stopping)
        except Interrupted:
            self._trials.check_stop()
            raise
