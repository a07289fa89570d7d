"""One search from start to library: the loop that `shapewright tune`, `sw.tune` and the workers all run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tuner import assembly, progress
from tuner.cost_model import PairCostModel
from tuner.dispatcher import Dispatcher
from tuner.errors import ShapewrightError
from tuner.jobspec import Budget
from tuner.kernel import MicroKernel
from tuner.latency import Measured
from tuner.library import LIBRARY, LibraryFiles
from tuner.measure import Builder, BuildResult, KeptBuilds, Runner, RunRequest
from tuner.policy import EvolutionarySearch, Suggestion
from tuner.records import ErrorKind, MeasureResult, Phase, TuningRecord
from tuner.rules import rule_for
from tuner.storage import NewEvent
from tuner.task import SearchTask
from tuner.workload import JsonObject, WorkloadInstance

FINAL_SHARE = 0.3
"""The most of a budget of trials or seconds that is kept for timing the finalists again, verifying and building."""
FINAL_SECONDS = 25.0
SPARE_FINALISTS = 5
MOST_DRIFT = 2.0
"""The most that a device's speed is believed to have changed by since the first measurement."""
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
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Search, select, time, verify, build.

    ``past`` are this very task's own records (after a worker's death): the policy is rebuilt from them and they count
    against the budget, as does ``spent_s``. ``warm`` are other jobs' records on this target. Raises Cancelled,
    DeviceLost, VerificationFailed.
    """
    if policy != "evolutionary":
        raise ValueError(f"policy {policy!r} is not known")
    search = _Search(task, builder, runner, recorder, budget, seed, warm, spent_s, should_stop, clock)
    search.resume([record.result for record in past])
    search.explore()
    return search.finish(job_id)


class _Search:
    """The state of one call of ``tune``."""

    def __init__(
        self,
        task: SearchTask,
        builder: Builder,
        runner: Runner,
        recorder: Recorder,
        budget: Budget,
        seed: int,
        warm: Sequence[tuple[JsonObject, TuningRecord]],
        spent_s: float,
        should_stop: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._task, self._runner, self._recorder = task, runner, recorder
        self._budget, self._should_stop, self._clock = budget, should_stop, clock
        self._started = clock() - spent_s
        self._rule = rule_for(task.workload)
        self._model = PairCostModel(task, seed, warm)
        self._policy = EvolutionarySearch(task, self._rule.space(task), self._model, seed)
        self._measured = Measured()
        self._attempts: dict[tuple[MicroKernel, tuple[tuple[str, int], ...]], int] = {}
        self._default_pairs: set[tuple[MicroKernel, WorkloadInstance]] = set()
        self._builds = KeptBuilds(task, builder)
        self._anchor_s: float | None = None
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
        for start in range(0, len(suggestions), 4):
            self._check_stop()
            batch = suggestions[start : start + 4]
            builds = self._builds.build([suggestion.kernel for suggestion in batch])
            requests = [
                RunRequest(build, suggestion.instances) for build, suggestion in zip(builds, batch, strict=True)
            ]
            found = self._runner.run(self._task, requests)
            expected = [latency for suggestion in batch for latency in suggestion.predicted_s]
            results = [
                replace(
                    result, predicted_s=latency, round=self._rounds, phase=phase, attempt=self._next_attempt(result)
                )
                for result, latency in zip(found, expected, strict=True)
            ]
            self._learn(results)
            self._record(results, label)
            if self._seconds_left(reserve_s) <= 0:
                return

    def _learn(self, results: Sequence[MeasureResult]) -> None:
        for result in results:
            key = (result.kernel, result.instance.values)
            self._attempts[key] = max(self._attempts.get(key, 0), result.attempt + 1)
        comparable = [self._at_one_speed(result) for result in results]
        self._measured.add(comparable)
        self._policy.update(comparable)
        for result in results:
            if result.ok and result.round == 0 and result.phase is Phase.SEARCH:
                self._default_pairs.add((result.kernel, result.instance))

    def _at_one_speed(self, result: MeasureResult) -> MeasureResult:
        """The result as the device would have measured it at the speed that it had at the first one."""
        if result.latency_s is None or result.anchor_s is None:
            return result
        self._anchor_s = self._anchor_s or result.anchor_s
        pace = min(max(self._anchor_s / result.anchor_s, 1 / MOST_DRIFT), MOST_DRIFT)
        return replace(result, latency_s=result.latency_s * pace)

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
        finalists = self._chosen(self._task.max_kernels)
        # The best set of another packed layout, too: which layout is best is decided by the second timing, not by the
        # noise of the first.
        layouts = {self._rule.layout(self._task, kernel) for kernel in finalists}
        others = [kernel for kernel in self._measured.kernels if self._rule.layout(self._task, kernel) not in layouts]
        others = others or [kernel for kernel in self._measured.kernels if kernel not in finalists]
        spare = assembly.choose_set(self._task, self._model, self._measured, others, SPARE_FINALISTS) if others else []
        kernels = [*finalists, *spare]
        kernels = kernels[: max(1, self._trials_left(0) // len(self._task.instances))]
        for instance in self._task.instances:
            # Side by side at one instance after the other: the machine's speed drifts, and what is close must be told
            # apart.
            predicted = self._model.predict(kernels, [instance.shape]).latency_s[:, 0]
            suggestions = [
                Suggestion(kernel, (instance,), (float(latency),))
                for kernel, latency in zip(kernels, predicted, strict=True)
            ]
            reserve_s = self._final_seconds() / 2
            if self._seconds_left(reserve_s) > 0:
                self._trial(suggestions[: max(0, self._trials_left(0))], Phase.FINAL, "select", reserve_s)

    def _chosen(self, limit: int) -> list[MicroKernel]:
        """The best set by what is known now: of the measured kernels, or of theory's where there are none."""
        theory = (*self._policy.theory, self._rule.safe_kernel(self._task))
        pool = self._measured.kernels or [kernel for kernel in theory if kernel not in self._measured.failed]
        if not pool:
            raise VerificationFailed(
                f"every kernel tried for {self._task.workload} failed ({self._measured.commonest_error})"
            )
        chosen = assembly.choose_set(self._task, self._model, self._measured, pool, limit)
        theory_set = self._policy.theory
        if not set(theory_set) <= set(pool):
            return chosen
        # What is best over the whole range may lose to the default at the very instances that were asked for.
        return min(chosen, theory_set, key=self._objective_s)

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
        wanted = (self._task.max_kernels + SPARE_FINALISTS) * len(self._task.instances)
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
