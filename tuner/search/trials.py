"""The trials of one search: what was measured is learned from, recorded and reported here, within the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf

from tuner.library.dispatcher import Dispatcher
from tuner.measure import BASELINES_S, DeviceFailed
from tuner.measure.machine import failure_kind
from tuner.program.language.workload import WorkloadInstance
from tuner.records import NO_BASELINES, NUMPY, Baseline, Baselines, ErrorKind, MeasureResult, Phase, Roof
from tuner.schedule.space import MicroKernel
from tuner.search import progress
from tuner.search.context import SearchContext
from tuner.search.cost_model.shap import importance_of
from tuner.search.importance import EVENT
from tuner.search.observations import Measured, at_reference_speed, compared_at, reference_anchor_s
from tuner.search.pipeline import Pipeline, PlanNext
from tuner.search.policy import Suggestion
from tuner.search.stream import InFlight
from tuner.search.summary import EndedBy, Reused, SearchSummary, Stage, out_of_seconds
from tuner.search.verdict import FinalComparison
from tuner.storage import NewEvent

STAGES = {
    Phase.KNOWN: Stage.KNOWN,
    Phase.THEORY: Stage.THEORY,
    Phase.SEARCH: Stage.SEARCH,
    Phase.FINAL: Stage.SELECT,
}
"""The stage of a search that runs trials of a phase."""


UNKNOWN_BUILD_S = 1.0
"""The time that a build is expected to take before there was any."""
Defaults = Mapping[WorkloadInstance, MicroKernel | None]
"""The kernels that the default runs, as far as they are known."""


class Trials:
    """Everything that one search has measured, and the way to measure more."""

    def __init__(self, context: SearchContext, baselines: Baselines = NO_BASELINES) -> None:
        self.measured = Measured()
        self.round = 0
        self.reused: Reused | None = None
        self.ended_by: EndedBy | None = None
        self.reason: str | None = None
        """Why trials or seconds are left."""
        self.spent_s: dict[str, float] = {}
        """Seconds by stage."""
        self._stage: tuple[Stage, float] = (Stage.PLAN, context.budget.elapsed_s)
        self._context, self._budget = context, context.budget
        self._attempts: dict[tuple[MicroKernel, tuple[tuple[str, int], ...]], int] = {}
        self._default_pairs: set[tuple[MicroKernel, WorkloadInstance]] = set()
        self.anchors_s: list[float] = []
        """Of every reading, in order: how fast the device was throughout."""
        self._baselines, self._has_baselines = baselines, baselines != NO_BASELINES
        self._anchor_s: float | None = None
        self._defaults: dict[WorkloadInstance, MicroKernel | None] = {}
        self._run_s = 0.0
        self._build_s: dict[MicroKernel, float] = {}
        self._steps: tuple[int, int] | None = None

    # -- measuring ------------------------------------------------------------------------------------------------
    def run(
        self,
        suggestions: Sequence[Suggestion],
        phase: Phase,
        reserve_s: float,
        reserve: int = 0,
        plan_next: PlanNext | None = None,
    ) -> None:
        """Build and run these, and what ``plan_next`` suggests after them: see tuner.search.pipeline.Pipeline. Raises
        Cancelled, Finishing, DeviceLost, BuilderLost."""
        Pipeline(self._context, self, phase, reserve_s, reserve, plan_next).run(suggestions)

    def take_in(self, flights: Sequence[InFlight], phase: Phase) -> None:
        """Learn from the results and record them."""
        results = []
        for flight in flights:
            expected = [(each.round, latency) for each in flight.queued for latency in each.suggestion.predicted_s]
            for result, (number, latency) in zip(flight.results, expected, strict=False):
                # A kernel may be measured at an instance more than once before the first result is known.
                attempt = self._next_attempt(result)
                self._attempts[result.kernel, result.instance.values] = attempt + 1
                results.append(replace(result, predicted_s=latency, round=number, phase=phase, attempt=attempt))
        if results:
            self.add_results(results)
            if self._steps is not None:
                self._steps = self._steps[0] + len(results), max(self._steps[1], self._steps[0] + len(results))
            self.record(results, STAGES[phase])

    def measure_baselines(self, reserve_s: float) -> None:
        """Measure what the kernels are compared with, once, if it fits into all of the budget but ``reserve_s``.

        A device that fails over it does not end the search. Raises Cancelled, Finishing, DeviceLost.
        """
        if self._has_baselines or self._budget.seconds_left(reserve_s) <= BASELINES_S:
            return
        self._context.stop.check()
        self._has_baselines = True
        try:
            self._baselines = self._context.tools.runner.baselines(self._context.task, self._context.task.instances)
        except DeviceFailed as error:
            self.log(f"nothing to compare with: {error}")
        else:
            self._context.tools.recorder.record_baselines(self._baselines)

    def add_results(self, results: Sequence[MeasureResult]) -> None:
        """Take in what was measured, by this worker or an earlier one."""
        self._run_s += sum(result.run_s for result in results)
        for result in results:
            key = (result.kernel, result.instance.values)
            self._build_s[result.kernel] = result.build_s
            self._attempts[key] = max(self._attempts.get(key, 0), result.attempt + 1)
        if self._anchor_s is None and (anchor_s := reference_anchor_s(results)):
            self._anchor_s = anchor_s
            self._context.model.at_speed(anchor_s)
        self.anchors_s += [result.anchor_s for result in results if result.anchor_s]
        normalized = at_reference_speed(results, self._anchor_s)
        self.measured.add(normalized)
        # The policy reads the model, so the model learns first.
        self._context.model.update(normalized)
        self._context.policy.update(normalized)
        for result in results:
            if result.ok and result.is_theory:
                self._default_pairs.add((result.kernel, result.instance))

    def library_failure(self, kernel: MicroKernel, problem: str, kind: ErrorKind) -> MeasureResult:
        """A failed trial for a kernel that could not be built for a library, or computed wrongly in it."""
        kind = failure_kind(RuntimeError(problem), kind)
        result = MeasureResult(kernel, self._context.task.instances[0], error_kind=kind, error=problem)
        return replace(result, round=self.round, phase=Phase.FINAL, attempt=self._next_attempt(result))

    def _next_attempt(self, result: MeasureResult) -> int:
        return self._attempts.get((result.kernel, result.instance.values), 0)

    def compared(self, comparison: FinalComparison) -> None:
        """Take in what NumPy took beside the library, in place of what it took before. A roof below the fastest kernel
        is measured again: it was disturbed. Raises DeviceLost."""
        task, known = self._context.task, self._baselines
        points = tuple(
            Baseline(NUMPY, instance, times[NUMPY], comparison.anchor_s)
            for instance in task.instances if NUMPY in (times := comparison.times_s[str(instance)])
        )  # fmt: skip
        self._baselines = replace(known, points=points or known.points, blas=comparison.blas or known.blas)
        roof = compared_at(self._baselines, self._anchor_s).roof
        if roof is not None and roof.flops_per_s < self.fastest_flops_per_s():
            with suppress(DeviceFailed):
                self._baselines = replace(self._baselines, roof=self._again(roof))
        if self._baselines != known:
            self._context.tools.recorder.record_baselines(self._baselines)

    def _again(self, roof: Roof) -> Roof:
        """The better of a roof at the reference speed and another reading of it. Raises DeviceFailed, DeviceLost."""
        again = compared_at(self._context.tools.runner.baselines(self._context.task, ()), self._anchor_s).roof
        if again is None:
            return roof
        flops_per_s, bytes_per_s = max(roof.flops_per_s, again.flops_per_s), max(roof.bytes_per_s, again.bytes_per_s)
        return Roof(flops_per_s, bytes_per_s, self._anchor_s)

    def fastest_flops_per_s(self) -> float:
        """The greatest speed that a kernel has shown, at the reference speed of the device."""
        workload = self._context.task.workload
        return max(
            (
                workload.flops(workload.dims(instance.shape)) / best_s
                for instance in self._context.task.instances if (best_s := self.measured.best_s(instance))
            ),
            default=0.0,
        )  # fmt: skip

    # -- what is known and what is left ---------------------------------------------------------------------------
    def defaults(self) -> dict[str, float]:
        """The default's latency by instance: the fastest of the kernels that the theory phase measured there."""
        latencies: dict[str, float] = {}
        for kernel, instance in self._default_pairs:
            latency = self.measured.latency_s(kernel, instance.values)
            if latency is not None and kernel not in self.measured.failed:
                latencies[str(instance)] = min(latency, latencies.get(str(instance), latency))
        return latencies

    def default_at(self, instance: WorkloadInstance) -> MicroKernel | None:
        """The kernel that the default runs at an instance: the fastest of those that the theory phase measured."""
        if instance in self._defaults:
            return self._defaults[instance]
        kernels = [
            kernel for kernel, at in self._default_pairs if at == instance and kernel not in self.measured.failed
        ]
        times = {kernel: self.measured.latency_s(kernel, instance.values) or inf for kernel in kernels}
        return min(times, key=lambda kernel: (times[kernel], kernel.id), default=None)

    def keep_defaults(self) -> Defaults:
        """The default's kernels by instance, from now on whatever is learned of them."""
        self._defaults = {instance: self.default_at(instance) for instance in self._context.task.instances}
        return self._defaults

    @property
    def anchor_s(self) -> float | None:
        """What the anchor takes at the reference speed, at which latencies are known."""
        return self._anchor_s

    def left(self, reserve: int = 0) -> int:
        """Trials of the budget that are left, without ``reserve``."""
        return self._budget.trials_left(self.measured.trials, reserve)

    def seconds_left(self, reserve_s: float) -> float:
        """Seconds of the budget that are left, without ``reserve_s``."""
        return self._budget.seconds_left(reserve_s)

    def affordable(self, reserve_s: float) -> int:
        """Trials that fit into all of the budget but ``reserve_s``, by the mean time of a trial so far."""
        if self.trial_s <= 0:
            return self.left()
        return int(min(self.left(), self._budget.seconds_left(reserve_s) / self.trial_s))

    @property
    def trial_s(self) -> float:
        """The mean time of a trial on its device."""
        return self._run_s / self.measured.trials if self.measured.trials else 0.0

    @property
    def mean_build_s(self) -> float:
        """The mean build time of the kernels that were built, by this worker or an earlier one."""
        return sum(self._build_s.values()) / len(self._build_s) if self._build_s else UNKNOWN_BUILD_S

    def build_s(self, kernel: MicroKernel) -> float:
        """The build time of a kernel; the mean for one that was not built."""
        return self._build_s.get(kernel, self.mean_build_s)

    @property
    def step_s(self) -> float:
        """The time to build and measure a kernel, about."""
        return self.mean_build_s + self.trial_s

    def has_built(self, kernel: MicroKernel, build_s: float) -> None:
        """Take in what a build for the library took."""
        self._build_s.setdefault(kernel, build_s)

    def library_objective_s(self, dispatcher: Dispatcher) -> float | None:
        """The weighted time with a library, as ``summary`` compares it; None if it was not timed where it must be."""
        return progress.library_objective_s(self._context.task, self.measured, self.defaults(), dispatcher)

    # -- reporting ------------------------------------------------------------------------------------------------
    def in_steps(self, steps: int | None) -> None:
        """What follows has so many parts: trials, where such are run. None: it is not known how many."""
        self._steps = None if steps is None else (0, steps)

    def summary(self, stage: Stage) -> SearchSummary:
        points = at_reference_speed(self._baselines.points, self._anchor_s)
        by_numpy = {str(point.instance): point.latency_s for point in points if point.name == NUMPY}
        now = progress.objectives(self._context.task, self.measured, self.defaults(), by_numpy)
        tracker = self._budget
        result = progress.summarize(now, self.measured, tracker.budget, tracker.elapsed_s, self.round, stage)
        step, steps = self._steps or (None, None)
        return replace(
            result, reused=self.reused, ended_by=self.ended_by, reason=self.reason, step=step, steps=steps,
            interval_coverage=self._context.model.interval_coverage,
        )  # fmt: skip

    def record(self, results: Sequence[MeasureResult], stage: Stage) -> None:
        self._enter(stage)
        summary = self.summary(stage)
        trials = {"count": len(results), "failed": sum(not result.ok for result in results)}
        progress = NewEvent("progress", summary.to_json())
        self._report(summary, NewEvent("trials", trials), progress, results=results)

    def report_progress(self, stage: Stage, step: int = 0, steps: int | None = None) -> None:
        """``step`` of ``steps`` parts of the stage are done."""
        self._steps = None if steps is None else (step, steps)
        self._enter(stage)
        summary = self.summary(stage)
        self._report(summary, NewEvent("progress", summary.to_json()))

    def _enter(self, stage: Stage) -> None:
        """The seconds since the last report are those of the stage before, but for trials: they are told afterwards."""
        (before, since_s), now_s = self._stage, self._budget.elapsed_s
        taken = before if stage not in STAGES.values() else stage
        self.spent_s[taken] = self.spent_s.get(taken, 0.0) + now_s - since_s
        self._stage = stage, now_s

    def explain_end(self, reserve_s: float, *, is_last: bool = False) -> None:
        """Note why trials or seconds of the budget are left. ``is_last``: nothing more is measured."""
        budget, left = self._budget.budget, self.left()
        if self.ended_by is EndedBy.SECONDS and budget.seconds is not None and not is_last:
            self._enter(self._stage[0])
            self.reason = out_of_seconds(self.spent_s, budget.seconds, self._budget.after_s, reserve_s)
        elif self.ended_by is EndedBy.TRIALS and budget.trials is not None and left > 0 and is_last:
            self.reason = f"{left} kept for timing finalists again, which took fewer"

    def report_reused(self) -> None:
        """Say what the search starts from, if it starts from anything."""
        if self.reused is not None:
            event = NewEvent("reused", asdict(self.reused))
            self._report(self.summary(Stage.KNOWN), event, NewEvent("log", {"message": str(self.reused)}))

    def report_importance(self) -> None:
        """Say how much each axis of the space matters, if that can be told from so much."""
        found = importance_of(self._context.task, self.measured)
        if found is not None:
            self._report(self.summary(Stage.SELECT), NewEvent(EVENT, found.to_json()))

    def log(self, message: str) -> None:
        self._report(self.summary(Stage.SEARCH), NewEvent("log", {"message": message}))

    def _report(self, summary: SearchSummary, *events: NewEvent, results: Sequence[MeasureResult] = ()) -> None:
        self._context.tools.recorder.record(results, events, self._budget.elapsed_s, summary)
