"""One search from start to library: the loop that `shapewright tune`, `sw.tune` and the workers all run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from tuner.errors import ShapewrightError
from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import Builder, BuildResult, KeptBuilds, Runner
from tuner.program.jobspec import DEFAULT_POLICY, Budget
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject, WorkloadInstance
from tuner.records import NO_BASELINES, Baselines, MeasureResult, Phase, TuningRecord
from tuner.rules import safe_kernel, space_of
from tuner.rules.space import MicroKernel
from tuner.search import finalize
from tuner.search.cost_model import CostModel, PairCostModel
from tuner.search.policy import SearchPolicy, Suggestion, dispatched, make_policy, suggestions_of
from tuner.search.summary import SearchSummary, Stage
from tuner.search.trials import BATCH, FASTEST_READINGS, BudgetTracker, Cancelled, Recorder, Trials

__all__ = ["Cancelled", "Recorder", "Tuned", "VerificationFailed", "tune"]

BUILD_SHARE = 0.8
"""The largest share of the seconds reserved for the end that building and verifying may take."""
SAFETY_FACTOR = 1.3
"""How much longer than expected the finalists, the build and the verification may take."""
VERIFY_S = 3.0
"""What verifying a library is expected to take."""
EXTRA_FINALISTS = 4
"""Kernels timed with the best set, and as many again of another packed layout."""
TIE_RATIO = 1.03
"""Finalists whose latencies are within this ratio of the fastest one's are timed once more."""
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


