"""The trials of one search: they are built, run, learned from and recorded here, within the search's budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tuner.measure import BASELINES_S, BuildResult, DeviceFailed, KeptBuilds, Runner, RunRequest
from tuner.program.jobspec import Budget
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import NO_BASELINES, NUMPY, Baselines, ErrorKind, MeasureResult, Phase
from tuner.rules.space import MicroKernel
from tuner.search import progress
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured, at_reference_speed, reference_anchor_s
from tuner.search.policy import SearchPolicy, Suggestion
from tuner.search.summary import SearchSummary, Stage
from tuner.storage import NewEvent

FINAL_SHARE = 0.35
"""The largest share of a budget of trials or seconds that is reserved for finalists, build and verification."""
FINAL_SECONDS = 30.0
FASTEST_READINGS = 3
"""How often a kernel is measured that is the fastest at an instance: of many single readings the least is lucky."""
BATCH = 3
"""Kernels built and run between two checks of ``should_stop``."""

STAGES = {Phase.THEORY: Stage.THEORY, Phase.SEARCH: Stage.SEARCH, Phase.FINAL: Stage.SELECT}
"""The stage of a search that runs trials of a phase."""


class Recorder(Protocol):
    """Where a search stores its results as it goes. A call returns only when they are stored."""

    def record(
        self, results: Sequence[MeasureResult], events: Sequence[NewEvent], spent_s: float, summary: SearchSummary
    ) -> None:
        """``spent_s``: wall time charged to the task so far."""

    def record_baselines(self, baselines: Baselines) -> None:
        """Store what the task's kernels are compared with: once in a search, unless it was measured before."""


class Cancelled(Exception):
    """``should_stop`` said so; everything measured has been recorded."""


