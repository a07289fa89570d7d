"""One search from start to library: the loop that `shapewright tune`, `sw.tune` and the workers all run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

from tuner import assembly, progress
from tuner.cost_model import PairCostModel
from tuner.dispatcher import Dispatcher
from tuner.errors import ShapewrightError
from tuner.jobspec import Budget
from tuner.kernel import MicroKernel
from tuner.latency import Measured, at_one_speed, first_anchor_s
from tuner.library import LIBRARY, LibraryFiles
from tuner.measure import Builder, BuildResult, KeptBuilds, Runner, RunRequest
from tuner.policy import EvolutionarySearch, Suggestion
from tuner.records import ErrorKind, MeasureResult, Phase, TuningRecord
from tuner.rules import rule_for
from tuner.storage import NewEvent
from tuner.task import SearchTask
from tuner.workload import JsonObject, WorkloadInstance

FINAL_SHARE = 0.35
"""The most of a budget of trials or seconds that is kept for timing the finalists again, building and verifying."""
FINAL_SECONDS = 30.0
BUILD_SHARE = 0.35
"""The part of that for building and verifying."""
SPARE_FINALISTS = 4
LEADER_READINGS = 3
"""How often a kernel is measured that leads at an instance: of many readings the luckiest leads, not the best."""
BATCH = 3
"""Kernels built and run between two looks at whether the search is to stop."""
VERIFY_ROUNDS = 4
VERIFY_BATCH = 16
"""Shapes verified between two looks at whether the search is to stop."""


class Recorder(Protocol):
    """Where a search leaves its results as it goes. A call returns only when they are safe."""

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: JsonObject
    ) -> None:
        """``spent_s``: wall time charged to the task so far; ``summary``: how it stands (see tuner.progress)."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome: the files of a library by name, its parsed manifest and dispatch table, and the search's figures."""

    files: Mapping[str, bytes]
    manifest: JsonObject
    dispatch: JsonObject
    summary: JsonObject


class Cancelled(Exception):
    """``should_stop`` said so; everything measured has been recorded."""


class VerificationFailed(ShapewrightError):
    """No set of kernels passed verification: nothing that could be handed out."""


