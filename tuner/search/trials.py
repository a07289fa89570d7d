"""The trials of one search: they are built, run, learned from and recorded here, within the search's budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Protocol

from tuner.library.dispatcher import Dispatcher
from tuner.measure import BASELINES_S, BuildResult, DeviceFailed, KeptBuilds, Runner, RunRequest
from tuner.measure.machine import failure_kind
from tuner.program.task import SearchTask
from tuner.program.workload import WorkloadInstance
from tuner.records import NO_BASELINES, NUMPY, Baselines, ErrorKind, MeasureResult, Phase
from tuner.rules.space import MicroKernel
from tuner.search import progress
from tuner.search.budget import BudgetTracker
from tuner.search.cost_model import CostModel
from tuner.search.observations import Measured, at_reference_speed, reference_anchor_s
from tuner.search.policy import SearchPolicy, Suggestion
from tuner.search.summary import EndedBy, Reused, SearchSummary, Stage
from tuner.storage import NewEvent

FASTEST_READINGS = 3
"""How often a kernel is measured that is the fastest at an instance: of many single readings the least is lucky."""
BATCH = 3
"""Kernels for each device that are built and run before what they taught is recorded."""

OVERRUN_S = 2.0
"""By how much a trial may pass the end of the budget's seconds, the reserve apart, before it is killed."""

STAGES = {
    Phase.KNOWN: Stage.KNOWN,
    Phase.THEORY: Stage.THEORY,
    Phase.SEARCH: Stage.SEARCH,
    Phase.FINAL: Stage.SELECT,
}
"""The stage of a search that runs trials of a phase."""
READ_ONCE = (Phase.KNOWN, Phase.FINAL)
"""Phases whose fastest are not measured again: they were chosen for the median of many readings."""


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


