"""The end of a search: its finalists are timed side by side, the set is chosen, built and verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import BuildResult, Interrupted, KeptBuilds, Runner
from tuner.program.task import SearchTask
from tuner.program.workload import JsonObject, WorkloadInstance
from tuner.records import MeasureResult, Phase
from tuner.rules.space import MicroKernel
from tuner.search import finalize
from tuner.search.budget import BudgetTracker
from tuner.search.chosen import EXTRA_FINALISTS, Chosen, VerificationFailed
from tuner.search.cost_model import CostModel
from tuner.search.observations import latency_table
from tuner.search.policy import Suggestion
from tuner.search.summary import SearchSummary, Stage
from tuner.search.trials import Cancelled, Trials

BUILD_SHARE = 0.8
"""The largest share of the seconds reserved for the end that building and verifying may take."""
SAFETY_FACTOR = 1.3
"""How much longer than expected the finalists, the build and the verification may take."""
VERIFY_S = 3.0
"""What verifying a library is expected to take."""
TIE_RATIO = 1.03
"""Finalists whose latencies are within this ratio of the fastest one's are timed once more."""
CONTESTED_RATIO = 1.15
"""The same for kernels of the best set, by their earlier readings, where there is no time for all at every instance."""
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


class FinalSet:
    """Makes the library of a search, and says how much of the budget must be left for that."""

    def __init__(
        self,
        task: SearchTask,
        model: CostModel,
        builds: KeptBuilds,
        runner: Runner,
        tracker: BudgetTracker,
        trials: Trials,
        theory: Sequence[MicroKernel],
    ) -> None:
        self._task, self._searched, self._model = task, task.with_least_shape(), model
        self._builds, self._runner, self._budget = builds, runner, tracker
        self._trials, self._measured = trials, trials.measured
        self._chosen = Chosen(task, model, trials.measured, theory)

    # -- what it takes --------------------------------------------------------------------------------------------
    def reserve_s(self) -> float:
        """Seconds of the budget to reserve for the finalists, the build and the verification.

        Estimated from what such took only once the largest reserve is all that is left: a choice of finalists takes as
        long as planning a round does.
        """
        most_s = self._budget.final_seconds
        if not self._measured.kernels or self._budget.seconds_left(most_s) > 0:
            return most_s
        best_set = self._chosen.best_set()
        finalists_s = self._trials.trial_s * len(self._chosen.finalists(best_set)) * len(self._searched.instances)
        return min(most_s, SAFETY_FACTOR * finalists_s + self._build_reserve_s(best_set))

    def reserve_trials(self) -> int:
        kernels = self._task.max_kernels + 2 * EXTRA_FINALISTS
        return self._budget.final_trials(kernels * len(self._searched.instances))

    def _build_reserve_s(self, kernels: Sequence[MicroKernel]) -> float:
        """The part of that for building and verifying: kernels of one library take as long as they took alone."""
        build_s = sum(self._trials.build_s(kernel) for kernel in kernels)
        return min(BUILD_SHARE * self._budget.final_seconds, SAFETY_FACTOR * (build_s + VERIFY_S))

    # -- timing ---------------------------------------------------------------------------------------------------
    def time_finalists(self) -> None:
        """Side by side, all at one instance before the next: the machine's speed drifts more than finalists differ."""
        best_set = self._chosen.best_set()
        reserve_s, kernels = self._build_reserve_s(best_set), self._chosen.finalists(best_set)
        count = self._trials.affordable(reserve_s) // len(self._searched.instances)
        if count < len(best_set):
            # Those of fewer kernels would leave out what serves a part of the range alone.
            self._chosen.only_from(best_set)
            self._time(self._contested(best_set), reserve_s)
            return
        kernels = kernels[:count]
        self._chosen.only_from(kernels)
        self._time(((instance, kernels) for instance in self._searched.instances), reserve_s)
        # Those that are within noise of the fastest are timed once more, as far as the budget goes.
        ties = ((instance, self._ties(instance)) for instance in self._searched.instances)
        self._time([(instance, tied) for instance, tied in ties if len(tied) > 1], reserve_s)

    def _contested(self, kernels: Sequence[MicroKernel]) -> Iterator[tuple[WorkloadInstance, list[MicroKernel]]]:
        """The instances at which several of the kernels are expected to be about as fast, and these kernels."""
        shapes = [instance.shape for instance in self._searched.instances]
        expected = latency_table(self._searched, self._model, self._measured, kernels, shapes)
        for instance, times in zip(self._searched.instances, expected.T, strict=True):
            near = [k for k, time in zip(kernels, times, strict=True) if time <= CONTESTED_RATIO * times.min()]
            if len(near) > 1:
                yield instance, near

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

    # -- building and verifying -----------------------------------------------------------------------------------
    def library(self, job_id: str | None) -> Tuned:
        """Choose, build and verify; a kernel that fails is excluded and the rest chosen anew.

        Raises VerificationFailed, Cancelled, Finishing, BuilderLost, DeviceLost.
        """
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
            # The runner's side may know of a stop that this one has not been told of yet.
            raise Cancelled from None
