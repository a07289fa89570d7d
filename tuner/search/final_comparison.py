"""The final comparison: a new library beside the default and NumPy, in turns on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.device_speed import over_all
from tuner.library.dispatcher import Dispatcher
from tuner.measure import BuildResult, DeviceFailed, Interrupted, Runner, never
from tuner.measure.timing.turns import LEAST_TURNS
from tuner.program.job.task import SearchTask
from tuner.search.budget import COMPARE_S
from tuner.search.comparison import Times, ratio_of, times_of, turns_request
from tuner.search.context import SearchContext
from tuner.search.stopping import Cancelled
from tuner.search.summary import Stage
from tuner.search.trials import Trials
from tuner.search.verdict import DEFAULT, NUMPY, OURS, FinalComparison

LATE_SHARE = 0.025
"""The share of the seconds that it may take, and at most twice as long, where they are over."""


def compare_at_the_end(
    context: SearchContext, trials: Trials, dispatcher: Dispatcher, binary: bytes
) -> FinalComparison | None:
    """The final comparison of a search, within what is left of its seconds; None where it cannot be said, which the
    log tells. Raises DeviceLost, Cancelled, Finishing."""
    budget = context.budget.budget
    if budget.trials == 0 or context.stop.is_finishing:
        return None
    limit_s = COMPARE_S
    if budget.seconds is not None:
        limit_s = min(COMPARE_S, max(LATE_SHARE * budget.seconds, context.stop.ends_in_s))
    trials.report_progress(Stage.COMPARE)
    own = tuple(BuildResult(dispatcher.kernel_for(each.shape), binary, 0.0) for each in context.task.instances)
    rivals = Rivals(own, _default_builds(context, trials, dispatcher))
    try:
        found = final_comparison(
            context.task, context.tools.runner, rivals, limit_s=limit_s, anchors_s=trials.anchors_s,
            interrupted=context.stop.is_due,
        )  # fmt: skip
        if found is None:
            trials.log(f"the library is not compared: {limit_s:.3g} s are too short to take {LEAST_TURNS} turns")
        else:
            trials.compared(found)
    except DeviceFailed as error:
        trials.log(f"the library is not compared with the default and NumPy: {error}")
        return None
    except Interrupted:
        context.stop.check()
        raise Cancelled from None
    return found


def _default_builds(
    context: SearchContext, trials: Trials, dispatcher: Dispatcher
) -> tuple[BuildResult | None, ...] | None:
    """As ``Rivals`` has them."""
    instances = context.task.instances
    kernels = [trials.default_at(instance) for instance in instances]
    if not trials.measured.kernels:
        # The library is the default: nothing was measured that it could be better by.
        return (None,) * len(kernels)
    if any(kernel is None for kernel in kernels):
        return None
    own = [dispatcher.kernel_for(instance.shape) for instance in instances]
    differing = [theirs if theirs != ours else None for theirs, ours in zip(kernels, own, strict=True)]
    wanted = list(dict.fromkeys(kernel for kernel in differing if kernel is not None))
    builds = {build.kernel: build for build in context.builds.build(wanted)}
    if any(build.binary is None for build in builds.values()):
        return None
    return tuple(None if kernel is None else builds[kernel] for kernel in differing)


@dataclass(frozen=True, slots=True)
class Rivals:
    """What is compared, by instance: the builds of a new library, and of the default. Of the latter None where it runs
    the library's own kernel; None in all where there is no default at an instance."""

    library: tuple[BuildResult, ...]
    default: tuple[BuildResult | None, ...] | None


def final_comparison(
    task: SearchTask,
    runner: Runner,
    rivals: Rivals,
    *,
    limit_s: float,
    anchors_s: Sequence[float] = (),
    interrupted: Callable[[], bool] = never,
) -> FinalComparison | None:
    """The library beside the default and NumPy; None where the device had no time for LEAST_TURNS.

    ``anchors_s``: of the readings of the search. Raises DeviceFailed, DeviceLost, Interrupted.
    """
    runs = [rivals.library, rivals.default or (None,) * len(task.instances)]
    turns = runner.turns(task, turns_request(task.instances, runs, limit_s, with_numpy=True), interrupted)
    if len(turns.seconds) < LEAST_TURNS:
        return None
    weights = [instance.weight for instance in task.instances]
    ours, theirs = times_of(turns, 0), times_of(turns, 1)
    ratios = [] if rivals.default is None else [ratio_of(DEFAULT, ours, theirs, weights)]
    by_numpy = times_of(turns, 2)
    if not np.isnan(by_numpy).any():
        ratios.append(ratio_of(NUMPY, ours, by_numpy, weights))
    median = np.median(ours, axis=0)
    return FinalComparison(
        float(median @ np.array(weights)),
        tuple(ratios),
        _by_instance(
            task, ours, theirs if rivals.default is None else np.where(np.isnan(theirs), ours, theirs), by_numpy
        ),
        len(turns.seconds),
        float(np.median(turns.anchors_s)),
        turns.retaken,
        turns.disturbed,
        over_all([*anchors_s, *(each for turn in turns.anchors_s for each in turn)]),
        turns.blas,
    )


def _by_instance(task: SearchTask, *times: Times) -> dict[str, dict[str, float]]:
    medians = {name: np.median(each, axis=0) for name, each in zip((OURS, DEFAULT, NUMPY), times, strict=True)}
    return {
        str(instance): {name: float(each[at]) for name, each in medians.items() if np.isfinite(each[at])}
        for at, instance in enumerate(task.instances)
    }
