"""The end of a search: after its finalists were timed, the set is chosen, built and verified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tuner.library.dispatcher import Dispatcher
from tuner.library.package import LIBRARY
from tuner.measure import BuilderLost
from tuner.program.language.workload import JsonObject
from tuner.records import ErrorKind, MeasureResult, speed_correction
from tuner.schedule.space import MicroKernel
from tuner.search import finalize
from tuner.search.chosen import EXTRA_FINALISTS, Chosen, VerificationFailed
from tuner.search.context import SearchContext
from tuner.search.final_comparison import compare_at_the_end
from tuner.search.final_verification import FinalVerification
from tuner.search.finalists import Finalists
from tuner.search.forecast import Forecast
from tuner.search.summary import SearchSummary, Stage
from tuner.search.trials import Defaults, Trials
from tuner.search.verdict import DEFAULT, OURS, FinalComparison, Verdict

SAFETY_FACTOR = 1.3
"""How much more than expected the finalists may take: those within noise are timed once more."""
COMPILED_AT_ONCE = 4
"""Kernels that are compiled between two checks of ``should_stop``, where nothing is measured beside."""
VERIFY_ROUNDS = 4
FALLBACKS = 2
LESS = 0.99
"""Below this ratio to theory's kernels a library is chosen anew even within noise, where there is time: turns tell more
than the readings by which it was chosen, of which the least are the luckiest."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome: the files of a library by name, its parsed manifest and dispatch table, and the search's figures."""

    files: Mapping[str, bytes]
    manifest: JsonObject
    dispatch: JsonObject
    summary: SearchSummary