class BudgetTracker:
    """How much of a budget is left. ``spent_s``: wall time that earlier workers have charged to it."""

    def __init__(self, budget: Budget, spent_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self._clock = clock
        self._started = clock() - spent_s

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def seconds_left(self, reserve_s: float = 0.0) -> float:
        if self.budget.seconds is None:
            return float("inf")
        return self.budget.seconds - reserve_s - self.elapsed_s

    def trials_left(self, done: int, reserve: int = 0) -> int:
        if self.budget.trials is None:
            return 1_000_000
        return self.budget.trials - reserve - done

    def final_trials(self, wanted: int) -> int:
        """How many of the trials ``wanted`` for the finalists are reserved for them."""
        return min(wanted, int(FINAL_SHARE * self.budget.trials)) if self.budget.trials else 0

    @property
    def final_seconds(self) -> float:
        """The most seconds that are reserved for the finalists, the build and the verification."""
        return min(FINAL_SECONDS, FINAL_SHARE * self.budget.seconds) if self.budget.seconds else 0.0


class Trials:
    """Everything that one search has measured, and the way to measure more."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        policy: SearchPolicy,
        builds: KeptBuilds,
        runner: Runner,
        recorder: Recorder,
        tracker: BudgetTracker,
        should_stop: Callable[[], bool],
        baselines: Baselines,
    ) -> None:
        self.measured = Measured()
        self.round = 0
        self._task, self._model, self._policy, self._builds, self._runner = task, model, policy, builds, runner
        self._recorder, self._budget, self._should_stop = recorder, tracker, should_stop
        self._attempts: dict[tuple[MicroKernel, tuple[tuple[str, int], ...]], int] = {}
        self._default_pairs: set[tuple[MicroKernel, WorkloadInstance]] = set()
        self._baselines, self._has_baselines = baselines, baselines != NO_BASELINES
        self._anchor_s: float | None = None
        self._run_s = 0.0
        self._build_s: dict[MicroKernel, float] = {}

    # -- measuring ------------------------------------------------------------------------------------------------
    def run(
        self,
        suggestions: Sequence[Suggestion],
        phase: Phase,
        reserve_s: float,
        reserve: int = 0,
        plan_next: Callable[[Sequence[Suggestion]], Sequence[MicroKernel]] | None = None,
    ) -> None:
        """Build and run, a few kernels at a time so that a stop or the end of the budget is noticed soon.

        Ends early once only ``reserve_s`` of the budget is left; the fastest are measured again while more than
        ``reserve`` trials are left. Where kernels are built while others are measured, ``plan_next`` is called with the
        last ones while they are measured, and returns the kernels to build next. Raises Cancelled.
        """
        for start in range(0, len(suggestions), BATCH):
            batch = list(suggestions[start : start + BATCH])
            following = [suggestion.kernel for suggestion in suggestions[start + BATCH :][:BATCH]]
            while batch:
                self.check_stop()
                builds = self._builds.build([suggestion.kernel for suggestion in batch])
                self._builds.start(following)
                if plan_next and not following:
                    self._builds.ahead(partial(plan_next, batch))
                    plan_next = None
                self.record(self._measure(batch, builds, phase), STAGES[phase])
                if self._budget.seconds_left(reserve_s) <= 0:
                    return
                batch = [] if phase is Phase.FINAL else self._to_remeasure(batch, reserve)

    def measure_baselines(self, reserve_s: float) -> None:
        """Measure what the kernels are compared with, once, if it fits into all of the budget but ``reserve_s``.

        A device that fails over it does not end the search. Raises Cancelled, DeviceLost.
        """
        if self._has_baselines or self._budget.seconds_left(reserve_s) <= BASELINES_S:
            return
        self.check_stop()
        self._has_baselines = True
        try:
            self._baselines = self._runner.baselines(self._task, self._task.instances)
        except DeviceFailed as error:
            self.log(f"nothing to compare with: {error}")
        else:
            self._recorder.record_baselines(self._baselines)

    def _measure(self, batch: Sequence[Suggestion], builds: Sequence[BuildResult], phase: Phase) -> list[MeasureResult]:
        requests = [RunRequest(build, suggestion.instances) for build, suggestion in zip(builds, batch, strict=True)]
        measured = self._runner.run(self._task, requests)
        self._builds.settle()
        expected = [latency for suggestion in batch for latency in suggestion.predicted_s]
        results = [
            replace(result, predicted_s=latency, round=self.round, phase=phase, attempt=self._next_attempt(result))
            for result, latency in zip(measured, expected, strict=True)
        ]
        self.add_results(results)
        return results

    def _to_remeasure(self, batch: Sequence[Suggestion], reserve: int) -> list[Suggestion]:
        """What of the batch is the fastest at an instance after too few readings, as far as the budget goes."""
        left, suggestions = self.left(reserve), []
        for suggestion in batch:
            pairs = [
                (instance, latency)
                for instance, latency in zip(suggestion.instances, suggestion.predicted_s, strict=True)
                if self.measured.is_fastest(suggestion.kernel, instance)
                and self.measured.readings(suggestion.kernel, instance) < FASTEST_READINGS
            ]
            pairs = pairs[: max(0, left)]
            left -= len(pairs)
            if pairs:
                instances, latencies = zip(*pairs, strict=True)
                suggestions.append(Suggestion(suggestion.kernel, instances, latencies))
        return suggestions

    def add_results(self, results: Sequence[MeasureResult]) -> None:
        """Take in what was measured, by this worker or an earlier one."""
        self._run_s += sum(result.run_s for result in results)
        for result in results:
            key = (result.kernel, result.instance.values)
            self._build_s[result.kernel] = result.build_s
            self._attempts[key] = max(self._attempts.get(key, 0), result.attempt + 1)
        self._anchor_s = self._anchor_s or reference_anchor_s(results)
        normalized = at_reference_speed(results, self._anchor_s)
        self.measured.add(normalized)
        # The policy reads the model, so the model learns first.
        self._model.update(normalized)
        self._policy.update(normalized)
        for result in results:
            if result.ok and result.is_theory:
                self._default_pairs.add((result.kernel, result.instance))

    def verification_failure(self, kernel: MicroKernel, problem: str) -> MeasureResult:
        """A failed trial for a kernel that computed wrongly when a whole library was verified."""
        result = MeasureResult(kernel, self._task.instances[0], error_kind=ErrorKind.WRONG, error=problem)
        return replace(result, round=self.round, phase=Phase.FINAL, attempt=self._next_attempt(result))

    def _next_attempt(self, result: MeasureResult) -> int:
        return self._attempts.get((result.kernel, result.instance.values), 0)

    # -- what is known and what is left ---------------------------------------------------------------------------
    def defaults(self) -> dict[str, float]:
        """By instance the default's latency: the fastest of the kernels that the theory phase measured there."""
        latencies: dict[str, float] = {}
        for kernel, instance in self._default_pairs:
            latency = self.measured.latency_s(kernel, instance.values)
            if latency is not None and kernel not in self.measured.failed:
                latencies[str(instance)] = min(latency, latencies.get(str(instance), latency))
        return latencies

    def left(self, reserve: int = 0) -> int:
        """Trials of the budget that are left, without ``reserve``."""
        return self._budget.trials_left(self.measured.trials, reserve)

    def affordable(self, reserve_s: float) -> int:
        """Trials that fit into all of the budget but ``reserve_s``, by the mean time of a trial so far."""
        if self.trial_s <= 0:
            return self.left()
        return int(min(self.left(), self._budget.seconds_left(reserve_s) / self.trial_s))

    @property
    def trial_s(self) -> float:
        """The mean time of a trial on its device."""
        return self._run_s / self.measured.trials if self.measured.trials else 0.0

    def build_s(self, kernel: MicroKernel) -> float:
        """The build time of a kernel; 0 for one that was not built."""
        return self._build_s.get(kernel, 0.0)

    def check_stop(self) -> None:
        if self._should_stop():
            raise Cancelled

    # -- reporting ------------------------------------------------------------------------------------------------
    def summary(self, stage: Stage) -> SearchSummary:
        points = at_reference_speed(self._baselines.points, self._anchor_s)
        by_numpy = {str(point.instance): point.latency_s for point in points if point.name == NUMPY}
        now = progress.objectives(self._task, self.measured, self.defaults(), by_numpy)
        tracker = self._budget
        return progress.summarize(now, self.measured, tracker.budget, tracker.elapsed_s, self.round, stage)

    def record(self, results: Sequence[MeasureResult], stage: Stage) -> None:
        summary = self.summary(stage)
        trials = {"count": len(results), "failed": sum(not result.ok for result in results)}
        progress = NewEvent("progress", summary.to_json())
        self._report(summary, NewEvent("trials", trials), progress, results=results)

    def report_progress(self, stage: Stage) -> None:
        summary = self.summary(stage)
        self._report(summary, NewEvent("progress", summary.to_json()))

    def log(self, message: str) -> None:
        self._report(self.summary(Stage.SEARCH), NewEvent("log", {"message": message}))

    def _report(self, summary: SearchSummary, *events: NewEvent, results: Sequence[MeasureResult] = ()) -> None:
        self._recorder.record(results, events, self._budget.elapsed_s, summary)