class Finishing(Exception):
    """``should_finish`` said so: no more trials, but the library of what was measured."""


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
        should_finish: Callable[[], bool],
        baselines: Baselines,
    ) -> None:
        self.measured = Measured()
        self.round = 0
        self.reused: Reused | None = None
        self.ended_by: EndedBy | None = None
        self._task, self._model, self._policy, self._builds, self._runner = task, model, policy, builds, runner
        self._recorder, self._budget = recorder, tracker
        self._should_stop, self._should_finish = should_stop, should_finish
        self._finish_by_s: float | None = None
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
        last ones while they are measured, and returns the kernels to build next. Raises Cancelled, Finishing.
        """
        size = self.batch
        for start in range(0, len(suggestions), size):
            batch = list(suggestions[start : start + size])
            following = [suggestion.kernel for suggestion in suggestions[start + size :][:size]]
            while batch:
                self.check_stop()
                builds = self._builds.build([suggestion.kernel for suggestion in batch])
                self._builds.start(following)
                if plan_next and not following:
                    self._builds.ahead(partial(plan_next, batch))
                    plan_next = None
                if results := self._measure(batch, builds, phase, reserve_s):
                    self.record(results, STAGES[phase])
                if self._budget.seconds_left(reserve_s) <= 0:
                    return
                batch = [] if phase in READ_ONCE else self._to_remeasure(batch, reserve)

    def measure_baselines(self, reserve_s: float) -> None:
        """Measure what the kernels are compared with, once, if it fits into all of the budget but ``reserve_s``.

        A device that fails over it does not end the search. Raises Cancelled, Finishing, DeviceLost.
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

    def _measure(
        self, batch: Sequence[Suggestion], builds: Sequence[BuildResult], phase: Phase, reserve_s: float
    ) -> list[MeasureResult]:
        """What was measured of the batch before a stop, or the end of all but ``reserve_s`` of the budget."""
        requests = [RunRequest(build, suggestion.instances) for build, suggestion in zip(builds, batch, strict=True)]

        def interrupted() -> bool:
            return self.is_stopping() or self._budget.seconds_left(reserve_s) < -OVERRUN_S

        measured = self._runner.run(self._task, requests, interrupted)
        self._builds.settle()
        expected = [latency for suggestion in batch for latency in suggestion.predicted_s][: len(measured)]
        results = []
        for result, latency in zip(measured, expected, strict=True):
            # One batch may measure a kernel at an instance more than once.
            attempt = self._next_attempt(result)
            self._attempts[result.kernel, result.instance.values] = attempt + 1
            results.append(replace(result, predicted_s=latency, round=self.round, phase=phase, attempt=attempt))
        self.add_results(results)
        return results

    def _to_remeasure(self, batch: Sequence[Suggestion], reserve: int) -> list[Suggestion]:
        """What of the batch is the fastest at an instance after too few readings, as far as the budget goes.

        One more reading of each; on several devices, which would be idle, as many as it lacks.
        """
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
        if self._runner.devices > 1:
            suggestions = [each for each in suggestions for _ in range(self._lacking(each))]
        return _at_most(suggestions, self.left(reserve))

    def _lacking(self, suggestion: Suggestion) -> int:
        """Readings that are missing at the instance with the fewest."""
        known = (self.measured.readings(suggestion.kernel, instance) for instance in suggestion.instances)
        return FASTEST_READINGS - min(known)

    def add_results(self, results: Sequence[MeasureResult]) -> None:
        """Take in what was measured, by this worker or an earlier one."""
        self._run_s += sum(result.run_s for result in results)
        for result in results:
            key = (result.kernel, result.instance.values)
            self._build_s[result.kernel] = result.build_s
            self._attempts[key] = max(self._attempts.get(key, 0), result.attempt + 1)
        if self._anchor_s is None and (anchor_s := reference_anchor_s(results)):
            self._anchor_s = anchor_s
            self._model.at_speed(anchor_s)
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
        kind = failure_kind(RuntimeError(problem), ErrorKind.WRONG)
        result = MeasureResult(kernel, self._task.instances[0], error_kind=kind, error=problem)
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

    @property
    def batch(self) -> int:
        """How many kernels are built and run at a time."""
        return BATCH * self._runner.devices

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

    def finish_within(self, seconds: float) -> None:
        """From here on the search is ending, cancelled: what takes longer than that is given up."""
        self.ended_by, self._finish_by_s = EndedBy.CANCELLED, self._budget.elapsed_s + seconds

    def check_stop(self) -> None:
        """Raises Cancelled, Finishing."""
        if self._should_stop() or self._is_too_late():
            raise Cancelled
        if self._finish_by_s is None and self._should_finish():
            raise Finishing

    def is_stopping(self) -> bool:
        """Whether ``check_stop`` would raise: what is running on the device is not waited for."""
        return self._should_stop() or self._is_too_late() or (self._finish_by_s is None and self._should_finish())

    def _is_too_late(self) -> bool:
        return self._finish_by_s is not None and self._budget.elapsed_s > self._finish_by_s

    def library_objective_s(self, dispatcher: Dispatcher) -> float | None:
        """The weighted time with a library, as ``summary`` compares it; None if it was not timed where it must be."""
        return progress.library_objective_s(self._task, self.measured, self.defaults(), dispatcher)

    # -- reporting ------------------------------------------------------------------------------------------------
    def summary(self, stage: Stage) -> SearchSummary:
        points = at_reference_speed(self._baselines.points, self._anchor_s)
        by_numpy = {str(point.instance): point.latency_s for point in points if point.name == NUMPY}
        now = progress.objectives(self._task, self.measured, self.defaults(), by_numpy)
        tracker = self._budget
        result = progress.summarize(now, self.measured, tracker.budget, tracker.elapsed_s, self.round, stage)
        return replace(result, reused=self.reused, ended_by=self.ended_by)

    def record(self, results: Sequence[MeasureResult], stage: Stage) -> None:
        summary = self.summary(stage)
        trials = {"count": len(results), "failed": sum(not result.ok for result in results)}
        progress = NewEvent("progress", summary.to_json())
        self._report(summary, NewEvent("trials", trials), progress, results=results)

    def report_progress(self, stage: Stage) -> None:
        summary = self.summary(stage)
        self._report(summary, NewEvent("progress", summary.to_json()))

    def report_reused(self) -> None:
        """Say what the search starts from, if it starts from anything."""
        if self.reused is not None:
            event = NewEvent("reused", asdict(self.reused))
            self._report(self.summary(Stage.KNOWN), event, NewEvent("log", {"message": str(self.reused)}))

    def log(self, message: str) -> None:
        self._report(self.summary(Stage.SEARCH), NewEvent("log", {"message": message}))

    def _report(self, summary: SearchSummary, *events: NewEvent, results: Sequence[MeasureResult] = ()) -> None:
        self._recorder.record(results, events, self._budget.elapsed_s, summary)


def _at_most(suggestions: Sequence[Suggestion], trials: int) -> list[Suggestion]:
    """The first of the suggestions that take no more trials than that."""
    result = []
    for suggestion in suggestions:
        trials -= len(suggestion.instances)
        if trials < 0:
            break
        result.append(suggestion)
    return result