def tune(
    task: SearchTask,
    *,
    builder: Builder,
    runner: Runner,
    recorder: Recorder,
    budget: Budget,
    policy: str = "evolutionary",
    seed: int = 0,
    past: Sequence[TuningRecord] = (),
    warm: Sequence[tuple[JsonObject, TuningRecord]] = (),
    spent_s: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    job_id: str | None = None,
    builds_beside: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search, select, time, verify, build.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``. ``warm`` are other jobs' records on this target. ``builds_beside``: how
    many kernels may be built while another is measured; None: one for each core of this machine that is beyond the
    task's threads. Raises Cancelled, DeviceLost, VerificationFailed.
    """
    if policy != "evolutionary":
        raise ValueError(f"policy {policy!r} is not known")
    if builds_beside is None:
        builds_beside = max(0, len(os.sched_getaffinity(0)) - task.threads)
    with closing(KeptBuilds(task, builder, builds_beside)) as builds:
        search = _Search(task, builds, runner, recorder, budget, seed, warm, spent_s, should_stop, clock)
        search.resume([record.result for record in past])
        search.explore()
        return search.finish(job_id)


class _Search:
    """The state of one call of ``tune``."""

    def __init__(
        self,
        task: SearchTask,
        builds: KeptBuilds,
        runner: Runner,
        recorder: Recorder,
        budget: Budget,
        seed: int,
        warm: Sequence[tuple[JsonObject, TuningRecord]],
        spent_s: float,
        should_stop: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._task, self._builds, self._runner, self._recorder = task, builds, runner, recorder
        self._budget, self._should_stop, self._clock = budget, should_stop, clock
        self._started = clock() - spent_s
        self._rule = rule_for(task.workload)
        self._model = PairCostModel(task, seed, warm)
        self._policy = EvolutionarySearch(task, self._rule.space(task), self._model, seed)
        self._measured = Measured()
        self._attempts: dict[tuple[MicroKernel, tuple[tuple[str, int], ...]], int] = {}
        self._default_pairs: set[tuple[MicroKernel, WorkloadInstance]] = set()
        self._anchor_s: float | None = None
        self._run_s = 0.0
        self._rounds = 0

    # -- the search -----------------------------------------------------------------------------------------------
    def resume(self, results: Sequence[MeasureResult]) -> None:
        """Take in what an earlier worker measured for this task."""
        if not results:
            return
        self._rounds = 1 + max(result.round for result in results)
        self._learn(results)

    def explore(self) -> None:
        """Rounds of suggest, build, run, update until the budget's share is spent or nothing is expected to help."""
        self._complete_default()
        while (left := self._trials_left(self._final_trials())) > 0 and self._seconds_left(self._final_seconds()) > 0:
            suggestions = self._policy.suggest(left)
            if not suggestions:
                self._note("no candidate is expected to help: the search ends early")
                return
            self._trial(suggestions, Phase.SEARCH, "search" if self._rounds else "theory", self._final_seconds())
            self._rounds += 1

    def _complete_default(self) -> None:
        """Measure the default where a worker died before it had: promises about the default need every instance."""
        known = self._defaults()
        missing = [instance for instance in self._task.instances if str(instance) not in known]
        missing = missing[: max(0, self._trials_left(0))]
        if self._rounds and missing:
            rounds, self._rounds = self._rounds, 0
            self._trial(self._policy.theory_at(missing), Phase.SEARCH, "theory", self._final_seconds())
            self._rounds = rounds

    def _trial(self, suggestions: Sequence[Suggestion], phase: Phase, label: str, reserve_s: float) -> None:
        """Build and run, a few kernels at a time so that a stop or the end of the budget is noticed soon.

        Ends early once only ``reserve_s`` of the budget is left.
        """
        for start in range(0, len(suggestions), BATCH):
            batch = list(suggestions[start : start + BATCH])
            while batch:
                self._check_stop()
                builds = self._builds.build([suggestion.kernel for suggestion in batch])
                self._builds.start([suggestion.kernel for suggestion in suggestions[start + BATCH :][:BATCH]])
                self._record(self._measure(batch, builds, phase), label)
                if self._seconds_left(reserve_s) <= 0:
                    return
                batch = self._leading(batch) if phase is Phase.SEARCH else []

    def _measure(
        self, batch: Sequence[Suggestion], builds: Sequence[BuildResult], phase: Phase
    ) -> list[MeasureResult]:
        requests = [RunRequest(build, suggestion.instances) for build, suggestion in zip(builds, batch, strict=True)]
        found = self._runner.run(self._task, requests)
        expected = [latency for suggestion in batch for latency in suggestion.predicted_s]
        results = [
            replace(result, predicted_s=latency, round=self._rounds, phase=phase, attempt=self._next_attempt(result))
            for result, latency in zip(found, expected, strict=True)
        ]
        self._learn(results)
        return results

    def _leading(self, batch: Sequence[Suggestion]) -> list[Suggestion]:
        """What of the batch leads after too few readings, as far as the budget goes."""
        left, found = self._trials_left(self._final_trials()), []
        for suggestion in batch:
            pairs = [
                (instance, latency)
                for instance, latency in zip(suggestion.instances, suggestion.predicted_s, strict=True)
                if self._measured.leads(suggestion.kernel, instance)
                and self._measured.readings(suggestion.kernel, instance) < LEADER_READINGS
            ]
            pairs = pairs[: max(0, left)]
            left -= len(pairs)
            if pairs:
                instances, latencies = zip(*pairs, strict=True)
                found.append(Suggestion(suggestion.kernel, instances, latencies))
        return found

    def _learn(self, results: Sequence[MeasureResult]) -> None:
        self._run_s += sum(result.run_s for result in results)
        for result in results:
            key = (result.kernel, result.instance.values)
            self._attempts[key] = max(self._attempts.get(key, 0), result.attempt + 1)
        self._anchor_s = self._anchor_s or first_anchor_s(results)
        comparable = at_one_speed(results, self._anchor_s)
        self._measured.add(comparable)
        self._policy.update(comparable)
        for result in results:
            if result.ok and result.round == 0 and result.phase is Phase.SEARCH:
                self._default_pairs.add((result.kernel, result.instance))

    def _defaults(self) -> dict[str, float]:
        """By instance the default's latency: the fastest of the first round, theory's kernels and the safe one."""
        found: dict[str, float] = {}
        for kernel, instance in self._default_pairs:
            latency = self._measured.latency_s(kernel, instance.values)
            if latency is not None and kernel not in self._measured.failed:
                found[str(instance)] = min(latency, found.get(str(instance), latency))
        return found

    def _next_attempt(self, result: MeasureResult) -> int:
        return self._attempts.get((result.kernel, result.instance.values), 0)

    # -- the set --------------------------------------------------------------------------------------------------
    def finish(self, job_id: str | None) -> Tuned:
        """Time the finalists again, choose, build, verify; a kernel that fails is excluded and the rest chosen anew."""
        if self._measured.kernels:
            self._time_finalists()
        for _ in range(VERIFY_ROUNDS):
            self._check_stop()
            kernels = self._chosen(self._task.max_kernels)
            dispatcher = assembly.make_dispatcher(self._task, self._model, self._measured, kernels)
            self._progress("build")
            files = assembly.build_library(dispatcher, job_id)
            self._progress("verify")
            wrong = self._wrong(dispatcher, files)
            if not wrong:
                data = self._summary("done") | {"kernels": len(dispatcher.kernels), "digest": files.manifest["digest"]}
                data |= {"library_objective_s": self._objective_s(kernels)}
                return Tuned(files.files, files.manifest, files.dispatch, data)
            self._learn(wrong)
            self._record(wrong, "verify")
            for result in wrong:
                self._note(f"left out of the library: {result.kernel}: {result.error}")
        problem = f"the last: {wrong[0].kernel}: {wrong[0].error}"
        raise VerificationFailed(f"{VERIFY_ROUNDS} sets of kernels for {self._task.workload} were wrong; {problem}")

    def _time_finalists(self) -> None:
        """Side by side, all at one instance before the next: the machine's speed drifts, and what is close must be told
        apart."""
        first = list(dict.fromkeys([*self._chosen(self._task.max_kernels), *self._default(self._measured.kernels)]))
        kernels = assembly.finalists(self._task, self._model, self._measured, first, SPARE_FINALISTS)
        reserve_s = BUILD_SHARE * self._final_seconds()
        kernels = kernels[: self._affordable(reserve_s)]
        for instance in self._task.instances:
            predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
            suggestions = [
                Suggestion(kernel, (instance,), (float(latency),))
                for kernel, latency in zip(kernels, predicted, strict=True)
            ]
            if self._seconds_left(reserve_s) > 0:
                self._trial(suggestions[: max(0, self._trials_left(0))], Phase.FINAL, "select", reserve_s)

    def _affordable(self, reserve_s: float) -> int:
        """How many kernels can be timed at every instance, going by what a trial has taken."""
        trials = float(self._trials_left(0))
        if self._run_s > 0:
            trials = min(trials, self._seconds_left(reserve_s) * self._measured.trials / self._run_s)
        return max(1, int(trials / len(self._task.instances)))

    def _default(self, known: Sequence[MicroKernel]) -> list[MicroKernel]:
        """The library of theory, if all of it is among ``known``."""
        theory = self._policy.theory
        return theory if set(theory) <= set(known) else []

    def _chosen(self, limit: int) -> list[MicroKernel]:
        """The best set by what is known now: of the finalists or, before there are any, of the measured kernels.

        Where nothing was measured, of theory's.
        """
        theory = (*self._policy.theory, self._rule.safe_kernel(self._task))
        known = self._measured.kernels or [kernel for kernel in theory if kernel not in self._measured.failed]
        if not known:
            raise VerificationFailed(
                f"every kernel tried for {self._task.workload} failed ({self._measured.commonest_error})"
            )
        pool = self._measured.candidates or known
        chosen = assembly.choose_set(self._task, self._model, self._measured, pool, limit)
        # What is best over the whole range may lose to the default at the very instances that were asked for.
        return min(chosen, self._default(known) or chosen, key=self._objective_s)

    def _objective_s(self, kernels: Sequence[MicroKernel]) -> float:
        return assembly.objective_s(self._task, self._model, self._measured, kernels)

    def _wrong(self, dispatcher: Dispatcher, files: LibraryFiles) -> list[MeasureResult]:
        """A failed trial for each kernel of the library that is wrong at one of many shapes."""
        build = BuildResult(dispatcher.kernels[0], files.files[LIBRARY], 0.0)
        dims = assembly.verification_dims(dispatcher)
        found: dict[MicroKernel, str] = {}
        for start in range(0, len(dims), VERIFY_BATCH):
            self._check_stop()
            for point, problem in self._runner.verify(self._task, build, dims[start : start + VERIFY_BATCH]):
                found.setdefault(dispatcher.kernels[dispatcher.index_for(point)], problem)
        return [self._failed(kernel, problem) for kernel, problem in found.items()]

    def _failed(self, kernel: MicroKernel, problem: str) -> MeasureResult:
        result = MeasureResult(kernel, self._task.instances[0], error_kind=ErrorKind.WRONG, error=problem)
        return replace(result, round=self._rounds, phase=Phase.FINAL, attempt=self._next_attempt(result))

    # -- the budget -----------------------------------------------------------------------------------------------
    def _elapsed_s(self) -> float:
        return self._clock() - self._started

    def _final_trials(self) -> int:
        wanted = (self._task.max_kernels + 2 * SPARE_FINALISTS) * len(self._task.instances)
        return min(wanted, int(FINAL_SHARE * self._budget.trials)) if self._budget.trials else 0

    def _final_seconds(self) -> float:
        return min(FINAL_SECONDS, FINAL_SHARE * self._budget.seconds) if self._budget.seconds else 0.0

    def _trials_left(self, reserve: int) -> int:
        if self._budget.trials is None:
            return 1_000_000
        return self._budget.trials - reserve - self._measured.trials

    def _seconds_left(self, reserve: float) -> float:
        if self._budget.seconds is None:
            return float("inf")
        return self._budget.seconds - reserve - self._elapsed_s()

    def _check_stop(self) -> None:
        if self._should_stop():
            raise Cancelled

    # -- telling --------------------------------------------------------------------------------------------------
    def _summary(self, phase: str) -> JsonObject:
        now = progress.standing(self._task, self._measured, self._defaults())
        return progress.summary(now, self._measured, self._budget, self._elapsed_s(), self._rounds, phase)

    def _record(self, results: Sequence[MeasureResult], phase: str) -> None:
        data = self._summary(phase)
        trials = {"count": len(results), "failed": sum(not result.ok for result in results)}
        events = [NewEvent("trials", trials), NewEvent("progress", data)]
        self._recorder.record(results, events, self._elapsed_s(), data)

    def _progress(self, phase: str) -> None:
        data = self._summary(phase)
        self._recorder.record([], [NewEvent("progress", data)], self._elapsed_s(), data)

    def _note(self, message: str) -> None:
        self._recorder.record([], [NewEvent("log", {"message": message})], self._elapsed_s(), self._summary("search"))
