"""The verification of a library at the end of a search: at as many shapes as there is time for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tuner.library.dispatcher import Dispatcher, Leaf
from tuner.library.package import LIBRARY, LibraryFiles
from tuner.measure import BuildResult, Interrupted, NotMeasured
from tuner.records import ErrorKind, MeasureResult
from tuner.schedule import default_kernel
from tuner.schedule.space import MicroKernel
from tuner.search.context import SearchContext
from tuner.search.forecast import SAMPLE_WORK, Forecast
from tuner.search.stopping import Cancelled
from tuner.search.summary import Stage
from tuner.search.trials import Trials
from tuner.search.verification import verified_at

OVER_SHARE = 0.05
"""The share of the seconds by which verifying the floor of a library may pass their end."""
VERIFY_BATCH = 16
"""Shapes verified between two checks of ``should_stop``, at most."""
TURN_S = 1.0
"""The time, about, of the verification between two looks at the clock, and two signs of life."""


class FinalVerification:
    """Verifies what a search makes, and says how much of the budget must be left for that."""

    def __init__(self, context: SearchContext, trials: Trials, forecast: Forecast) -> None:
        self._task, self._builds, self._runner = context.task, context.builds, context.tools.runner
        self._budget, self._stop = context.budget, context.stop
        self._trials, self._measured, self._forecast = trials, trials.measured, forecast

    def reserve_s(self) -> float:
        """Whatever set is chosen, most of the shapes that it is verified at are the same."""
        return min(self._forecast.verify_s(self._typical_dims), self._budget.verify_seconds)

    @cached_property
    def _typical_dims(self) -> tuple[Mapping[str, int], ...]:
        return verified_at(Dispatcher(self._task, (default_kernel(self._task),), 0, Leaf(0))).all

    def time_once(self, default: Sequence[MicroKernel], reserve_s: float) -> list[MeasureResult]:
        """Verify the default at a least shape and at an instance of middling size, once, where seconds are limited: so
        long the end takes. A failed trial for it if it is wrong.

        Raises Cancelled, Finishing, DeviceLost.
        """
        kernels = [kernel for kernel in default if kernel in self._measured.kernels]
        if self._forecast.has_verified or not kernels or self._budget.budget.seconds is None:
            return []
        work = self._task.workload.work
        every = sorted((self._task.workload.dims(each.shape) for each in self._task.instances), key=work)
        middling = ([each for each in every if work(each) <= SAMPLE_WORK] or every[:1])[-1]
        smaller = [each for each in self._typical_dims if 0 < work(each) < work(middling)]
        dims: list[Mapping[str, int]] = [*sorted(smaller, key=work)[:1], middling]
        if self._forecast.verify_s(dims) >= self._budget.seconds_left(reserve_s):
            return []
        (build,) = self._builds.build(kernels[:1])
        if build.binary is not None:
            for each in dims:
                problems = [problem for _, problem in self._at(build, [each])]
                if problems:
                    # It is out of the search now, whatever another shape would show.
                    return [self._trials.library_failure(kernels[0], problems[0], ErrorKind.WRONG)]
        return []

    def verify(self, dispatcher: Dispatcher, files: LibraryFiles) -> list[MeasureResult]:
        """Verify the library at many shapes, as many as there is time for but for the floor; a failed trial for each of
        its kernels that is wrong at one of them."""
        build = BuildResult(dispatcher.kernels[0], files.files[LIBRARY], 0.0)
        at = verified_at(dispatcher, self._measured.kernels)
        todo, done = list(at.all), 0
        problems: dict[MicroKernel, str] = {}
        while todo:
            self._trials.report_progress(Stage.VERIFY, done, len(at.all))
            some = self._next_dims(todo, least=at.least - done, floor=len(at.floor) - done)
            if not some:
                self._stop.check()
                self._trials.log(f"verified at {done} of {len(at.all)} shapes: the seconds are over")
                break
            try:
                found = self._at(build, some)
            except NotMeasured as error:
                self._trials.log(f"the library is not verified: {error}")
                break
            for point, problem in found:
                problems.setdefault(dispatcher.kernels[dispatcher.index_for(point)], problem)
            todo, done = todo[len(some) :], done + len(some)
        return [self._trials.library_failure(kernel, problem, ErrorKind.WRONG) for kernel, problem in problems.items()]

    def _next_dims(self, todo: Sequence[Mapping[str, int]], *, least: int, floor: int) -> list[Mapping[str, int]]:
        """The next shapes to verify, which take about TURN_S. Those that there is no time for are left out: the first
        ``floor`` have OVER_SHARE of the seconds more, and the first ``least`` are never left out."""
        has_to, left_s = least > 0, self._stop.ends_in_s
        if floor > 0:
            left_s += OVER_SHARE * self._budget.whole_seconds
        most_s = TURN_S if has_to else min(TURN_S, left_s)
        most = min(VERIFY_BATCH, next((room for room in (least, floor) if room > 0), VERIFY_BATCH))
        count = 0 if not has_to and self._forecast.verify_s(todo[:1]) > left_s else 1
        while count and count < min(most, len(todo)) and self._forecast.verify_s(todo[: count + 1]) <= most_s:
            count += 1
        return list(todo[:count])

    def _at(self, build: BuildResult, dims: Sequence[Mapping[str, int]]) -> list[tuple[Mapping[str, int], str]]:
        """What is wrong at these values of the symbols. Raises Cancelled, Finishing."""
        self._stop.check()
        began_s = self._budget.elapsed_s
        try:
            problems = self._runner.verify(self._task, build, dims, self._stop.is_due)
        except Interrupted:
            self._stop.check()
            # The runner's side may know of a stop that this one has not heard of yet.
            raise Cancelled from None
        self._forecast.verified(dims, self._budget.elapsed_s - began_s)
        return problems