class VerificationFailed(ShapewrightError):
    """No set of kernels passed verification: nothing that could be handed out."""


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
    warm: Sequence[tuple[JsonObject, TuningRecord]] = (),
    spent_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    job_id: str | None = None,
    parallel_builds: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search, select, time, verify, build.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``; ``baselines`` are measured unless they were. ``warm`` are other jobs'
    records on this target. ``policy``: a name of tuner.search.policy.POLICIES. ``parallel_builds``: how many kernels
    may be built while another is measured; None: one for each core of this machine beyond the task's threads. Raises
    Cancelled, DeviceLost, InvalidInput, VerificationFailed.
    """
    if parallel_builds is None:
        parallel_builds = max(0, len(os.sched_getaffinity(0)) - task.threads)
    tracker, model = BudgetTracker(budget, spent_s, clock), PairCostModel(task, seed, warm)
    space = space_of(task)
    search_policy = make_policy(policy, task.with_least_shape(), space, model, seed)
    with closing(KeptBuilds(task, builder, parallel_builds)) as builds:
        trials = Trials(task, model, search_policy, builds, runner, recorder, tracker, should_stop, baselines)
        search = _Search(task, model, search_policy, runner, tracker, trials)
        # What another version of the rules measured for the job says nothing of today's kernels.
        search.resume([record.result for record in past if space.has_rule_of(record.result.kernel)])
        search.explore()
        return search.finalize(job_id)


class _Search:
    """The state of one call of ``tune``."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        policy: SearchPolicy,
        runner: Runner,
        tracker: BudgetTracker,
        trials: Trials,
    ) -> None:
        self._task, self._model, self._policy, self._runner = task, model, policy, runner
        self._searched = task.with_least_shape()
        self._budget, self._trials, self._measured = tracker, trials, trials.measured
        self._next_suggestions: list[Suggestion] = []

    # -- the search -----------------------------------------------------------------------------------------------
    def resume(self, results: Sequence[MeasureResult]) -> None:
        """Take in what an earlier worker measured for this task."""
        if not results:
            return
        self._trials.round = 1 + max(result.round for result in results)
        self._trials.add_results(results)

    def explore(self) -> None:
        """Rounds of suggest, build, run, update until all but the reserve is spent or no gain is expected."""
        self._complete_default()
        trials, reserve = self._trials, self._final_trials()
        while (left := trials.left(reserve)) > 0 and self._budget.seconds_left(reserve_s := self._reserve_s()) > 0:
            suggestions, self._next_suggestions = self._next_suggestions or self._policy.suggest(left), []
            if not suggestions:
                trials.log("no candidate is expected to help: the search ends early")
                return
            # Before the default is measured there is nothing to plan the next round by.
            plan_next = self._plan_next_round if trials.round else None
            phase = Phase.SEARCH if trials.round else Phase.THEORY
            trials.run(suggestions, phase, reserve_s, reserve, plan_next)
            # After the first round's results are stored: a device that fails over the baselines loses none of them.
            trials.measure_baselines(reserve_s)
            trials.round += 1

    def _plan_next_round(self, pending: Sequence[Suggestion]) -> list[MicroKernel]:
        """Ask the policy for the next round while ``pending`` are still measured; the kernels to build first."""
        reserved = FASTEST_READINGS * sum(len(suggestion.instances) for suggestion in pending)
        left = self._trials.left(self._final_trials()) - reserved
        self._next_suggestions = self._policy.suggest(left, [suggestion.kernel for suggestion in pending])
        return [suggestion.kernel for suggestion in self._next_suggestions[:BATCH]]

    def _reserve_s(self) -> float:
        """Seconds of the budget to reserve for the finalists, the build and the verification, by what such took."""
        if not self._measured.kernels:
            return self._budget.final_seconds
        best_set = self._best_set(self._task.max_kernels)
        finalists_s = self._trials.trial_s * len(self._finalists(best_set)) * len(self._searched.instances)
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
        if trials.round and missing:
            picks = dispatched(self._searched, self._model, self._policy.theory, missing)
            suggestions = suggestions_of(self._searched, self._model, picks, trials.left())
            trials.run(suggestions, Phase.THEORY, self._budget.final_seconds, self._final_trials())

    def _final_trials(self) -> int:
        kernels = self._task.max_kernels + 2 * EXTRA_FINALISTS
        return self._budget.final_trials(kernels * len(self._searched.instances))

    # -- the set --------------------------------------------------------------------------------------------------
    def finalize(self, job_id: str | None) -> Tuned:
        """Time the finalists again, choose, build, verify; a kernel that fails is excluded and the rest chosen anew."""
        trials = self._trials
        if self._measured.kernels:
            self._time_finalists()
        for _ in range(VERIFY_ROUNDS):
            trials.check_stop()
            kernels = self._best_set(self._task.max_kernels)
            dispatcher = finalize.make_dispatcher(self._task, self._model, self._measured, kernels)
            trials.report_progress(Stage.BUILD)
            files = finalize.build_library(dispatcher, job_id)
            trials.report_progress(Stage.VERIFY)
            wrong = self._verify(dispatcher, files)
            if not wrong:
                summary = replace(
                    trials.summary(Stage.DONE),
                    kernels=len(dispatcher.kernels),
                    digest=files.manifest["digest"],
                    library_objective_s=self._objective_s(kernels),
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
        best_set = self._best_set(self._task.max_kernels)
        reserve_s, kernels = self._build_reserve_s(best_set), self._finalists(best_set)
        kernels = kernels[: max(1, self._trials.affordable(reserve_s) // len(self._searched.instances))]
        for instance in self._searched.instances:
            self._time_at(instance, kernels, reserve_s)
        # Those that are within noise of the fastest are timed once more, as far as the budget goes.
        for instance in self._searched.instances:
            times = {kernel: self._measured.latency_s(kernel, instance.values) for kernel in self._measured.finalists}
            least = min(filter(None, times.values()), default=0.0)
            ties = [kernel for kernel, time in times.items() if time and time <= TIE_RATIO * least]
            if len(ties) > 1:
                self._time_at(instance, ties, reserve_s)

    def _time_at(self, instance: WorkloadInstance, kernels: Sequence[MicroKernel], reserve_s: float) -> None:
        """These kernels at one instance, unless only ``reserve_s`` of the budget is left."""
        if self._budget.seconds_left(reserve_s) <= 0:
            return
        predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
        suggestions = [
            Suggestion(kernel, (instance,), (float(latency),))
            for kernel, latency in zip(kernels, predicted, strict=True)
        ]
        self._trials.run(suggestions[: max(0, self._trials.left())], Phase.FINAL, reserve_s)

    def _finalists(self, best_set: Sequence[MicroKernel]) -> list[MicroKernel]:
        """What is worth timing side by side, the most likely first: ``best_set``, the default, then alternatives."""
        first = list(dict.fromkeys([*best_set, *self._default(self._measured.kernels)]))
        return finalize.finalists(self._searched, self._model, self._measured, first, EXTRA_FINALISTS)

    def _default(self, known: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The library of theory, if all of it is among ``known``."""
        theory = list(self._policy.theory)
        return theory if set(theory) <= set(known) else []

    def _best_set(self, limit: int) -> list[MicroKernel]:
        """The set with the least objective of the finalists or, before there are any, of the measured kernels.

        Of theory's where nothing was measured. Raises VerificationFailed where everything failed.
        """
        theory = (*self._policy.theory, safe_kernel(self._task))
        known = self._measured.kernels or [kernel for kernel in theory if kernel not in self._measured.failed]
        if not known:
            raise VerificationFailed(
                f"every kernel tried for {self._task.workload} failed ({self._measured.commonest_error})"
            )
        pool = self._measured.candidates or known
        chosen = finalize.choose_set(self._searched, self._model, self._measured, pool, limit)
        # The best set over the whole range may be slower than the default at the instances that were asked for.
        return min(chosen, self._default(known) or chosen, key=self._objective_s)

    def _objective_s(self, kernels: Sequence[MicroKernel]) -> float:
        return finalize.objective_s(self._task, self._model, self._measured, kernels)

    def _verify(self, dispatcher: Dispatcher, files: LibraryFiles) -> list[MeasureResult]:
        """Verify the library at many shapes; a failed trial for each of its kernels that is wrong at one of them."""
        build = BuildResult(dispatcher.kernels[0], files.files[LIBRARY], 0.0)
        dims = finalize.verification_dims(dispatcher)
        problems: dict[MicroKernel, str] = {}
        for start in range(0, len(dims), VERIFY_BATCH):
            self._trials.check_stop()
            for point, problem in self._runner.verify(self._task, build, dims[start : start + VERIFY_BATCH]):
                problems.setdefault(dispatcher.kernels[dispatcher.index_for(point)], problem)
        return [self._trials.verification_failure(kernel, problem) for kernel, problem in problems.items()]