class FinalSet:
    """Makes the library of a search, and says how much of the budget must be left for that."""

    def __init__(self, context: SearchContext, trials: Trials, theory: Sequence[MicroKernel]) -> None:
        task = context.task
        self._context, self._stop = context, context.stop
        self._task, self._searched, self._model = task, task.with_least_shape(), context.model
        self._builds, self._runner, self._budget = context.builds, context.tools.runner, context.budget
        self._trials, self._measured = trials, trials.measured
        self._forecast = Forecast(task, context.builds, trials)
        self._verification = FinalVerification(context, trials, self._forecast)
        self._chosen = Chosen(task, context.model, trials.measured, theory)
        self._finalists = Finalists(context, trials, self._chosen)
        self._fallbacks = 0
        self._expected_at: tuple[int, tuple[list[MicroKernel], int]] = 0, ([], 0)

    # -- what it takes --------------------------------------------------------------------------------------------
    def reserve_s(self) -> float:
        """Seconds of the budget to reserve for the kernel under way, the finalists, the build and the verification.

        Estimated from what such took only once the largest reserve is all that is left: a choice of finalists takes as
        long as planning a round does.
        """
        most_s = self._budget.final_seconds
        if not self._measured.kernels:
            return most_s
        rest_s = self._verification.reserve_s() + self._forecast.step_s() + self._later_s
        if self._budget.seconds_left(most_s := max(most_s, self._forecast.largest_link_s() + rest_s)) > 0:
            return most_s
        best_set, trials = self._expected()
        finalists_s = SAFETY_FACTOR * self._trials.trial_s * trials
        return min(most_s, finalists_s + self._forecast.link_s(best_set) + rest_s)

    def reserve_trials(self) -> int:
        """Trials of the budget to reserve for the finalists, estimated likewise."""
        most = self._budget.final_trials((self._task.max_kernels + 2 * EXTRA_FINALISTS) * len(self._searched.instances))
        if not self._measured.kernels or self._trials.left(most) > 0:
            return most
        expected = math.ceil(SAFETY_FACTOR * self._expected()[1])
        return min(most, max(expected, len(self._searched.instances)))

    def _expected(self) -> tuple[list[MicroKernel], int]:
        """The best set and the trials of its finalists, by what was measured so far; cached until the next trial."""
        done = self._measured.trials
        if self._expected_at[0] != done:
            best_set = self._chosen.best_set()
            self._expected_at = done, (best_set, self._finalists.expected_trials(best_set))
        return self._expected_at[1]

    def time_finalists(self) -> None:
        """Raises Cancelled, Finishing, DeviceLost, BuilderLost."""
        best_set = self._chosen.best_set()
        self._finalists.time(best_set, self._library_reserve_s(best_set))

    def _library_reserve_s(self, kernels: Sequence[MicroKernel]) -> float:
        """The part of that for building and verifying a library of these, and for the trial under way."""
        build_s = self._forecast.build_s(kernels) + self._forecast.link_s(kernels)
        return build_s + self._verification.reserve_s() + self._trials.trial_s + self._later_s

    @property
    def _later_s(self) -> float:
        """For the final comparison, and the dispatcher of a range of many shapes, to all of which it may be fitted."""
        return self._budget.compare_seconds + (self._budget.fit_seconds if self._has_many_shapes else 0.0)

    @cached_property
    def _has_many_shapes(self) -> bool:
        return len(self._task.shapes(finalize.MAX_FITTED)) > len(self._task.shapes())

    def time_verification(self, reserve_s: float) -> None:
        """Learn how long a verification takes, once. Raises Cancelled, Finishing, DeviceLost."""
        self._enter_wrong(self._verification.time_once(self._chosen.default, reserve_s))

    # -- building and verifying -----------------------------------------------------------------------------------
    def library(self, job_id: str | None) -> Tuned:
        """Choose, build and verify; a kernel that fails is excluded and the rest chosen anew. A library that turns out
        slower than theory's kernels in the final comparison gives way to them: where they are faster, then everywhere.

        Raises VerificationFailed, Cancelled, Finishing, BuilderLost, DeviceLost.
        """
        trials, rounds = self._trials, 0
        while True:
            self._stop.check()
            kernels, wrong = self._built_set()
            if not wrong:
                later_s = self._verification.reserve_s() + self._forecast.link_s(kernels) + self._budget.compare_seconds
                dispatcher = finalize.make_dispatcher(
                    self._task, self._model, self._measured, kernels, partial(self._left_s, later_s)
                )
                files = self._builds.library(dispatcher, job_id)
                wrong = self._verification.verify(dispatcher, files)
            if not wrong:
                trials.in_steps(None)
                trials.explain_end(0.0, is_last=True)
                comparison = compare_at_the_end(self._context, trials, dispatcher, files.files[LIBRARY])
                if self._falls_back(comparison, dispatcher):
                    continue
                summary = replace(
                    trials.summary(Stage.DONE),
                    kernels=len(dispatcher.kernels),
                    digest=files.manifest["digest"],
                    library_objective_s=trials.library_objective_s(dispatcher),
                ).settled(comparison)
                return Tuned(files.files, files.manifest, files.dispatch, summary)
            self._enter_wrong(wrong)
            rounds += 1
            if rounds == VERIFY_ROUNDS:
                break
        problem = f"the last: {wrong[0].kernel}: {wrong[0].error}"
        if all(result.error_kind is ErrorKind.MACHINE for result in wrong):
            raise BuilderLost(f"no library for {self._task.workload} can be built and verified here; {problem}")
        raise VerificationFailed(f"{VERIFY_ROUNDS} sets of kernels for {self._task.workload} were wrong; {problem}")

    def _left_s(self, later_s: float) -> float:
        """Seconds of the budget but for what comes later. Raises Cancelled, Finishing."""
        self._stop.check()
        return self._stop.ends_in_s - later_s

    def only_compiled(self, kernels: Sequence[MicroKernel]) -> None:
        """Compile kernels, and choose from those that the compiler does not refuse. Raises VerificationFailed where it
        refuses all, Cancelled, Finishing, BuilderLost."""
        trials, built, problem = self._trials, list[MicroKernel](), ""
        for first in range(0, len(kernels), COMPILED_AT_ONCE):
            self._stop.check()
            trials.report_progress(Stage.BUILD, first, len(kernels))
            for build in self._builds.build(kernels[first : first + COMPILED_AT_ONCE]):
                if build.binary is None:
                    problem = build.error
                    trials.log(f"left out: {build.kernel}: {build.error}")
                else:
                    built.append(build.kernel)
        if not built:
            raise VerificationFailed(f"no kernel for {self._task.workload} can be compiled: {problem}")
        trials.log(f"{len(built)} of {len(kernels)} kernels that theory prefers fit the hardware")
        self._chosen.only_from(built)

    def only_measured(self) -> None:
        """Choose from what was measured elsewhere, where nothing is here. Raises VerificationFailed."""
        kernels = self._measured.kernels
        if not kernels:
            raise VerificationFailed(f"all that was measured failed: {self._measured.commonest_error}")
        self._trials.log(f"chosen of {len(kernels)} kernels by {self._measured.trials} earlier measurements")
        self._chosen.only_from(kernels)

    def _falls_back(self, comparison: FinalComparison | None, dispatcher: Dispatcher) -> bool:
        """Whether theory's kernels are faster than the library, and another one is chosen: of both by what they took in
        turns, then of theory's alone where that one is slower, too."""
        ratios = comparison.ratios if comparison is not None and self._fallbacks < FALLBACKS else ()
        ratio = next((each for each in ratios if each.over == DEFAULT), None)
        if comparison is None or ratio is None or ratio.ratio >= LESS:
            return False
        defaults = self._trials.keep_defaults()
        theory = [kernel for kernel in dict.fromkeys(defaults.values()) if kernel is not None]
        build_s = self._forecast.build_s(theory) + self._forecast.link_s(theory)
        again_s = build_s + self._verification.reserve_s() + self._later_s
        is_theorys = self._fallbacks > 0 and set(dispatcher.kernels) <= set(theory)
        if is_theorys or (ratio.verdict is not Verdict.SLOWER and again_s > self._stop.ends_in_s):
            return False
        self._take_turns(comparison, dispatcher, defaults)
        own, which = (dispatcher.kernels, "its kernels and theory's") if not self._fallbacks else ((), "theory's alone")
        self._chosen.only_from(list(dict.fromkeys([*theory, *own])))
        self._fallbacks += 1
        self._trials.log(f"the library in turns: {ratio.ratio:.3f}x, {ratio}; another one is chosen of {which}")
        return True

    def _take_turns(self, comparison: FinalComparison, dispatcher: Dispatcher, defaults: Defaults) -> None:
        """Put what the library and the default took in turns in place of earlier readings, and of what was expected."""
        correction = speed_correction(comparison.anchor_s, self._trials.anchor_s)
        for instance, default in defaults.items():
            times = comparison.times_s.get(str(instance), {})
            for name, kernel in ((OURS, dispatcher.kernel_for(instance.shape)), (DEFAULT, default)):
                if kernel is not None and name in times:
                    self._measured.replace(kernel, instance, correction * times[name])

    def _built_set(self) -> tuple[list[MicroKernel], list[MeasureResult]]:
        """The best set, once there is an object of each of its kernels; a failed trial for each that cannot be built.

        What the seconds are over for is not built: the set is chosen of fewer kernels then, or of those that are built.
        """
        kernels, failed = self._affordable_set(), list[MeasureResult]()
        at_once = max(1, self._builds.beside)
        while not failed and (missing := [kernel for kernel in kernels if not self._builds.has(kernel)]):
            self._stop.check()
            self._trials.report_progress(Stage.BUILD, len(kernels) - len(missing), len(kernels))
            for build in self._builds.build(missing[:at_once]):
                self._trials.has_built(build.kernel, build.build_s)
                if build.binary is None:
                    kind = build.error_kind or ErrorKind.BUILD
                    failed.append(self._trials.library_failure(build.kernel, build.error, kind))
            if not failed and not self._is_affordable(kernels):
                built = [kernel for kernel in kernels if self._builds.has(kernel)]
                self._trials.log(f"the library is of {len(built)} kernels: building more would take too long")
                self._chosen.only_from(built)
                kernels = self._chosen.best_set()
        self._trials.report_progress(Stage.BUILD, len(kernels), len(kernels))
        return kernels, failed

    def _affordable_set(self) -> list[MicroKernel]:
        """The best set, of fewer kernels where building them takes longer than there is time."""
        kernels = self._chosen.best_set()
        for limit in range(len(kernels) - 1, 0, -1):
            if self._is_affordable(kernels):
                break
            kernels = self._chosen.best_set(limit)
        return kernels

    def _is_affordable(self, kernels: Sequence[MicroKernel]) -> bool:
        """Whether what is not built of these can be; a library of what is built can be linked at any time."""
        build_s = self._forecast.build_s(kernels)
        return not build_s or build_s + self._forecast.link_s(kernels) <= self._stop.ends_in_s

    def _enter_wrong(self, wrong: Sequence[MeasureResult]) -> None:
        if wrong:
            self._trials.add_results(wrong)
            self._trials.record(wrong, Stage.VERIFY)
        for result in wrong:
            self._trials.log(f"left out of the library: {result.kernel}: {result.error}")
