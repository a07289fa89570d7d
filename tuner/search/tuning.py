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
from tuner.search import finish
from tuner.search.cost_model import CostModel, PairCostModel
from tuner.search.policy import SearchPolicy, Suggestion, dispatched, make_policy, suggestions_of
from tuner.search.summary import SearchSummary, Stage
from tuner.search.trials import BATCH, LEADER_READINGS, Allowance, Cancelled, Recorder, Trials

__all__ = ["Cancelled", "Recorder", "Tuned", "VerificationFailed", "tune"]

BUILD_SHARE = 0.8
"""The most of what is kept for the end that building and verifying may take."""
CAUTION = 1.3
"""How much longer the end may take than it is expected to."""
VERIFY_S = 3.0
"""What verifying a library is expected to take."""
SPARE_FINALISTS = 4
CLOSE = 1.03
"""Finalists whose latencies are this near to the best one's are told apart by a second look."""
VERIFY_ROUNDS = 4
VERIFY_BATCH = 16
"""Shapes verified between two looks at whether the search is to stop."""


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
    builds_beside: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search, select, time, verify, build.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``; ``baselines`` are measured unless they were. ``warm`` are other jobs'
    records on this target. ``policy``: a name of tuner.search.policy.POLICIES. ``builds_beside``: how many kernels may
    be built while another is measured; None: one for each core of this machine that is beyond the task's threads.
    Raises Cancelled, DeviceLost, InvalidInput, VerificationFailed.
    """
    if builds_beside is None:
        builds_beside = max(0, len(os.sched_getaffinity(0)) - task.threads)
    allowance, model = Allowance(budget, spent_s, clock), PairCostModel(task, seed, warm)
    chosen = make_policy(policy, task.with_least_shape(), space_of(task), model, seed)
    with closing(KeptBuilds(task, builder, builds_beside)) as builds:
        trials = Trials(task, model, chosen, builds, runner, recorder, allowance, should_stop, baselines)
        search = _Search(task, model, chosen, runner, allowance, trials)
        search.resume([record.result for record in past])
        search.explore()
        return search.finish(job_id)


class _Search:
    """The state of one call of ``tune``."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        policy: SearchPolicy,
        runner: Runner,
        allowance: Allowance,
        trials: Trials,
    ) -> None:
        self._task, self._model, self._policy, self._runner = task, model, policy, runner
        self._searched = task.with_least_shape()
        self._allowance, self._trials, self._measured = allowance, trials, trials.measured
        self._following: list[Suggestion] = []

    # -- the search -----------------------------------------------------------------------------------------------
    def resume(self, results: Sequence[MeasureResult]) -> None:
        """Take in what an earlier worker measured for this task."""
        if not results:
            return
        self._trials.round = 1 + max(result.round for result in results)
        self._trials.learn(results)

    def explore(self) -> None:
        """Rounds of suggest, build, run, update until the budget's share is spent or nothing is expected to help."""
        self._complete_default()
        trials, reserve = self._trials, self._final_trials()
        while (left := trials.left(reserve)) > 0 and self._allowance.seconds_left(reserve_s := self._reserve_s()) > 0:
            suggestions, self._following = self._following or self._policy.suggest(left), []
            if not suggestions:
                trials.log("no candidate is expected to help: the search ends early")
                return
            # Nothing that follows the default is worth thinking about before it is known.
            think = self._think if trials.round else None
            phase = Phase.SEARCH if trials.round else Phase.THEORY
            trials.run(suggestions, phase, reserve_s, reserve, think)
            # With the first round's results safe; before it, a device that dies of this would have nothing to show.
            trials.measure_baselines(reserve_s)
            trials.round += 1

    def _think(self, pending: Sequence[Suggestion]) -> list[MicroKernel]:
        """The next round's suggestions, and the kernels to build for a start, while ``pending`` are still measured."""
        taken = LEADER_READINGS * sum(len(suggestion.instances) for suggestion in pending)
        left = self._trials.left(self._final_trials()) - taken
        self._following = self._policy.suggest(left, [suggestion.kernel for suggestion in pending])
        return [suggestion.kernel for suggestion in self._following[:BATCH]]

    def _reserve_s(self) -> float:
        """Seconds of the budget to keep for the finalists, the build and the verification, by what such things took."""
        if not self._measured.kernels:
            return self._allowance.final_seconds
        chosen = self._chosen(self._task.max_kernels)
        finalists_s = self._trials.trial_s * len(self._finalists(chosen)) * len(self._searched.instances)
        return min(self._allowance.final_seconds, CAUTION * finalists_s + self._build_reserve_s(chosen))

    def _build_reserve_s(self, chosen: Sequence[MicroKernel]) -> float:
        """The part of that for building and verifying: kernels of one library take as long as they took alone."""
        build_s = sum(self._trials.build_s(kernel) for kernel in chosen)
        return min(BUILD_SHARE * self._allowance.final_seconds, CAUTION * (build_s + VERIFY_S))

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
            trials.run(suggestions, Phase.THEORY, self._allowance.final_seconds, self._final_trials())

    def _final_trials(self) -> int:
        kernels = self._task.max_kernels + 2 * SPARE_FINALISTS
        return self._allowance.final_trials(kernels * len(self._searched.instances))

    # -- the set --------------------------------------------------------------------------------------------------
    def finish(self, job_id: str | None) -> Tuned:
        """Time the finalists again, choose, build, verify; a kernel that fails is excluded and the rest chosen anew."""
        trials = self._trials
        if self._measured.kernels:
            self._time_finalists()
        for _ in range(VERIFY_ROUNDS):
            trials.check_stop()
            kernels = self._chosen(self._task.max_kernels)
            dispatcher = finish.make_dispatcher(self._task, self._model, self._measured, kernels)
            trials.report_progress(Stage.BUILD)
            files = finish.build_library(dispatcher, job_id)
            trials.report_progress(Stage.VERIFY)
            wrong = self._wrong(dispatcher, files)
            if not wrong:
                summary = replace(
                    trials.summary(Stage.DONE),
                    kernels=len(dispatcher.kernels),
                    digest=files.manifest["digest"],
                    library_objective_s=self._objective_s(kernels),
                )
                return Tuned(files.files, files.manifest, files.dispatch, summary)
            trials.learn(wrong)
            trials.record(wrong, Stage.VERIFY)
            for result in wrong:
                trials.log(f"left out of the library: {result.kernel}: {result.error}")
        problem = f"the last: {wrong[0].kernel}: {wrong[0].error}"
        raise VerificationFailed(f"{VERIFY_ROUNDS} sets of kernels for {self._task.workload} were wrong; {problem}")

    def _time_finalists(self) -> None:
        """Side by side, all at one instance before the next: the machine's speed drifts, and what is close must be told
        apart."""
        chosen = self._chosen(self._task.max_kernels)
        reserve_s, kernels = self._build_reserve_s(chosen), self._finalists(chosen)
        kernels = kernels[: max(1, self._trials.affordable(reserve_s) // len(self._searched.instances))]
        for instance in self._searched.instances:
            self._time_at(instance, kernels, reserve_s)
        # What came out close is looked at once more, as far as the budget goes.
        for instance in self._searched.instances:
            times = {kernel: self._measured.latency_s(kernel, instance.values) for kernel in self._measured.finalists}
            least = min(filter(None, times.values()), default=0.0)
            close = [kernel for kernel, time in times.items() if time and time <= CLOSE * least]
            if len(close) > 1:
                self._time_at(instance, close, reserve_s)

    def _time_at(self, instance: WorkloadInstance, kernels: Sequence[MicroKernel], reserve_s: float) -> None:
        """These kernels at one instance, unless only ``reserve_s`` of the budget is left."""
        if self._allowance.seconds_left(reserve_s) <= 0:
            return
        predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
        suggestions = [
            Suggestion(kernel, (instance,), (float(latency),))
            for kernel, latency in zip(kernels, predicted, strict=True)
        ]
        self._trials.run(suggestions[: max(0, self._trials.left())], Phase.FINAL, reserve_s)

    def _finalists(self, chosen: Sequence[MicroKernel]) -> list[MicroKernel]:
        """What is worth timing side by side, the most likely first: ``chosen``, then its rivals."""
        first = list(dict.fromkeys([*chosen, *self._default(self._measured.kernels)]))
        return finish.finalists(self._searched, self._model, self._measured, first, SPARE_FINALISTS)

    def _default(self, known: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The library of theory, if all of it is among ``known``."""
        theory = list(self._policy.theory)
        return theory if set(theory) <= set(known) else []

    def _chosen(self, limit: int) -> list[MicroKernel]:
        """The best set by what is known now: of the finalists or, before there are any, of the measured kernels.

        Where nothing was measured, of theory's.
        """
        theory = (*self._policy.theory, safe_kernel(self._task))
        known = self._measured.kernels or [kernel for kernel in theory if kernel not in self._measured.failed]
        if not known:
            raise VerificationFailed(
                f"every kernel tried for {self._task.workload} failed ({self._measured.commonest_error})"
            )
        pool = self._measured.candidates or known
        chosen = finish.choose_set(self._searched, self._model, self._measured, pool, limit)
        # What is best over the whole range may lose to the default at the very instances that were asked for.
        return min(chosen, self._default(known) or chosen, key=self._objective_s)

    def _objective_s(self, kernels: Sequence[MicroKernel]) -> float:
        return finish.objective_s(self._task, self._model, self._measured, kernels)

    def _wrong(self, dispatcher: Dispatcher, files: LibraryFiles) -> list[MeasureResult]:
        """A failed trial for each kernel of the library that is wrong at one of many shapes."""
        build = BuildResult(dispatcher.kernels[0], files.files[LIBRARY], 0.0)
        dims = finish.verification_dims(dispatcher)
        found: dict[MicroKernel, str] = {}
        for start in range(0, len(dims), VERIFY_BATCH):
            self._trials.check_stop()
            for point, problem in self._runner.verify(self._task, build, dims[start : start + VERIFY_BATCH]):
                found.setdefault(dispatcher.kernels[dispatcher.index_for(point)], problem)
        return [self._trials.found_wrong(kernel, problem) for kernel, problem in found.items()]
